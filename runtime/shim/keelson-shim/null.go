// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"keelson/runtime/shim"
)

// nullLimit bounds the search for /dev/null in a container, whose file systems may be the container's own programs (FUSE).
const nullLimit = 2 * time.Second

// null opens the container's own /dev/null for a process that runs in it. The host's must not get into a container: who is root
// there may change its mode and owner.
func (c *container) null() (*os.File, error) {
	if c.seeking.Swap(true) {
		return nil, errors.New("open the container's /dev/null: an earlier attempt hangs")
	}
	type result struct {
		f   *os.File
		err error
	}
	found := make(chan result) // no buffer: who does not wait any more gets nothing
	gone := make(chan struct{})
	defer close(gone)
	pid := c.snapshot().PID
	go func() { // ends when the container's file systems answer, at the latest when the container has ended
		var f *os.File
		err := c.pastExecve(func() (err error) {
			f, err = openNull(pid)
			return err
		})
		c.seeking.Store(false)
		select {
		case found <- result{f, err}:
		case <-gone:
			shim.CloseAll([]*os.File{f})
		}
	}()
	select {
	case r := <-found:
		if r.err != nil {
			return nil, fmt.Errorf("open the container's /dev/null: %w", r.err)
		}
		// It is the container's if that was alive when it was opened: pid has named no other process meanwhile.
		if err := c.signal(0); err != nil {
			_ = r.f.Close() // nothing was written
			return nil, err
		}
		return r.f, nil
	case <-time.After(nullLimit):
		return nil, errors.New("open the container's /dev/null: its file system does not answer")
	}
}

// openNull resolves /dev/null as the process pid would, without leaving its root, and takes nothing but the null device.
func openNull(pid int) (*os.File, error) {
	root, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, errInExecve
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(root) }()
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	at, err := unix.Openat2(root, "dev/null", &how)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(at) }()
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(1, 3) {
		return nil, errors.New("it is another file")
	}
	return os.OpenFile("/proc/self/fd/"+strconv.Itoa(at), os.O_RDWR, 0)
}

// nothing is what a process reads that has no standard input where there is no null device to give it.
func nothing() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_ = w.Close() // nothing was written
	return r, nil
}

// ownDev tells whether libcontainer makes the container's /dev: then it replaces the null device that a starting container gets for
// its input by the container's own.
func ownDev(spec *specs.Spec) bool {
	return !slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool {
		bind := m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
		return bind && filepath.Clean("/"+m.Destination) == "/dev"
	})
}
