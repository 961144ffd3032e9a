// SPDX-License-Identifier: Apache-2.0

// Package service makes a cluster or a joined node a service of the machine: a unit of systemd or a script of OpenRC,
// the program, and the configuration in /etc. What it writes is plain files, and each is replaced as a whole, so an
// installation that was interrupted is repeated. It knows no flags: cli says what the configuration contains.
package service

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// DefaultName is the name of the only service of a machine.
const DefaultName = "keelson"

// Service is one service as its file describes it.
type Service struct {
	// Name is the name for the service manager: keelson, or keelson-NAME.
	Name string
	// Program is the absolute path of the program on the machine.
	Program string
	// Copied says that Install has put the program there.
	Copied bool
	// Args are the command: up, or join and the URL of the server.
	Args []string
	// DataDir is the directory of the cluster or node. Each has one service.
	DataDir string
}

var (
	nameForm = regexp.MustCompile(`^keelson(-[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?)?$`)
	// wordForm is what a unit and a script hold without quotes.
	wordForm = regexp.MustCompile(`^[A-Za-z0-9/._:@=+\[\]-]+$`)
)

// check returns an error for what cannot be written into a unit or a script.
func (s Service) check() error {
	if !nameForm.MatchString(s.Name) {
		return fmt.Errorf("service name %q: it must be keelson, or keelson- and up to 40 of a-z, 0-9 and -", s.Name)
	}
	for _, word := range append([]string{s.Program}, s.Args...) {
		if !wordForm.MatchString(word) {
			return fmt.Errorf("%q has characters that a service's command may not have", word)
		}
	}
	if strings.ContainsAny(s.DataDir, "\r\n") {
		return fmt.Errorf("data directory %q has a line break", s.DataDir)
	}
	return nil
}

// Directory is the directory of the service's configuration.
func Directory(name string) string { return filepath.Join("/etc", name) }

// Config is the file with the flags of the service. It is the user's: Install makes it if it does not exist.
func Config(name string) string { return filepath.Join(Directory(name), "config.yaml") }

// FlagsFile has the flags that were given to Install. It goes before Config, and Install replaces it.
func FlagsFile(name string) string {
	return filepath.Join(Config(name)+".d", "50-install.yaml")
}

// command is the command line of the service.
func (s Service) command() string {
	return strings.Join(append(append([]string{s.Program}, s.Args...), "--config", Config(s.Name)), " ")
}

// The lines by which Install recognizes its files. They are comments for the service manager.
const (
	dataDirLine = "# keelson data-dir: "
	programLine = "# keelson program: "
	copiedLine  = "# keelson program copied: "
	commandLine = "# keelson command: "
)

func (s Service) marks() string {
	text := dataDirLine + s.DataDir + "\n" + commandLine + strings.Join(s.Args, " ") + "\n"
	if s.Copied {
		return text + copiedLine + s.Program + "\n"
	}
	return text + programLine + s.Program + "\n"
}

// parse reads what marks has written; false: the file is none of ours.
func parse(name string, file []byte) (Service, bool) {
	s := Service{Name: name}
	for line := range strings.Lines(string(file)) {
		line = strings.TrimSuffix(line, "\n")
		if dir, ok := strings.CutPrefix(line, dataDirLine); ok {
			s.DataDir = dir
		}
		if command, ok := strings.CutPrefix(line, commandLine); ok {
			s.Args = strings.Fields(command)
		}
		if program, ok := strings.CutPrefix(line, programLine); ok {
			s.Program = program
		}
		if program, ok := strings.CutPrefix(line, copiedLine); ok {
			s.Program = program
			s.Copied = true
		}
	}
	return s, s.DataDir != "" && s.Program != ""
}

// manager is a service manager: where it looks for services, and the commands that it takes.
type manager struct {
	name string
	// runs reports whether it manages the machine whose root directory is root.
	runs func(root string) bool
	// file is the path of a service's file; link is what makes the machine start the service at boot.
	file, link func(service string) string
	mode       os.FileMode
	text       func(Service) string
	// reload makes it read files that changed; nil: it reads them by itself.
	reload []string
	// command is what starts, restarts, stops or asks for a service. A restart keeps containers.
	command func(action, service string) []string
	// lastLine prints the last line that a service has printed, which says why it did not start.
	lastLine func(service string) []string
}

// The actions of manager.command.
const (
	start   = "start"
	restart = "restart"
	stop    = "stop"
	active  = "is-active" // fails unless the service runs
)

// managers are those that Install knows.
var managers = []manager{
	{
		name: "systemd",
		runs: func(root string) bool { return isDir(filepath.Join(root, "/run/systemd/system")) },
		file: func(service string) string { return "/etc/systemd/system/" + service + ".service" },
		link: func(service string) string {
			return "/etc/systemd/system/multi-user.target.wants/" + service + ".service"
		},
		mode:    0o644,
		text:    unit,
		reload:  []string{"systemctl", "daemon-reload"},
		command: func(action, service string) []string { return []string{"systemctl", action, service + ".service"} },
		lastLine: func(service string) []string {
			return []string{
				"journalctl", "--unit=" + service + ".service", "--lines=1", "--output=cat", "--quiet",
				"--identifier=keelson",
			}
		},
	},
	{
		name: "openrc",
		runs: func(root string) bool { return isDir(filepath.Join(root, "/run/openrc")) },
		file: func(service string) string { return "/etc/init.d/" + service },
		link: func(service string) string { return "/etc/runlevels/default/" + service },
		mode: 0o755,
		text: script,
		command: func(action, service string) []string {
			if action == active {
				action = "status"
			}
			return []string{"rc-service", service, action}
		},
		lastLine: func(service string) []string { return []string{"tail", "-n", "1", "/var/log/" + service + ".log"} },
	},
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// managerFor returns the manager of that name, or the one that runs the machine when name is empty.
func managerFor(name, root string) (manager, error) {
	for _, m := range managers {
		if m.name == name || name == "" && m.runs(root) {
			return m, nil
		}
	}
	if name != "" {
		return manager{}, fmt.Errorf("no service manager %q is known: systemd or openrc", name)
	}
	return manager{}, errors.New("neither systemd nor OpenRC runs this machine: run `keelson up` from what starts its " +
		"services, or give --init with --root")
}

// unit is the unit of systemd. A restart ends the program alone: containers go on (KillMode), and systemd leaves their
// cgroups to the program (Delegate).
func unit(s Service) string {
	return s.marks() + `[Unit]
Description=Keelson, Kubernetes in one program (` + s.Args[0] + `)
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
ExecStart=` + s.command() + `
KillMode=process
Delegate=yes
Restart=always
RestartSec=5s
TimeoutStartSec=0
WatchdogSec=2min
LimitNOFILE=1048576
LimitNPROC=infinity
TasksMax=infinity

[Install]
WantedBy=multi-user.target
`
}

// script is the script of OpenRC, whose supervisor starts the program again when it ends.
func script(s Service) string {
	command, args, _ := strings.Cut(s.command(), " ")
	return "#!/sbin/openrc-run\n" + s.marks() + `description="Keelson, Kubernetes in one program (` + s.Args[0] + `)"
supervisor=supervise-daemon
command=` + command + `
command_args="` + args + `"
output_log=/var/log/` + s.Name + `.log
error_log=/var/log/` + s.Name + `.log
respawn_delay=5
respawn_max=0
rc_ulimit="-n 1048576 -u unlimited"
retry="TERM/90/KILL/5"

depend() {
	need net
	after firewall
}
`
}
