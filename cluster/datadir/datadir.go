// SPDX-License-Identifier: Apache-2.0

// Package datadir is the directory that holds everything of one cluster: the names of its entries, its lock, its
// reserve of disk space, which store it uses, and the kubeconfig in it. Everything below cluster that reads or writes a
// file of a cluster finds it here. It opens no store and no key, and never asks a server.
package datadir

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"keelson/store/embed"
)

// Dir is the directory that holds everything of one cluster. Its layout:
//
//	kubeconfig        the administrator's kubeconfig, 0600
//	keelson.pid       locked by the running instance; node.pid by what runs the node
//	keelson.log       the running instance's log
//	pki/ store/       keys and certificates; the objects
//	store-created     marks that a store was created here
//	store-used        which store holds the objects: the embedded one, or an etcd
//	store.migrated-*  the embedded store, after its objects were moved to etcd
//	runtime/ network/ images, containers, addresses
//	kubelet/          the pods' volumes
//	node-name         the name of the node that has run here
//	reserve           room on the disk for a start that finds it full
//	wireguard.key     the node's private key of WireGuard, 0600
//	manifests/        static pods
//	volumes/          local volumes of PersistentVolumeClaims
type Dir string

// Kubeconfig and the other methods return the paths of the entries.
func (d Dir) Kubeconfig() string { return filepath.Join(string(d), "kubeconfig") }

// PidFile is locked while an instance runs on this directory.
func (d Dir) PidFile() string { return filepath.Join(string(d), "keelson.pid") }

// NodePidFile is locked while a process runs this directory's node: `keelson up` or `keelson kubelet`.
func (d Dir) NodePidFile() string { return filepath.Join(string(d), "node.pid") }

// Log is the log file of the running instance.
func (d Dir) Log() string { return filepath.Join(string(d), "keelson.log") }

// Sub returns the path of an entry.
func (d Dir) Sub(name string) string { return filepath.Join(string(d), name) }

// ID is a short name for this cluster's kernel objects (bridge, cgroup, nftables table). Several clusters can share a
// machine.
func (d Dir) ID() string {
	sum := sha256.Sum256([]byte(d))
	return hex.EncodeToString(sum[:4])
}

// Prepare creates the directory (0700) and returns its absolute path without symbolic links. The new directories are
// synced to disk.
func (d Dir) Prepare() (Dir, error) {
	made := ""
	for p := filepath.Clean(string(d)); !Exists(p) && p != filepath.Dir(p); p = filepath.Dir(p) {
		made = p
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return "", notADirectory(string(d), fmt.Errorf("data directory: %w", err))
	}
	if made != "" {
		for p := filepath.Dir(filepath.Clean(string(d))); ; p = filepath.Dir(p) {
			if err := SyncDir(p); err != nil && !errors.Is(err, os.ErrPermission) {
				return "", fmt.Errorf("data directory: %w", err)
			}
			if p == filepath.Dir(made) {
				break
			}
		}
	}
	return d.Resolve()
}

// IsDirectory returns an error if the path, or one above it, is a file. A path that does not exist is none.
func (d Dir) IsDirectory() error {
	_, err := os.Stat(d.PidFile())
	if !errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	return notADirectory(string(d), err)
}

// notADirectory says so of a path, or of one above it, that is a file; other errors stay as they are.
func notADirectory(path string, err error) error {
	if !errors.Is(err, syscall.ENOTDIR) {
		return err
	}
	for p := filepath.Clean(path); p != filepath.Dir(p); p = filepath.Dir(p) {
		if info, err := os.Stat(p); err == nil && !info.IsDir() {
			return fmt.Errorf("%s is a file and not a directory: name another data directory with --data-dir", p)
		}
	}
	return err
}

// Fresh reports whether neither a cluster nor a node has run here yet.
func (d Dir) Fresh() bool {
	for _, name := range []string{"store", storeUsedFile, "runtime", EndpointFile} {
		if Exists(d.Sub(name)) {
			return false
		}
	}
	return true
}

// RestoredOnly reports whether a restore filled the directory and nothing has run on it yet: it holds only a closed
// store and keys.
func (d Dir) RestoredOnly() bool {
	all, err := os.ReadDir(string(d))
	other := slices.ContainsFunc(all, func(e os.DirEntry) bool { return e.Name() != "store" && e.Name() != "pki" })
	return err == nil && !other && embed.Closed(d.Sub("store"))
}

// Served reports whether an API server has run here or its objects are here. Its keys were made then, too.
func (d Dir) Served() bool { return Exists(d.Sub("store")) || Exists(d.Kubeconfig()) }

// Empty reports whether the directory has no entry of a cluster.
func (d Dir) Empty() bool {
	return len(d.Entries()) == 0
}

// UndoNode deletes what a failed kubelet start has created in an empty directory, unless a server uses it by now.
func (d Dir) UndoNode() error {
	lock, err := d.Lock()
	if busy := (*BusyError)(nil); errors.As(err, &busy) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if Exists(d.Kubeconfig()) {
		return nil
	}
	return d.Erase()
}

// Resolve returns the absolute path of the directory, without symbolic links.
func (d Dir) Resolve() (Dir, error) {
	abs, err := filepath.Abs(string(d))
	if err != nil {
		return "", fmt.Errorf("data directory: %w", err)
	}
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return "", fmt.Errorf("data directory: %w", err)
	}
	return Dir(abs), nil
}

// Named resolves the directory for names of kernel objects, which must not depend on the working directory. The
// directory need not exist.
func (d Dir) Named() Dir {
	if found, err := d.Resolve(); err == nil {
		return found
	}
	if abs, err := filepath.Abs(string(d)); err == nil {
		return Dir(abs)
	}
	return d
}

// BusyError says that an instance already runs on the directory.
type BusyError struct {
	Dir Dir
	Pid int
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("%s belongs to a running instance (pid %d): use it, stop it with `keelson down --data-dir "+
		"%s`, or choose another --data-dir", e.Dir, e.Pid, e.Dir)
}

// Lock locks the directory for this process and writes its pid. The lock ends with the process, or with the returned
// closer. The error is a *BusyError when another instance holds it.
func (d Dir) Lock() (io.Closer, error) { return d.lock(d.PidFile(), d.Reserve().use) }

// LockNode does the same for the directory's node. It refuses a copy of another node's directory.
func (d Dir) LockNode() (io.Closer, error) {
	lock, err := d.lock(d.NodePidFile(), d.Reserve().use)
	if err != nil {
		return nil, err
	}
	if err := d.keepHome(); err != nil {
		_ = lock.Close() // the refusal matters
		return nil, err
	}
	return lock, nil
}

// lock calls locked before it writes to the file.
func (d Dir) lock(path string, locked func() error) (io.Closer, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if errors.Is(err, syscall.ENOSPC) && d.Reserve().spareInode() {
		file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	}
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	if err := tryLock(file, syscall.LOCK_EX, dyingWait); err != nil {
		pid := readPid(file)
		_ = file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, &BusyError{Dir: d, Pid: pid}
		}
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	err = locked()
	if err == nil {
		err = file.Truncate(0)
	}
	if err == nil {
		_, err = file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return file, nil
}

// Running returns the pid of the instance that holds the lock; 0: none.
func (d Dir) Running() (int, error) { return Holder(d.PidFile(), 0) }

// Occupied returns a *BusyError if an instance holds the lock. It waits for one that is being killed.
func (d Dir) Occupied() error {
	pid, err := Holder(d.PidFile(), dyingWait)
	if err == nil && pid != 0 {
		return &BusyError{Dir: d, Pid: pid}
	}
	return err
}

// Holder returns the pid that holds the lock of a file after atLeast; 0: none.
func Holder(path string, atLeast time.Duration) (int, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if DiskFailed(err) {
		return openedBy(path), nil
	}
	if err != nil {
		return 0, notADirectory(path, fmt.Errorf("read pid file: %w", Unreadable(err)))
	}
	defer func() { _ = f.Close() }()
	err = tryLock(f, syscall.LOCK_SH, atLeast)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return readPid(f), nil
	}
	if err != nil {
		return 0, fmt.Errorf("read pid file: %w", err)
	}
	return 0, nil
}

// How long a lock is waited for whose holder was killed, and one whose holder looks alive: a process that was killed an
// instant ago does.
const (
	lockWait  = 10 * time.Second
	dyingWait = time.Second
)

// tryLock locks a pid file, EWOULDBLOCK if a running process holds it. A killed process holds its locks until its last
// thread ends, and a reader of the file holds one for a moment: tryLock waits for both, at least for atLeast.
func tryLock(f *os.File, how int, atLeast time.Duration) error {
	begin := time.Now()
	for ; ; time.Sleep(5 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		waited := time.Since(begin)
		if !errors.Is(err, syscall.EWOULDBLOCK) || waited > lockWait || waited > atLeast && Alive(readPid(f)) {
			return err
		}
	}
}

// Alive reports whether a process runs. A killed process that still exits does not.
func Alive(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(b[bytes.LastIndexByte(b, ')')+1:]), " ")
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

func readPid(f *os.File) int {
	b := make([]byte, 32)
	n, _ := f.ReadAt(b, 0)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	return pid
}

// WaitGone polls until no process holds the lock. Only `keelson down` uses it.
func WaitGone(path string, limit time.Duration) error {
	end := time.Now().Add(limit)
	for {
		pid, err := Holder(path, 0)
		if err != nil || pid == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("instance %d did not stop within %s", pid, limit)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
