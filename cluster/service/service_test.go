// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"keelson/cluster/datadir"
	"keelson/cluster/service"
)

// machine is an image with a program to install. Its service manager records its commands; the service runs between
// start and stop.
type machine struct {
	service.Machine
	t        *testing.T
	running  string // path of the program
	commands []string
	up       bool
	broken   error // what a start returns
}

func newMachine(t *testing.T) *machine {
	m := &machine{t: t, running: filepath.Join(t.TempDir(), "keelson")}
	m.write(m.running, "program")
	m.Machine = service.Machine{
		Root:     t.TempDir(),
		Init:     "systemd",
		Progress: func(string, time.Duration) {},
		Run:      m.command,
	}
	return m
}

func (m *machine) command(_ context.Context, command []string) (string, error) {
	text := strings.Join(command, " ")
	m.commands = append(m.commands, text)
	switch command[1] {
	case "is-active":
		if !m.up {
			return "", errors.New("inactive")
		}
	case "start", "restart":
		m.up = m.broken == nil
		return "", m.broken
	case "stop":
		m.up = false
	case "--unit=keelson.service":
		return "keelson: the disk is full\n", nil
	}
	return "", nil
}

func (m *machine) write(path, text string) {
	m.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) read(path string) string {
	m.t.Helper()
	b, err := os.ReadFile(filepath.Join(m.Root, path))
	if err != nil {
		m.t.Error(err)
	}
	return string(b)
}

// files are all files of the machine.
func (m *machine) files() []string {
	var out []string
	_ = filepath.WalkDir(m.Root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, strings.TrimPrefix(path, m.Root))
		}
		return err
	})
	return out
}

func (m *machine) request(args ...string) service.Request {
	r := service.Request{Running: m.running}
	r.Name = "keelson"
	r.Args = args
	r.DataDir = filepath.Join(m.Root, "var/lib/keelson")
	return r
}

// TestInstall: what is on the machine after an installation, and nothing of it after the uninstallation.
func TestInstall(t *testing.T) {
	m := newMachine(t)
	r := m.request("up")
	r.Flags = []byte("port: 7443\n")
	if err := m.Install(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"/etc/keelson/config.yaml",
		"/etc/keelson/config.yaml.d/50-install.yaml",
		"/etc/systemd/system/keelson.service",
		"/etc/systemd/system/multi-user.target.wants/keelson.service",
		"/usr/local/bin/keelson",
	}
	if got := m.files(); !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	unit := m.read("/etc/systemd/system/keelson.service")
	for _, line := range []string{
		"Type=notify", "KillMode=process", "Delegate=yes", "WatchdogSec=2min",
		"ExecStart=/usr/local/bin/keelson up --config /etc/keelson/config.yaml",
	} {
		if !strings.Contains(unit, "\n"+line+"\n") {
			t.Errorf("the unit lacks %s:\n%s", line, unit)
		}
	}
	if info, err := os.Stat(filepath.Join(m.Root, "usr/local/bin/keelson")); err != nil || info.Mode() != 0o755 {
		t.Errorf("the program: %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Join(m.Root, service.FlagsFile("keelson"))); err != nil || info.Mode() != 0o600 {
		t.Errorf("flags, which may be a token: %v, %v", info.Mode(), err)
	}
	if len(m.commands) > 0 {
		t.Errorf("an image's services are not started: %q", m.commands)
	}
	s, err := m.Installed("keelson")
	if err != nil || s.DataDir != r.DataDir || !s.Copied {
		t.Fatalf("installed is %+v, %v", s, err)
	}
	if err := m.Uninstall(t.Context(), s, true, nil); err != nil {
		t.Fatal(err)
	}
	if got := m.files(); len(got) > 0 {
		t.Errorf("left after the uninstallation: %q", got)
	}
	if _, err := m.Installed("keelson"); err == nil || !strings.Contains(err.Error(), "`keelson install` installs it") {
		t.Errorf("uninstalled twice: %v", err)
	}
}

// TestInstallAgain: the user's file stays, flags that are not given stay, and the program is replaced.
func TestInstallAgain(t *testing.T) {
	m := newMachine(t)
	r := m.request("up")
	r.Config = []byte("verbose: true\n")
	r.Flags = []byte("port: 7443\n")
	if err := m.Install(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	m.write(m.running, "newer program")
	m.write(filepath.Join(m.Root, service.Config("keelson")), "verbose: false\n")
	if err := m.Install(t.Context(), m.request("up")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/etc/keelson/config.yaml":                   "verbose: false\n",
		"/etc/keelson/config.yaml.d/50-install.yaml": "port: 7443\n",
		"/usr/local/bin/keelson":                     "newer program",
	} {
		if got := m.read(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if err := m.Install(t.Context(), r); err == nil || !strings.Contains(err.Error(), "exists and differs from --config") {
		t.Errorf("the user's file was replaced: %v", err)
	}
	s, err := m.Installed("keelson")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Uninstall(t.Context(), s, false, nil); err != nil {
		t.Fatal(err)
	}
	if got := m.files(); !slices.Equal(got, []string{service.Config("keelson")}) {
		t.Errorf("left without purge: %q", got)
	}
}

// TestInstallOverAProgram: a program that the user has put in its place is replaced by a newer one, too.
func TestInstallOverAProgram(t *testing.T) {
	m := newMachine(t)
	if err := m.Install(t.Context(), m.request("up")); err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(m.Root, "/etc/systemd/system/keelson.service")
	m.write(unit, strings.ReplaceAll(m.read("/etc/systemd/system/keelson.service"), " copied", "")) // it ran from there
	m.write(m.running, "newer program")
	if err := m.Install(t.Context(), m.request("up")); err != nil {
		t.Fatal(err)
	}
	if got := m.read("/usr/local/bin/keelson"); got != "newer program" {
		t.Errorf("the program is %q", got)
	}
}

// TestInstallHalfDone: an installation that started nothing, or was interrupted before it, is not taken for a finished
// one.
func TestInstallHalfDone(t *testing.T) {
	m := newMachine(t)
	m.Starts = true
	if err := m.Install(t.Context(), m.request("up")); err != nil {
		t.Fatal(err)
	}
	m.write(m.running, "newer program")
	r := m.request("up")
	r.NoStart = true
	if err := m.Install(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"systemctl restart keelson.service", "systemctl is-active keelson.service"} {
		if err := m.Install(t.Context(), m.request("up")); err != nil || m.commands[len(m.commands)-1] != want {
			t.Errorf("commands %q, want %s last, %v", m.commands, want, err)
		}
	}
	flags := filepath.Join(m.Root, service.FlagsFile("keelson"))
	m.write(flags, "token: x\n")
	if err := os.Chmod(flags, 0o644); err != nil {
		t.Fatal(err)
	}
	r = m.request("up")
	r.Flags = []byte("token: x\n")
	if err := m.Install(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(flags); err != nil || info.Mode() != 0o600 {
		t.Errorf("flags, which may be a token: %v, %v", info.Mode(), err)
	}
}

// TestRefused: nothing is written when the request cannot be carried out.
func TestRefused(t *testing.T) {
	for name, test := range map[string]struct {
		before func(*machine, *service.Request)
		want   string
	}{
		"two services of one data directory": {
			func(m *machine, r *service.Request) {
				if err := m.Install(t.Context(), *r); err != nil {
					t.Fatal(err)
				}
				r.Name = "keelson-two"
			},
			"is the data directory of the service keelson",
		},
		"a unit of somebody else": {
			func(m *machine, _ *service.Request) {
				m.write(filepath.Join(m.Root, "/etc/systemd/system/keelson.service"), "[Service]\n")
			},
			"is not of `keelson install`",
		},
		"a name that is a path": {
			func(_ *machine, r *service.Request) { r.Name = "keelson-../x" },
			"it must be keelson, or keelson- and",
		},
		"a server that is a second line": {
			func(_ *machine, r *service.Request) { r.Args = []string{"join", "https://a:1\nExecStartPre=/bin/sh"} },
			"has characters that a service's command may not have",
		},
		"a server with a specifier": {
			func(_ *machine, r *service.Request) { r.Args = []string{"join", "https://%h:1"} },
			"has characters that a service's command may not have",
		},
		"an unknown manager": {
			func(m *machine, _ *service.Request) { m.Init = "upstart" },
			`no service manager "upstart" is known`,
		},
		"no manager": {
			func(m *machine, _ *service.Request) { m.Init = "" },
			"neither systemd nor OpenRC runs this machine",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			r := m.request("up")
			test.before(m, &r)
			before := m.files()
			if err := m.Install(t.Context(), r); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want ...%s", err, test.want)
			}
			if after := m.files(); !slices.Equal(before, after) {
				t.Errorf("files %q became %q", before, after)
			}
		})
	}
}

// TestOpenRC: the same service for the other manager.
func TestOpenRC(t *testing.T) {
	m := newMachine(t)
	m.Init = "openrc"
	if err := m.Install(t.Context(), m.request("join", "https://10.0.0.1:6443")); err != nil {
		t.Fatal(err)
	}
	script := m.read("/etc/init.d/keelson")
	for _, line := range []string{
		"#!/sbin/openrc-run", "supervisor=supervise-daemon", "command=/usr/local/bin/keelson",
		`command_args="join https://10.0.0.1:6443 --config /etc/keelson/config.yaml"`,
	} {
		if !strings.Contains("\n"+script, "\n"+line+"\n") {
			t.Errorf("the script lacks %s:\n%s", line, script)
		}
	}
	if to, err := os.Readlink(filepath.Join(m.Root, "/etc/runlevels/default/keelson")); err != nil ||
		to != "/etc/init.d/keelson" {
		t.Errorf("the runlevel names %q, %v", to, err)
	}
	if s, err := m.Installed("keelson"); err != nil || s.Program != "/usr/local/bin/keelson" {
		t.Errorf("installed is %+v, %v", s, err)
	}
}

// TestStart: the service is started once, restarted when a file changed, and left alone when nothing did. A start that
// fails says where the reason is.
func TestStart(t *testing.T) {
	m := newMachine(t)
	m.Starts = true
	install := func(flags string) ([]string, error) {
		m.commands = nil
		r := m.request("up")
		if flags != "" {
			r.Flags = []byte(flags)
		}
		err := m.Install(t.Context(), r)
		return m.commands, err
	}
	const reload = "systemctl daemon-reload"
	const active = "systemctl is-active keelson.service"
	for _, step := range []struct{ flags, last string }{
		{"port: 1\n", "systemctl start keelson.service"},
		{"port: 1\n", active},
		{"", active},
		{"port: 2\n", "systemctl restart keelson.service"},
	} {
		commands, err := install(step.flags)
		want := []string{reload, active}
		if step.last != active {
			want = append(want, step.last)
		}
		if err != nil || !slices.Equal(commands, want) {
			t.Errorf("flags %q: commands %q, want %q, %v", step.flags, commands, want, err)
		}
	}
	m.broken = errors.New("exit status 1")
	if _, err := install("port: 3\n"); err == nil || !strings.HasSuffix(err.Error(), "tried again: keelson: the disk is full") {
		t.Errorf("a start that failed: %v", err)
	}
	s, err := m.Installed("keelson")
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("busy")
	if err := m.Uninstall(t.Context(), s, false, func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("uninstalled while containers run: %v", err)
	}
	if err := m.Uninstall(t.Context(), s, false, func() error { return nil }); err != nil { // it can be repeated
		t.Error(err)
	}
}

// TestInstallOnARunningCluster: a cluster that was started by hand is not fought for its directory.
func TestInstallOnARunningCluster(t *testing.T) {
	m := newMachine(t)
	m.Starts = true
	r := m.request("up")
	dir := datadir.Dir(r.DataDir)
	if _, err := dir.Prepare(); err != nil {
		t.Fatal(err)
	}
	lock, err := dir.Lock()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	if err := m.Install(t.Context(), r); err == nil || !strings.Contains(err.Error(), "ends it and keeps the containers") {
		t.Errorf("got %v", err)
	}
}

// TestStopOn: the service of a directory is stopped, by whatever name the directory has, and no other service is.
func TestStopOn(t *testing.T) {
	m := newMachine(t)
	m.Starts = true
	r := m.request("up")
	if err := os.MkdirAll(r.DataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.Install(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(r.DataDir, link); err != nil {
		t.Fatal(err)
	}
	const stop = "systemctl stop keelson.service"
	for dir, want := range map[string][]string{r.DataDir: {stop}, link: {stop}, t.TempDir(): nil, "/nonexistent": nil} {
		m.commands = nil
		if err := m.StopOn(t.Context(), dir); err != nil || !slices.Equal(m.commands, want) {
			t.Errorf("%s: commands %q, want %q, %v", dir, m.commands, want, err)
		}
	}
	m.Init = ""
	if err := m.StopOn(t.Context(), r.DataDir); err != nil {
		t.Errorf("without a service manager: %v", err)
	}
}
