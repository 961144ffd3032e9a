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
)

// handoff is what a program hands to the one that replaces it in the same process: numbers of open descriptors, and what is not on
// disk. Children stay children, so their exits are waited for as before. Later versions read it: fields are only ever added.
type handoff struct {
	Listener   int          `json:"listener"`
	Lock       int          `json:"lock"`
	Containers []handedIO   `json:"containers"`
	Sessions   []handedExec `json:"sessions"`

	file    *os.File   // holds the handoff
	files   []*os.File // the sender's own descriptors, open until it is taken or abandoned
	keep    []int      // descriptors that the next program gets
	adopted []*session // the receiver's, made by inherit
}

type handedIO struct {
	ID      string    `json:"id"`
	In      int       `json:"in"`  // -1: none
	Out     [2]int    `json:"out"` // -1: none
	Pending [2][]byte `json:"pending"`
}

type handedExec struct {
	ID   string `json:"id"`
	PID  int    `json:"pid"`
	Conn int    `json:"conn"`
}

const handoffFlag = "--handoff"

// takeOver reads the state that an earlier program left; nil when there is none.
func takeOver(args []string) (*handoff, error) {
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

// inherit goes on where the earlier program stopped.
func (s *supervisor) inherit(h *handoff) error {
	s.lock = received(h.Lock, "lock")
	s.listener = received(h.Listener, "listener")
	if err := unix.SetNonblock(h.Listener, true); err != nil { // an earlier program may have made it blocking
		return fmt.Errorf("take over listener: %w", err)
	}
	handed := map[string]handedIO{}
	for _, c := range h.Containers {
		handed[c.ID] = c
	}
	err := s.eachState(func(c *container) error {
		io, ok := handed[c.state.ID]
		if !ok {
			return s.settle(c)
		}
		c.io = &stdio{in: received(io.In, "stdin"), out: [2]*os.File{received(io.Out[0], "stdout"), received(io.Out[1], "stderr")}}
		return s.resume(c, io.Pending)
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
		x := &session{id: e.ID, pid: e.PID, conn: shim.NewConn(uc)}
		if err := s.enlist(x); err != nil {
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
	return rawFile(fd, name)
}

// resume connects a running container's streams to its log again.
func (s *supervisor) resume(c *container, pending [2][]byte) error {
	log, err := logfile.Open(c.state.LogPath, s.logPolicy())
	if err != nil {
		// Its directory may be gone; the container is not to blame.
		s.log.Printf("container %s: %v", c.state.ID, err)
		if log, err = logfile.Open("", s.logPolicy()); err != nil {
			return err
		}
	}
	log.Restore(pending)
	c.io.log = log
	if err := s.pump(c); err != nil {
		return err
	}
	return s.follow(c)
}

// upgrade replaces the program. Nothing is lost: it waits until every container is at rest and every accepted call answered, and
// only a new program that can be executed takes over. When that fails, this one goes on.
func (s *supervisor) upgrade(conn caller, req shim.Request) {
	var u shim.Upgrade
	err := json.Unmarshal(req.Arg, &u)
	var program *os.File
	if err == nil {
		program, err = sealed(u.Path)
	}
	if err != nil {
		s.fail(conn.Conn, fmt.Errorf("upgrade: %w", err))
		return
	}
	defer func() { _ = program.Close() }()
	conn.leave()
	s.gate.Lock()
	defer s.gate.Unlock()
	h, err := s.prepare()
	defer h.abandon()
	if err != nil {
		s.fail(conn.Conn, fmt.Errorf("upgrade: %w", err))
		return
	}
	if err := reply(conn.Conn, nil); err != nil {
		s.log.Printf("upgrade: %v", err)
	}
	args := []string{os.Args[0], "supervise", s.dir, handoffFlag, strconv.Itoa(number(h.file))}
	if err := unix.Exec(fmt.Sprintf("/proc/self/fd/%d", program.Fd()), args, os.Environ()); err != nil {
		s.log.Printf("upgrade: execute %s: %v; going on with the old program", u.Path, err)
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

// prepare writes the handoff and lets its descriptors through the execution. It runs with the gate closed. The caller abandons the
// handoff, which is never nil, when it is still there.
func (s *supervisor) prepare() (*handoff, error) {
	h := &handoff{Listener: number(s.listener), Lock: number(s.lock)}
	h.keep = []int{h.Listener, h.Lock}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.containers {
		if c.io == nil || c.io.log == nil {
			continue
		}
		io := handedIO{ID: c.state.ID, In: number(c.io.in), Out: [2]int{number(c.io.out[0]), number(c.io.out[1])}, Pending: c.io.log.Pending()}
		h.Containers = append(h.Containers, io)
		h.keep = append(h.keep, io.In, io.Out[0], io.Out[1])
	}
	for x := range s.sessions {
		f, err := x.conn.Unix().File()
		if err != nil {
			return h, err
		}
		h.files = append(h.files, f)
		h.Sessions = append(h.Sessions, handedExec{ID: x.id, PID: x.pid, Conn: number(f)})
		h.keep = append(h.keep, number(f))
	}
	fd, err := unix.MemfdCreate("handoff", unix.MFD_CLOEXEC)
	if err != nil {
		return h, fmt.Errorf("make handoff: %w", err)
	}
	h.file = os.NewFile(uintptr(fd), "handoff")
	h.files, h.keep = append(h.files, h.file), append(h.keep, fd)
	body, err := json.Marshal(h)
	if err == nil {
		_, err = h.file.WriteAt(body, 0)
	}
	if err != nil {
		return h, fmt.Errorf("write handoff: %w", err)
	}
	return h, h.inheritable(true)
}

// inheritable says whether the descriptors that are handed over stay open when another program is executed.
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

// abandon takes back a handoff that was not taken: containers that start from now on must not inherit from it.
func (h *handoff) abandon() {
	_ = h.inheritable(false) // the descriptors are open
	shim.CloseAll(h.files)
}

// number is a descriptor's number without the side effect of Fd, which would make it blocking.
func number(f *os.File) int {
	if f == nil {
		return -1
	}
	fd := -1
	if rc, err := f.SyscallConn(); err == nil {
		_ = rc.Control(func(n uintptr) { fd = int(n) }) // a closed file is like none
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

// setName sets what ps shows; name ends with a zero.
func setName(name []byte) error {
	// The first thread's name is the process's; Go's main goroutine may be on another by now.
	if err := os.WriteFile(filepath.Join("/proc/self/task", strconv.Itoa(os.Getpid()), "comm"), name[:len(name)-1], 0); err == nil {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0); err != nil { //nolint:gosec // prctl takes a pointer
		return fmt.Errorf("set process name: %w", err)
	}
	return nil
}

// redirectStdout closes the pipe that standard output was, so that whoever started us reads its end.
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
