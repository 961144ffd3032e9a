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

// nullLimit bounds the opening of /dev/null in a container: its file systems may be FUSE file systems that do not
// answer.
const nullLimit = 2 * time.Second

// nullDevice opens the container's /dev/null for a process that runs in it. It must not be the host's: root in the
// container could change its mode and owner.
func (c *container) nullDevice() (*os.File, error) {
	if c.openingNull.Swap(true) {
		return nil, errors.New("open the container's /dev/null: an earlier attempt hangs")
	}
	type result struct {
		f   *os.File
		err error
	}
	found := make(chan result) // unbuffered: a result that comes too late is closed below
	gone := make(chan struct{})
	defer close(gone)
	pid := c.snapshot().PID
	go func() { // ends when the file system answers, or when the container has ended
		var f *os.File
		err := c.retryDuringExecve(func() (err error) {
			f, err = openNull(pid)
			return err
		})
		c.openingNull.Store(false)
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
		// The container has not been reaped, so pid was not reused when the device was opened.
		if err := c.signal(0); err != nil {
			_ = r.f.Close() // nothing was written
			return nil, err
		}
		return r.f, nil
	case <-time.After(nullLimit):
		return nil, errors.New("open the container's /dev/null: its file system does not answer")
	}
}

// openNull opens /dev/null below the root directory of process pid. It opens nothing but the null device.
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

// ownDev reports whether libcontainer makes the container's /dev. Then it also replaces the host's null device on the
// standard input of a starting container by the container's.
func ownDev(spec *specs.Spec) bool {
	return !slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool {
		bind := m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
		return bind && filepath.Clean("/"+m.Destination) == "/dev"
	})
}
