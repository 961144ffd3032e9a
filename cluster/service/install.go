// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"keelson/cluster/datadir"
	"keelson/pki"
)

// Machine is where services are installed.
type Machine struct {
	// Root is the directory below which all files are: the image of a machine; empty: this machine's root directory.
	Root string
	// Starts says that services are started and stopped, which an image's are not.
	Starts bool
	// Init names the service manager: systemd or openrc; empty: the one that runs here.
	Init string
	// Run runs a command of the service manager and returns its output; nil: as a process.
	Run func(ctx context.Context, command []string) (string, error)
	// Progress is called after each step with the time it took.
	Progress func(step string, took time.Duration)
}

// Request is what Install is asked for. Service.Program and Copied are set by Install.
type Request struct {
	Service
	// Running is the path of the program that is to be installed.
	Running string
	// Config becomes the configuration of the user; nil: it stays, or is a file with comments alone.
	Config []byte
	// Flags replace FlagsFile; nil: it stays.
	Flags []byte
	// NoStart leaves the service stopped until the next boot.
	NoStart bool
}

// programDir is where Install puts the program, unless it runs from one of systemDirs.
const programDir = "/usr/local/bin"

var systemDirs = []string{"/usr/bin", "/usr/local/bin", "/opt"}

// Install writes the configuration, the program and the service's file, in this order, and starts the service now and
// at boot. Where everything is as it should be, it changes and restarts nothing.
func (m Machine) Install(ctx context.Context, r Request) error {
	manager, err := managerFor(m.Init, m.Root)
	if err != nil {
		return err
	}
	s := r.Service
	old, installed := m.read(manager, s.Name)
	s.Program, s.Copied = m.place(r.Running)
	if installed && old.Program == s.Program && old.Copied {
		s.Copied = true // it may run from where it was copied to
	}
	if err := m.allowed(manager, s, r, installed); err != nil {
		return err
	}
	begin := time.Now()
	pending, changed, err := m.begin(s.Name)
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	write := func(path string, mode fs.FileMode, content []byte) {
		var wrote bool
		if err == nil {
			wrote, err = m.put(path, mode, content)
		}
		changed = changed || wrote
	}
	switch {
	case r.Config != nil:
		write(Config(s.Name), 0o600, r.Config)
	case !datadir.Exists(m.at(Config(s.Name))):
		write(Config(s.Name), 0o600, fmt.Appendf(nil, "# Flags of `keelson %s`, such as\n# verbose: true\n", s.Args[0]))
	}
	if r.Flags != nil {
		write(FlagsFile(s.Name), 0o600, r.Flags)
	}
	if err == nil && s.Copied {
		var wrote bool
		wrote, err = m.copyProgram(r.Running, s.Program)
		changed = changed || wrote
	}
	write(manager.file(s.Name), manager.mode, []byte(manager.text(s)))
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	if err := m.link(manager, s.Name); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	m.Progress(manager.file(s.Name), time.Since(begin))
	if m.Starts && !r.NoStart {
		if err := m.start(ctx, manager, s.Name, changed); err != nil {
			return err
		}
		changed = false
	}
	if !m.Starts || changed { // the next installation restarts the service
		return nil
	}
	return os.Remove(pending)
}

func pendingFile(name string) string { return "/run/" + name + ".install" }

// begin makes a file that lasts until the next boot, or until the service runs with what is installed: an installation
// that is interrupted, or starts nothing, must not look finished to the next one. changed says that the file was there.
func (m Machine) begin(name string) (pending string, changed bool, err error) {
	pending = m.at(pendingFile(name))
	if !m.Starts {
		return pending, false, nil
	}
	if datadir.Exists(pending) {
		return pending, true, nil
	}
	if err := os.MkdirAll(filepath.Dir(pending), 0o755); err != nil {
		return pending, false, err
	}
	return pending, false, os.WriteFile(pending, nil, 0o600)
}

// allowed returns an error if the request must not be carried out on this machine.
func (m Machine) allowed(manager manager, s Service, r Request, installed bool) error {
	if err := s.check(); err != nil {
		return err
	}
	path := m.at(manager.file(s.Name))
	if !installed && datadir.Exists(path) {
		return fmt.Errorf("%s is not of `keelson install`: move it away, or give another --name", path)
	}
	for _, other := range m.services(manager) {
		if other.Name != s.Name && other.DataDir == s.DataDir {
			return fmt.Errorf("%s is the data directory of the service %s: give another --data-dir, or uninstall "+
				"that one", s.DataDir, other.Name)
		}
	}
	if r.Config != nil {
		if have, err := os.ReadFile(m.at(Config(s.Name))); err == nil && !bytes.Equal(have, r.Config) {
			return fmt.Errorf("%s exists and differs from --config: edit it, or delete it first", m.at(Config(s.Name)))
		}
	}
	if installed || !m.Starts || r.NoStart {
		return nil
	}
	dir := datadir.Dir(s.DataDir)
	for _, file := range []string{dir.PidFile(), dir.NodePidFile()} {
		if pid, err := datadir.Holder(file, 0); err == nil && pid > 0 {
			return fmt.Errorf("process %d runs on %s: `kill %d` ends it and keeps the containers, then install again",
				pid, dir, pid)
		}
	}
	return nil
}

// start starts the service, or restarts it if a file changed.
func (m Machine) start(ctx context.Context, manager manager, name string, changed bool) error {
	begin := time.Now()
	if manager.reload != nil {
		if _, err := m.run(ctx, manager.reload); err != nil {
			return err
		}
	}
	action := start
	if _, err := m.run(ctx, manager.command(active, name)); err == nil {
		if !changed {
			m.Progress("nothing changed, running", time.Since(begin))
			return nil
		}
		action = restart
	}
	if _, err := m.run(ctx, manager.command(action, name)); err != nil {
		why, noLog := m.run(ctx, manager.lastLine(name))
		if noLog != nil || strings.TrimSpace(why) == "" {
			why = err.Error()
		}
		return fmt.Errorf("%s is installed and does not start, which is tried again: %.500s", name,
			strings.TrimSpace(why))
	}
	m.Progress("service started", time.Since(begin))
	return nil
}

// place says where the program will be, and whether it is copied there.
func (m Machine) place(running string) (path string, copied bool) {
	if m.Root == "" {
		for _, dir := range systemDirs {
			if strings.HasPrefix(running, dir+"/") && wordForm.MatchString(running) {
				return running, false
			}
		}
	}
	return programDir + "/keelson", true
}

// copyProgram copies the program unless the same is there. A running one is replaced, not written to.
func (m Machine) copyProgram(from, to string) (changed bool, err error) {
	begin := time.Now()
	to = m.at(to)
	if sameFile(from, to) {
		return false, nil
	}
	in, err := os.Open(from)
	if err != nil {
		return false, err
	}
	defer func() { _ = in.Close() }()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return false, err
	}
	out, err := os.CreateTemp(filepath.Dir(to), ".keelson-*")
	if err != nil {
		return false, err
	}
	defer func() { _ = os.Remove(out.Name()) }() // it was renamed, or is not wanted
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Chmod(0o755), out.Sync(), out.Close()); err != nil {
		return false, err
	}
	if err := os.Rename(out.Name(), to); err != nil {
		return false, err
	}
	m.Progress(to, time.Since(begin))
	return true, datadir.SyncDir(filepath.Dir(to))
}

// sameFile reports whether two files have the same content.
func sameFile(a, b string) bool {
	first, err := os.Open(a)
	if err != nil {
		return false
	}
	defer func() { _ = first.Close() }()
	second, err := os.Open(b)
	if err != nil {
		return false
	}
	defer func() { _ = second.Close() }()
	one := make([]byte, 1<<20)
	two := make([]byte, 1<<20)
	for {
		n, errOne := io.ReadFull(first, one)
		k, errTwo := io.ReadFull(second, two)
		if !bytes.Equal(one[:n], two[:k]) {
			return false
		}
		if errOne != nil || errTwo != nil {
			return ended(errOne) && ended(errTwo)
		}
	}
}

func ended(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// put writes a file unless it has this content and mode.
func (m Machine) put(path string, mode fs.FileMode, content []byte) (changed bool, err error) {
	path = m.at(path)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() == mode {
			return false, err
		}
		return false, os.Chmod(path, mode)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, err
	}
	return true, pki.WriteFile(path, content, mode)
}

// link makes the service start at boot.
func (m Machine) link(manager manager, name string) error {
	link := m.at(manager.link(name))
	if to, err := os.Readlink(link); err == nil && to == manager.file(name) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return err
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(manager.file(name), link)
}

// read reads the service of that name; false: it is not installed.
func (m Machine) read(manager manager, name string) (Service, bool) {
	file, err := os.ReadFile(m.at(manager.file(name)))
	if err != nil {
		return Service{}, false
	}
	return parse(name, file)
}

// services are all services that Install has made on the machine.
func (m Machine) services(manager manager) []Service {
	files, _ := filepath.Glob(m.at(manager.file(DefaultName + "*"))) // the pattern is well formed
	var all []Service
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".service")
		if s, ok := m.read(manager, name); ok {
			all = append(all, s)
		}
	}
	return all
}

func (m Machine) at(path string) string { return filepath.Join("/", m.Root, path) }

func (m Machine) run(ctx context.Context, command []string) (string, error) {
	if m.Run != nil {
		return m.Run(ctx, command)
	}
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	if err != nil {
		text, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return "", fmt.Errorf("%s: %w: %.200s", strings.Join(command, " "), err, text)
	}
	return string(out), nil
}
