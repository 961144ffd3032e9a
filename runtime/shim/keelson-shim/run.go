// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"keelson/runtime/shim"
	"keelson/runtime/shim/logfile"
	"keelson/runtime/shim/streams"
)

// run makes and starts a container.
func (s *supervisor) run(id string, r shim.Run) (*container, error) {
	if r.Spec == nil || r.Spec.Process == nil || r.Spec.Linux == nil {
		return nil, errors.New("run container: the spec has no process or no linux section")
	}
	ctr, err := s.table.reserve(id)
	if err != nil {
		return nil, err
	}
	ctr.state = shim.State{
		ID:        id,
		Boot:      s.boot,
		Terminal:  r.Spec.Process.Terminal,
		Stdin:     r.Stdin,
		StdinOnce: r.StdinOnce,
		LogPath:   r.LogPath,
		SharedPID: !privatePID(r.Spec),
		Tracer:    canTrace(r.Spec.Process),
	}
	target, err := s.table.openTargetPIDNamespace(r.Spec)
	if err != nil {
		s.discard(ctr)
		return nil, err
	}
	defer shim.CloseAll([]*os.File{target})
	release, err := s.tracers.freeze(ctr, joinedPIDNamespace(r.Spec))
	if err != nil {
		s.discard(ctr)
		return nil, err
	}
	defer release()
	defer s.children.Begin()()
	if err := s.startInit(ctr, r.Spec); err != nil {
		s.discard(ctr)
		return nil, err
	}
	if err := s.recordStart(ctr); err != nil {
		killChild(ctr.state.PID)
		s.engine.destroy(ctr.state.ID)
		s.discard(ctr)
		return nil, err
	}
	return ctr, nil
}

// openTargetPIDNamespace opens the PID namespace of the container that the spec names (shim.PIDNamespaceOf), and
// replaces the path in the spec by that of the descriptor. It returns nil when the spec names none.
func (t *table) openTargetPIDNamespace(spec *specs.Spec) (*os.File, error) {
	for i := range spec.Linux.Namespaces {
		linuxNamespace := &spec.Linux.Namespaces[i]
		id, ok := shim.PIDNamespaceOwner(linuxNamespace.Path)
		if !ok || linuxNamespace.Type != specs.PIDNamespace {
			continue
		}
		c, err := t.running(id)
		if err != nil {
			return nil, fmt.Errorf("join the PID namespace of container %s: %w", id, err)
		}
		f, err := c.pidNamespace()
		if err != nil {
			return nil, fmt.Errorf("join the PID namespace of container %s: %w", id, err)
		}
		// not /proc/self: another process opens it
		linuxNamespace.Path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd())
		return f, nil
	}
	return nil, nil
}

// pidNamespace opens the container's PID namespace. It checks afterwards that the process has not been reaped, so its
// pid was not reused.
func (c *container) pidNamespace() (*os.File, error) {
	var file *os.File
	err := c.retryDuringExecve(func() (err error) {
		file, err = os.Open(fmt.Sprintf("/proc/%d/ns/pid", c.snapshot().PID))
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%w: %w", errInExecve, err)
		}
		return err
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil, shim.ErrNotRunning
	}
	if err != nil {
		return nil, err
	}
	if err := c.signal(0); err != nil {
		_ = file.Close() // nothing was written
		return nil, err
	}
	return file, nil
}

func privatePID(spec *specs.Spec) bool {
	return slices.ContainsFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == specs.PIDNamespace && n.Path == ""
	})
}

// startInit starts the first process and connects its streams.
func (s *supervisor) startInit(ctr *container, spec *specs.Spec) error {
	log, err := logfile.Open(ctr.state.LogPath, s.settings.logPolicy())
	if err != nil {
		return err
	}
	ctr.io = s.output.New(ctr.dir, log)
	p := processOf(spec.Process)
	p.Init = true
	var console *os.File
	var ends [3]*os.File
	if ctr.state.Terminal {
		console, p.ConsoleSocket, err = socketPair()
	} else {
		ends, err = ctr.io.MakeFIFOs(ctr.state.Stdin, ownDev(spec))
		p.Stdin = ends[0]
		p.Stdout = ends[1]
		p.Stderr = ends[2]
	}
	if err != nil {
		return err
	}
	defer func() { shim.CloseAll([]*os.File{ends[0], ends[1], ends[2], p.ConsoleSocket, console}) }()
	if ctr.state.Started, err = s.engine.start(ctr.state.ID, spec, p); err != nil {
		return err
	}
	if console != nil {
		var terminal *os.File
		if terminal, err = receiveFile(console); err == nil {
			err = ctr.io.UseTerminal(terminal)
		}
	}
	if err == nil {
		ctr.state.PID, err = p.Pid()
	}
	if err == nil {
		err = ctr.io.Start()
	}
	if err != nil {
		_ = p.Signal(unix.SIGKILL)
		_, _ = p.Wait()
		s.engine.destroy(ctr.state.ID)
	}
	return err
}

// processOf translates an OCI process to libcontainer's.
func processOf(sp *specs.Process) *libcontainer.Process {
	p := &libcontainer.Process{
		Args:            sp.Args,
		Env:             sp.Env,
		Cwd:             sp.Cwd,
		UID:             int(sp.User.UID),
		GID:             int(sp.User.GID),
		Label:           sp.SelinuxLabel,
		NoNewPrivileges: &sp.NoNewPrivileges,
		AppArmorProfile: sp.ApparmorProfile,
	}
	for _, g := range sp.User.AdditionalGids {
		p.AdditionalGroups = append(p.AdditionalGroups, int(g))
	}
	if sp.ConsoleSize != nil {
		p.ConsoleWidth = uint16(sp.ConsoleSize.Width)
		p.ConsoleHeight = uint16(sp.ConsoleSize.Height) // terminals are small
	}
	if sp.Capabilities != nil {
		p.Capabilities = &configs.Capabilities{
			Bounding:    sp.Capabilities.Bounding,
			Effective:   sp.Capabilities.Effective,
			Permitted:   sp.Capabilities.Permitted,
			Inheritable: sp.Capabilities.Inheritable,
			Ambient:     sp.Capabilities.Ambient,
		}
	}
	for _, rl := range sp.Rlimits {
		if n, ok := rlimits[rl.Type]; ok {
			p.Rlimits = append(p.Rlimits, configs.Rlimit{Type: n, Hard: rl.Hard, Soft: rl.Soft})
		}
	}
	return p
}

// rlimits are the supported resource limits.
var rlimits = map[string]int{
	"RLIMIT_NOFILE":  unix.RLIMIT_NOFILE,
	"RLIMIT_CORE":    unix.RLIMIT_CORE,
	"RLIMIT_NPROC":   unix.RLIMIT_NPROC,
	"RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK,
	"RLIMIT_STACK":   unix.RLIMIT_STACK,
}

func socketPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make socket pair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "console"), os.NewFile(uintptr(fds[1]), "console"), nil
}

// receiveFile receives the terminal that a starting process sends.
func receiveFile(sock *os.File) (*os.File, error) {
	name := make([]byte, 4096)
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(sock.Fd()), name, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("receive terminal: %w", err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return nil, fmt.Errorf("receive terminal: %d messages (%w)", len(msgs), err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("receive terminal: %d descriptors (%w)", len(fds), err)
	}
	return streams.RawFile(fds[0], "terminal"), nil
}
