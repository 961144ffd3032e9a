// SPDX-License-Identifier: Apache-2.0

package cluster

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

	"keelson/lib/logrotate"
	"keelson/store/embed"
)

// DataDir is the directory that holds everything of one cluster. Its layout:
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
type DataDir string

// Kubeconfig and the other methods return the paths of the entries.
func (d DataDir) Kubeconfig() string { return filepath.Join(string(d), "kubeconfig") }

// PidFile is locked while an instance runs on this directory.
func (d DataDir) PidFile() string { return filepath.Join(string(d), "keelson.pid") }

// NodePidFile is locked while a process runs this directory's node: `keelson up` or `keelson kubelet`.
func (d DataDir) NodePidFile() string { return filepath.Join(string(d), "node.pid") }

// Log is the log file of the running instance.
func (d DataDir) Log() string { return filepath.Join(string(d), "keelson.log") }

// Sub returns the path of an entry.
func (d DataDir) Sub(name string) string { return filepath.Join(string(d), name) }

// ID is a short name for this cluster's kernel objects (bridge, cgroup, nftables table). Several clusters can share a
// machine.
func (d DataDir) ID() string {
	sum := sha256.Sum256([]byte(d))
	return hex.EncodeToString(sum[:4])
}

// Prepare creates the directory (0700) and returns its absolute path without symbolic links. The new directories are
// synced to disk.
func (d DataDir) Prepare() (DataDir, error) {
	made := ""
	for p := filepath.Clean(string(d)); !exists(p) && p != filepath.Dir(p); p = filepath.Dir(p) {
		made = p
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return "", notADirectory(string(d), fmt.Errorf("data directory: %w", err))
	}
	if made != "" {
		for p := filepath.Dir(filepath.Clean(string(d))); ; p = filepath.Dir(p) {
			if err := syncDir(p); err != nil && !errors.Is(err, os.ErrPermission) {
				return "", fmt.Errorf("data directory: %w", err)
			}
			if p == filepath.Dir(made) {
				break
			}
		}
	}
	return d.resolve()
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

// migrating is where `keelson migrate` builds a store. A leftover there is of an interrupted migration.
const migrating = "store.migrating"

// contents are the entries that Keelson creates in a data directory, and the only ones it deletes. Rotated logs have
// dates in their names.
func (d DataDir) contents() []string {
	names := slices.Clone(contents)
	names = append(names, d.migratedStores()...)
	older, _ := logrotate.List(d.Log()) // an unreadable directory has none
	for _, f := range older {
		names = append(names, filepath.Base(f.Path()))
	}
	return names
}

var contents = []string{
	"kubeconfig", "keelson.log", "keelson.log.1", "pod-cidr", serviceRangeFile, wireGuardKeyFile,
	wireGuardKeyFile + ".new", "pki", "store", storeCreatedFile, storeUsedFile, migrating,
	"runtime", "network", "kubelet", "logs",
	"manifests", "volumes",
	"node.pid", "keelson.pid", endpointFile, nodeNameFile, reserveFile, serversFile,
}

// Fresh reports whether neither a cluster nor a node has run here yet.
func (d DataDir) Fresh() bool {
	for _, name := range []string{"store", storeUsedFile, "runtime", endpointFile} {
		if exists(d.Sub(name)) {
			return false
		}
	}
	return true
}

// restoredOnly reports whether a restore filled the directory and nothing has run on it yet: it holds only a closed
// store and keys.
func (d DataDir) restoredOnly() bool {
	all, err := os.ReadDir(string(d))
	other := slices.ContainsFunc(all, func(e os.DirEntry) bool { return e.Name() != "store" && e.Name() != "pki" })
	return err == nil && !other && embed.Closed(d.Sub("store"))
}

// served reports whether an API server has run here or its objects are here. Its keys were made then, too.
func (d DataDir) served() bool { return exists(d.Sub("store")) || exists(d.Kubeconfig()) }

// empty reports whether the directory has no entry of a cluster.
func (d DataDir) empty() bool {
	return len(d.entries()) == 0
}

// undoNode deletes what a failed kubelet start has created in an empty directory, unless a server uses it by now.
func (d DataDir) undoNode() error {
	lock, err := d.Lock()
	if busy := (*BusyError)(nil); errors.As(err, &busy) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if exists(d.Kubeconfig()) {
		return nil
	}
	return d.erase()
}

// entries are the members of contents that exist.
func (d DataDir) entries() []string {
	return slices.DeleteFunc(d.contents(), func(name string) bool { return !exists(d.Sub(name)) })
}

// erase deletes all entries of the cluster except keep, then the directory if it is empty.
func (d DataDir) erase(keep ...string) error {
	var errs []error
	for _, name := range d.contents() {
		if slices.Contains(keep, name) {
			continue
		}
		errs = append(errs, os.RemoveAll(d.Sub(name)))
	}
	if err := os.Remove(string(d)); err != nil && !errors.Is(err, syscall.ENOTEMPTY) &&
		!errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (d DataDir) resolve() (DataDir, error) {
	abs, err := filepath.Abs(string(d))
	if err != nil {
		return "", fmt.Errorf("data directory: %w", err)
	}
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return "", fmt.Errorf("data directory: %w", err)
	}
	return DataDir(abs), nil
}

// named resolves the directory for names of kernel objects, which must not depend on the working directory. The
// directory need not exist.
func (d DataDir) named() DataDir {
	if found, err := d.resolve(); err == nil {
		return found
	}
	if abs, err := filepath.Abs(string(d)); err == nil {
		return DataDir(abs)
	}
	return d
}

// BusyError says that an instance already runs on the directory.
type BusyError struct {
	Dir DataDir
	Pid int
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("%s belongs to a running instance (pid %d): use it, stop it with `keelson down --data-dir "+
		"%s`, or choose another --data-dir", e.Dir, e.Pid, e.Dir)
}

// Lock locks the directory for this process and writes its pid. The lock ends with the process, or with the returned
// closer. The error is a *BusyError when another instance holds it.
func (d DataDir) Lock() (io.Closer, error) { return d.lock(d.PidFile(), d.useReserve) }

// LockNode does the same for the directory's node.
func (d DataDir) LockNode() (io.Closer, error) { return d.lock(d.NodePidFile(), d.useReserve) }

// lock calls locked before it writes to the file.
func (d DataDir) lock(path string, locked func() error) (io.Closer, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
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
func (d DataDir) Running() (int, error) { return holder(d.PidFile(), 0) }

// Occupied returns a *BusyError if an instance holds the lock. It waits for one that is being killed.
func (d DataDir) Occupied() error {
	pid, err := holder(d.PidFile(), dyingWait)
	if err == nil && pid != 0 {
		return &BusyError{Dir: d, Pid: pid}
	}
	return err
}

// holder returns the pid that holds the lock of a file after atLeast; 0: none.
func holder(path string, atLeast time.Duration) (int, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if diskFailed(err) {
		return openedBy("/proc", path), nil
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
		if !errors.Is(err, syscall.EWOULDBLOCK) || waited > lockWait || waited > atLeast && alive(readPid(f)) {
			return err
		}
	}
}

// alive reports whether a process runs. A killed process that still exits does not.
func alive(pid int) bool {
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

// waitGone polls until nobody holds the lock. Only `keelson down` uses it.
func waitGone(path string, limit time.Duration) error {
	end := time.Now().Add(limit)
	for {
		pid, err := holder(path, 0)
		if err != nil || pid == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("instance %d did not stop within %s", pid, limit)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
