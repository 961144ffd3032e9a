// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"keelson/runtime/shim"
	"keelson/runtime/shim/logfile"
)

// lcDir holds libcontainer's state, one directory per container.
func (s *supervisor) lcDir() string { return filepath.Join(s.dir, "libcontainer") }

// run makes and starts a container.
func (s *supervisor) run(id string, r shim.Run) (*container, error) {
	if r.Spec == nil || r.Spec.Process == nil || r.Spec.Linux == nil {
		return nil, errors.New("run container: the spec has no process or no linux section")
	}
	ctr, err := s.reserve(id)
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
	openTargetPIDNamespace, err := s.openTargetPIDNamespace(r.Spec)
	if err != nil {
		s.discard(ctr)
		return nil, err
	}
	defer shim.CloseAll([]*os.File{openTargetPIDNamespace})
	release, err := s.freezeTracers(ctr, joinedPIDNamespace(r.Spec))
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
		s.destroy(ctr)
		s.discard(ctr)
		return nil, err
	}
	return ctr, nil
}

// openTargetPIDNamespace opens the PID namespace of the container that the spec names (shim.PIDNamespaceOf), and
// replaces the path in the spec by that of the descriptor. It returns nil when the spec names none.
func (s *supervisor) openTargetPIDNamespace(spec *specs.Spec) (*os.File, error) {
	for i := range spec.Linux.Namespaces {
		linuxNamespace := &spec.Linux.Namespaces[i]
		id, ok := shim.PIDNamespaceOwner(linuxNamespace.Path)
		if !ok || linuxNamespace.Type != specs.PIDNamespace {
			continue
		}
		c, err := s.running(id)
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
	log, err := logfile.Open(ctr.state.LogPath, s.logPolicy())
	if err != nil {
		return err
	}
	ctr.io = &stdio{}
	p := process(spec.Process)
	p.Init = true
	var console *os.File
	var ends [3]*os.File
	if ctr.state.Terminal {
		console, p.ConsoleSocket, err = socketPair()
	} else {
		ends, err = ctr.connectFIFOs(p, ownDev(spec))
	}
	if err != nil {
		_ = log.Close(time.Now()) // nothing was written
		return err
	}
	ctr.io.log = log
	defer func() { shim.CloseAll([]*os.File{ends[0], ends[1], ends[2], p.ConsoleSocket, console}) }()
	if err := s.start(ctr, spec, p); err != nil {
		return err
	}
	if console != nil {
		if ctr.io.out[0], err = receiveFile(console); err == nil {
			ctr.io.in, err = dup(ctr.io.out[0])
		}
	}
	if err == nil {
		ctr.state.PID, err = p.Pid()
	}
	if err == nil {
		err = s.watchOutput(ctr)
	}
	if err != nil {
		_ = p.Signal(unix.SIGKILL)
		_, _ = p.Wait()
		s.destroy(ctr)
	}
	return err
}

// connectFIFOs connects a process without a terminal to the container's FIFOs.
func (c *container) connectFIFOs(process *libcontainer.Process, ownDev bool) ([3]*os.File, error) {
	if err := fifos(c.dir, c.state.Stdin); err != nil {
		return [3]*os.File{}, err
	}
	io, err := openFIFOs(c.dir, c.state.Stdin)
	if err != nil {
		return [3]*os.File{}, err
	}
	ends, err := childEnds(c.dir, c.state.Stdin, ownDev)
	if err != nil {
		io.close()
		return ends, err
	}
	if io.in != nil {
		// Reopen it for writing only, so that the container reads end of file when it is closed.
		w, err := openRaw(filepath.Join(c.dir, "stdin"), unix.O_WRONLY|unix.O_NONBLOCK)
		if err != nil {
			io.close()
			shim.CloseAll(ends[:])
			return ends, err
		}
		_ = io.in.Close()
		io.in = w
	}
	c.io.in = io.in
	c.io.out = io.out
	process.Stdin = ends[0]
	process.Stdout = ends[1]
	process.Stderr = ends[2]
	return ends, nil
}

func (s *supervisor) start(ctr *container, spec *specs.Spec, process *libcontainer.Process) error {
	config, err := s.convert(ctr.state.ID, spec)
	if err != nil {
		return fmt.Errorf("read container spec: %w", err)
	}
	if err := chownStreams(config, process); err != nil {
		return err
	}
	lc, err := libcontainer.Create(s.lcDir(), ctr.state.ID, config)
	if err != nil {
		return fmt.Errorf("create container: %w", err)
	}
	ctr.state.Started = time.Now()
	if err := lc.Run(process); err != nil {
		_ = process.Signal(unix.SIGKILL) // init may wait for its start
		_, _ = process.Wait()
		if derr := lc.Destroy(); derr != nil {
			s.log.Printf("container %s: clean up after a failed start: %v", ctr.state.ID, derr)
		}
		return startError(err)
	}
	return nil
}

// convert translates an OCI spec to libcontainer's configuration. The library is written for one container a
// process: it puts its own list of default devices into the configuration, and then changes their owners to the
// root of the container's user namespace. So each configuration gets a list of its own.
func (s *supervisor) convert(id string, spec *specs.Spec) (*configs.Config, error) {
	s.converting.Lock()
	defer s.converting.Unlock()
	defaults := specconv.AllowedDevices
	defer func() { specconv.AllowedDevices = defaults }()
	specconv.AllowedDevices = make([]*devices.Device, len(defaults))
	for i, d := range defaults {
		own := *d
		specconv.AllowedDevices[i] = &own
	}
	return specconv.CreateLibcontainerConfig(&specconv.CreateOpts{CgroupName: id, Spec: spec})
}

// startError shortens libcontainer's error to the form that runc's users know: the cause follows "unable to start
// container process".
func startError(err error) error {
	return errors.New(strings.Replace(err.Error(), ": error during container init: ", ": ", 1))
}

// process translates an OCI process to libcontainer's.
func process(sp *specs.Process) *libcontainer.Process {
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
	return rawFile(fds[0], "terminal"), nil
}

func dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate descriptor: %w", err)
	}
	return rawFile(fd, f.Name()), nil
}
