// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"keelson/apiserver/objects"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/pki"
	"keelson/store"
	"keelson/store/backup"
	"keelson/store/embed"
	"keelson/store/etcdfile"
)

// revisionGap is added to the store's revision at a restore, so that no resourceVersion that clients saw after the
// backup is used again. Older watches get 410 Gone and list again.
const revisionGap = 1_000_000_000

// Restore fills dir, which must be empty or absent, from the file at path: a backup, or a snapshot of `etcdctl snapshot
// save`. It does so completely or not at all. The next restore removes what a killed one left next to dir.
func Restore(ctx context.Context, dir datadir.Dir, path string) (sum Summary, err error) {
	if err := restorable(dir); err != nil {
		return sum, err
	}
	file, err := os.Open(path)
	if err != nil {
		return sum, fmt.Errorf("restore: %w", err)
	}
	defer func() { _ = file.Close() }()
	abs, err := filepath.Abs(string(dir))
	if err != nil {
		return sum, err
	}
	tmp, lock, err := restoreDir(abs)
	if err != nil {
		return sum, fmt.Errorf("restore: %w", err)
	}
	defer func() { _ = lock.Close() }()
	defer func() {
		if err != nil {
			err = fmt.Errorf("restore %s: %w", path, err)
			_ = os.RemoveAll(tmp)
		}
	}()
	err = embed.Import(ctx, embed.Options{Dir: filepath.Join(tmp, "store")}, func(
		put func(store.KV) error,
	) (int64, error) {
		sum, err = readBackup(file, tmp, put)
		return sum.Revision + revisionGap, err
	})
	if err != nil {
		return sum, err
	}
	if err := credentials.MarkWithoutIdentities(tmp); err != nil {
		return sum, err
	}
	if err := datadir.SyncAll(tmp); err != nil {
		return sum, err
	}
	if err := os.Rename(tmp, abs); err != nil {
		if errors.Is(err, unix.EBUSY) {
			return sum, fmt.Errorf("%s is a mount point: restore into a directory below it", abs)
		}
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			return sum, fmt.Errorf("%s was filled meanwhile, perhaps by a cluster that was started: stop it, move the "+
				"directory away, and try again", abs)
		}
		return sum, err
	}
	return sum, datadir.SyncDir(filepath.Dir(abs))
}

// restoreDir makes an empty, locked directory next to dir. Only one restore at a time may hold the lock.
func restoreDir(dir string) (tmp string, lock *os.File, err error) {
	tmp = dir + ".restoring"
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return "", nil, err
	}
	if lock, err = openOwn(tmp); err != nil {
		return "", nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		return "", nil, fmt.Errorf("another restore fills %s", tmp)
	}
	left, err := os.ReadDir(tmp)
	for _, e := range left {
		err = errors.Join(err, os.RemoveAll(filepath.Join(tmp, e.Name())))
	}
	if err != nil {
		_ = lock.Close()
		return "", nil, err
	}
	return tmp, lock, nil
}

// openOwn opens a directory that may have been there before. It must be no link and belong to the user of this process
// alone: another user's would give him what is put into it.
func openOwn(dir string) (*os.File, error) {
	file, err := os.OpenFile(dir, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("%s is not a directory: remove it", dir)
	}
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(file.Fd()), &st)
	switch {
	case err != nil:
	case int(st.Uid) != os.Geteuid():
		err = fmt.Errorf("%s belongs to another user (uid %d): remove it", dir, st.Uid)
	case st.Mode&0o077 != 0:
		err = fmt.Errorf("%s is open to other users (mode %04o): remove it", dir, st.Mode&0o7777)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// readBackup passes the objects in file to put and writes keys to the directory tmp.
//
// Keys come first in a backup. Objects without keys get new ones, whose fingerprints are then the only ones.
func readBackup(file *os.File, tmp string, take func(store.KV) error) (sum Summary, err error) {
	left := int64(0)
	put := func(kv store.KV) error {
		if kv.Key == credentials.FingerprintsKey && !datadir.Exists(filepath.Join(tmp, "pki", "ca.crt")) {
			left++
			return nil
		}
		return take(kv)
	}
	defer func() { sum.Keys -= left }()
	head := make([]byte, 64)
	n, err := file.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return sum, err
	}
	if !etcdfile.Is(head[:n]) {
		foreign := ""
		sum, err = backup.Read(file, backup.Sink{
			KV: func(kv store.KV) error {
				if !strings.HasPrefix(kv.Key, objects.Root) {
					foreign = kv.Key // damage is the better reason: Read knows at the end
				}
				return put(kv)
			},
			File: func(name string, b []byte) error { return restoreKey(tmp, name, b) },
		})
		if err == nil && foreign != "" {
			err = fmt.Errorf("it holds a key %.100q, which does not belong there", foreign)
		}
		return sum, err
	}
	sum.Revision, err = etcdfile.Read(file.Name(), objects.Root, func(kv store.KV) error {
		sum.Keys++
		return put(kv)
	})
	if err == nil && sum.Keys == 0 {
		err = fmt.Errorf("it holds nothing under %s", objects.Root)
	}
	return sum, err
}

// restorable returns an error unless dir is absent or empty.
func restorable(dir datadir.Dir) error {
	if pid, err := dir.Running(); err == nil && pid != 0 {
		return &datadir.BusyError{Dir: dir, Pid: pid}
	}
	files, err := os.ReadDir(string(dir))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("restore: %w", err)
	case len(files) > 0:
		return fmt.Errorf("%s is not empty: move it away, or restore into another --data-dir", dir)
	}
	return nil
}

// restoreKey writes a file of pki/ to dir. A backup holds no others: saveKeys puts plain names there.
func restoreKey(dir, name string, b []byte) error {
	base, ok := strings.CutPrefix(name, "pki/")
	if !ok || base == "" || base == "." || base == ".." || strings.ContainsAny(base, "/\x00") {
		return fmt.Errorf("it holds a file %.100q, which does not belong there", name)
	}
	if err := os.MkdirAll(filepath.Join(dir, "pki"), 0o700); err != nil {
		return err
	}
	return pki.WriteFile(filepath.Join(dir, "pki", base), b, 0o600)
}
