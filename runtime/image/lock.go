// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The locks of the store are held for milliseconds. A process that is stopped (by a debugger, or by ^Z on an import)
// may hold one forever, and no pull or container would start on the node. So no process waits longer than lockPatience:
// helper processes of this store that hold the lock are killed then, and another holder is named in the error.
const lockPatience = 20 * time.Second

// errLocked is the error of a lock that another process does not give back.
var errLocked = errors.New("the image store is locked")

// The files of the locks (see the package comment).
const (
	busyLock  = "busy.lock"
	indexLock = "index.lock"
)

// locks are the store's locks, which processes share.
type locks struct {
	paths     paths
	patience  time.Duration
	processes *processes
}

// lock takes a flock on a file of the store, for a moment; the returned function unlocks.
func (l *locks) lock(name string, how int) (unlock func(), err error) {
	path := l.paths.path(name)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = l.await(file, how)
	if errors.Is(err, errLocked) && l.processes.killHolders(path) {
		err = l.await(file, how)
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return func() { _ = file.Close() }, nil
}

// await takes a flock on file within the store's patience. It asks again and again: a thread that waits in flock(2)
// could not be called back.
func (l *locks) await(file *os.File, how int) error {
	const shortest, longest = time.Millisecond, 20 * time.Millisecond
	end := time.Now().Add(l.patience)
	for pause := shortest; ; pause = min(2*pause, longest) {
		err := flock(file, how|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w: %s is held by %s for more than %s: let it finish, or end it", errLocked, file.Name(),
				holders(file.Name()), l.patience)
		}
		time.Sleep(pause)
	}
}

// holders names the processes that hold a flock on a file.
func holders(path string) string {
	pids, err := lockHolders(path)
	if err != nil || len(pids) == 0 {
		return "another process"
	}
	return "process " + strings.Trim(fmt.Sprint(pids), "[]")
}

// lockHolders returns the processes that hold a flock on a file, from /proc/locks. Lines are "1: FLOCK ADVISORY WRITE
// PID MAJOR:MINOR:INODE 0 EOF"; those of waiting processes have an arrow before FLOCK.
func lockHolders(path string) ([]int, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", path, err)
	}
	table, err := os.ReadFile("/proc/locks")
	if err != nil {
		return nil, err
	}
	inode := ":" + strconv.FormatUint(st.Ino, 10)
	var pids []int
	for lines := bufio.NewScanner(bytes.NewReader(table)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[1] != "FLOCK" || !strings.HasSuffix(fields[5], inode) {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// processes are the helper processes that run, also those that end.
type processes struct {
	log *slog.Logger

	mu      sync.Mutex
	running map[*helper]struct{}
}

func newProcesses(log *slog.Logger) *processes {
	return &processes{log: log, running: map[*helper]struct{}{}}
}

func (p *processes) add(h *helper) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running[h] = struct{}{}
}

func (p *processes) remove(h *helper) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.running, h)
}

func (p *processes) all() []*helper {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.running))
}

// killHolders kills helpers that hold a flock on one of the files, and reports whether there are any. Their pulls fail,
// and what they made is collected, as with any helper that ends.
func (p *processes) killHolders(paths ...string) (killed bool) {
	running := p.all()
	if len(running) == 0 {
		return false
	}
	var pids []int
	for _, path := range paths {
		more, err := lockHolders(path)
		if err != nil {
			p.log.Warn("holders of a lock of the image store are unknown", "path", path, "error", err)
		}
		pids = append(pids, more...)
	}
	for _, h := range running {
		if slices.Contains(pids, h.cmd.Process.Pid) {
			p.log.Warn("image helper holds a lock of the image store for too long and is killed", "pid",
				h.cmd.Process.Pid)
			h.stuck.Store(true)
			h.kill()
			killed = true
		}
	}
	return killed
}
