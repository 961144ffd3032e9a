// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"keelson/runtime/shim"
	"keelson/runtime/shim/logfile"
	"keelson/runtime/shim/streams"
)

// handoff is the state that an upgrade passes to the new program in the same process: numbers of open descriptors, and
// state that is not on disk. The containers stay children of the process. Newer versions read it, so fields are only
// added, never changed.
type handoff struct {
	Listener   int           `json:"listener"`
	Lock       int           `json:"lock"`
	Containers []handoffIO   `json:"containers"`
	Sessions   []handoffExec `json:"sessions"`

	file    *os.File   // memfd with the encoded handoff
	files   []*os.File // opened by the old program for the handoff
	keep    []int      // descriptors that stay open for the new program
	adopted []*session // sessions that the new program has taken over
}

type handoffIO struct {
	ID      string    `json:"id"`
	In      int       `json:"in"`  // -1: none
	Out     [2]int    `json:"out"` // -1: none
	Pending [2][]byte `json:"pending"`
}

type handoffExec struct {
	ID   string `json:"id"`
	PID  int    `json:"pid"`
	Conn int    `json:"conn"`
}

const handoffFlag = "--handoff"

// readHandoff reads the handoff of the old program; nil when there is none.
func readHandoff(args []string) (*handoff, error) {
	if len(args) != 2 || args[0] != handoffFlag {
		return nil, nil
	}
	fd, err := strconv.Atoi(args[1])
	if err != nil {
		return nil, fmt.Errorf("read handoff descriptor %q: %w", args[1], err)
	}
	f := os.NewFile(uintptr(fd), "handoff")
	defer func() { _ = f.Close() }()
	var h handoff
	if err := json.NewDecoder(io.NewSectionReader(f, 0, 1<<30)).Decode(&h); err != nil {
		return nil, fmt.Errorf("read handoff: %w", err)
	}
	return &h, nil
}

// restoreHandoff takes over the descriptors, containers and sessions of the old program.
func (s *supervisor) restoreHandoff(h *handoff) error {
	s.lock = received(h.Lock, "lock")
	s.listener = received(h.Listener, "listener")
	if err := unix.SetNonblock(h.Listener, true); err != nil { // an earlier program may have made it blocking
		return fmt.Errorf("take over listener: %w", err)
	}
	handed := map[string]handoffIO{}
	for _, c := range h.Containers {
		handed[c.ID] = c
	}
	err := s.table.read(func(ctr *container) error {
		io, ok := handed[ctr.state.ID]
		if !ok {
			return s.restore(ctr)
		}
		output, err := s.openStreams(ctr)
		if err != nil {
			return err
		}
		output.Restore(streams.State{
			In:      received(io.In, "stdin"),
			Out:     [2]*os.File{received(io.Out[0], "stdout"), received(io.Out[1], "stderr")},
			Pending: io.Pending,
		})
		return s.resume(ctr)
	})
	if err != nil {
		return err
	}
	for _, e := range h.Sessions {
		unix.CloseOnExec(e.Conn)
		uc, err := unixConn(e.Conn)
		if err != nil {
			return fmt.Errorf("take over exec: %w", err)
		}
		x, err := s.execs.add(e.ID, e.PID, shim.NewConn(uc))
		if err != nil {
			return err
		}
		h.adopted = append(h.adopted, x)
	}
	return nil
}

func received(fd int, name string) *os.File {
	if fd < 0 {
		return nil
	}
	unix.CloseOnExec(fd)
	return streams.RawFile(fd, name)
}

// openStreams opens the log of a running container again, for streams that are still to be opened.
func (s *supervisor) openStreams(ctr *container) (*streams.Streams, error) {
	log, err := logfile.Open(ctr.state.LogPath, s.settings.logPolicy())
	if err != nil {
		// The log directory may have been removed. The container keeps running without a log.
		s.log.Printf("container %s: %v", ctr.state.ID, err)
		if log, err = logfile.Open("", s.settings.logPolicy()); err != nil {
			return nil, err
		}
	}
	ctr.io = s.output.New(ctr.dir, log)
	return ctr.io, nil
}

// resume copies a running container's output again, and watches for its exit.
func (s *supervisor) resume(ctr *container) error {
	if err := ctr.io.Start(); err != nil {
		return err
	}
	return s.watchExit(ctr)
}

// upgrade executes the new program in this process. It first waits, by gate, until no exit is being handled and
// every accepted call is answered. If the execution fails, this program continues.
func (s *supervisor) upgrade(conn caller, req shim.Request) {
	var u shim.Upgrade
	err := json.Unmarshal(req.Arg, &u)
	var program *os.File
	if err == nil {
		program, err = sealed(u.Path)
	}
	if err != nil {
		conn.fail(fmt.Errorf("upgrade: %w", err))
		return
	}
	defer func() { _ = program.Close() }()
	conn.leave()
	s.gate.Lock()
	defer s.gate.Unlock()
	h, err := s.writeHandoff()
	defer h.abandon()
	if err != nil {
		conn.fail(fmt.Errorf("upgrade: %w", err))
		return
	}
	if err := reply(conn.Conn, nil); err != nil {
		s.log.Printf("upgrade: %v", err)
	}
	args := []string{os.Args[0], "supervise", s.dir, handoffFlag, strconv.Itoa(fdNumber(h.file))}
	if err := unix.Exec(fmt.Sprintf("/proc/self/fd/%d", program.Fd()), args, os.Environ()); err != nil {
		s.log.Printf("upgrade: execute %s: %v; continuing with the old program", u.Path, err)
	}
}

func sealed(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return clone(f)
}

// writeHandoff writes the handoff and makes its descriptors inheritable. The caller holds gate for writing, and
// calls abandon on the handoff, which is never nil, if this program continues.
func (s *supervisor) writeHandoff() (*handoff, error) {
	h := &handoff{Listener: fdNumber(s.listener), Lock: fdNumber(s.lock)}
	h.keep = []int{h.Listener, h.Lock}
	for _, c := range s.table.all() {
		if c.io == nil {
			continue
		}
		state, open := c.io.State()
		if !open {
			continue
		}
		io := handoffIO{
			ID:      c.state.ID,
			In:      fdNumber(state.In),
			Out:     [2]int{fdNumber(state.Out[0]), fdNumber(state.Out[1])},
			Pending: state.Pending,
		}
		h.Containers = append(h.Containers, io)
		h.keep = append(h.keep, io.In, io.Out[0], io.Out[1])
	}
	for _, x := range s.execs.all() {
		f, err := x.conn.Unix().File()
		if err != nil {
			return h, err
		}
		h.files = append(h.files, f)
		h.Sessions = append(h.Sessions, handoffExec{ID: x.id, PID: x.process.PID(), Conn: fdNumber(f)})
		h.keep = append(h.keep, fdNumber(f))
	}
	fd, err := unix.MemfdCreate("handoff", unix.MFD_CLOEXEC)
	if err != nil {
		return h, fmt.Errorf("make handoff: %w", err)
	}
	h.file = os.NewFile(uintptr(fd), "handoff")
	h.files = append(h.files, h.file)
	h.keep = append(h.keep, fd)
	body, err := json.Marshal(h)
	if err == nil {
		_, err = h.file.WriteAt(body, 0)
	}
	if err != nil {
		return h, fmt.Errorf("write handoff: %w", err)
	}
	return h, h.inheritable(true)
}

// inheritable sets whether the handed-over descriptors stay open across execve.
func (h *handoff) inheritable(yes bool) error {
	flags := unix.FD_CLOEXEC
	if yes {
		flags = 0
	}
	for _, k := range h.keep {
		if k < 0 {
			continue
		}
		if _, err := unix.FcntlInt(uintptr(k), unix.F_SETFD, flags); err != nil {
			return fmt.Errorf("keep descriptor: %w", err)
		}
	}
	return nil
}

// abandon undoes writeHandoff, so that containers do not inherit the descriptors.
func (h *handoff) abandon() {
	_ = h.inheritable(false) // the descriptors are open
	shim.CloseAll(h.files)
}

// fdNumber returns a file's descriptor; -1 for nil. Unlike Fd, it does not make the descriptor blocking.
func fdNumber(f *os.File) int {
	if f == nil {
		return -1
	}
	fd := -1
	if rc, err := f.SyscallConn(); err == nil {
		_ = rc.Control(func(n uintptr) { fd = int(n) }) // a closed file gives -1
	}
	return fd
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// setName sets the process name that ps shows; name ends with a zero byte.
func setName(name []byte) error {
	// The name of the first thread is that of the process; Go's main goroutine may run on another one.
	if err := os.WriteFile(filepath.Join("/proc/self/task", strconv.Itoa(os.Getpid()), "comm"), name[:len(name)-1],
		0); err == nil {
		return nil
	}
	// prctl takes a pointer
	if err := unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0); err != nil {
		return fmt.Errorf("set process name: %w", err)
	}
	return nil
}

// redirectStdout replaces standard output by /dev/null. That closes the pipe, which signals to the starting process
// that the supervisor is ready.
func redirectStdout() error {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	if err := unix.Dup3(int(null.Fd()), 1, 0); err != nil {
		return errors.Join(errors.New("redirect standard output"), err)
	}
	return nil
}
