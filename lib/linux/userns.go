// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// UserNamespace is the kind of user namespaces. One owns the namespaces that are made together with it.
const UserNamespace Namespace = "user"

// IDMap maps Length ids, from Inside in a user namespace to Outside on the host.
type IDMap struct {
	Inside  uint32 `json:"inside"`
	Outside uint32 `json:"outside"`
	Length  uint32 `json:"length"`
}

// IDMaps are the mappings of one user namespace.
type IDMaps struct {
	UIDs []IDMap `json:"uids"`
	GIDs []IDMap `json:"gids"`
}

// Root returns the host ids of user and group 0 of the namespace.
func (m IDMaps) Root() (uid, gid uint32, err error) {
	find := func(maps []IDMap) (uint32, bool) {
		i := slices.IndexFunc(maps, func(m IDMap) bool { return m.Inside == 0 && m.Length > 0 })
		if i < 0 {
			return 0, false
		}
		return maps[i].Outside, true
	}
	uid, u := find(m.UIDs)
	gid, g := find(m.GIDs)
	if !u || !g {
		return 0, 0, errors.New("user namespace: user or group 0 is not mapped")
	}
	return uid, gid, nil
}

// HoldUserNamespace makes a user namespace with these mappings and, owned by it, namespaces of the other kinds, and
// bind-mounts each at dir/<kind>. Release unmounts them. After an error nothing stays. wait is a command that only
// waits for the end of its standard input: a process must be in the user namespace until it is mounted, and a
// multi-threaded process such as this one cannot enter one.
func HoldUserNamespace(dir string, kinds []Namespace, maps IDMaps, wait *exec.Cmd) (err error) {
	attr := &syscall.SysProcAttr{
		Cloneflags:                 unix.CLONE_NEWUSER,
		UidMappings:                procMaps(maps.UIDs),
		GidMappings:                procMaps(maps.GIDs),
		GidMappingsEnableSetgroups: true,
	}
	for _, k := range kinds {
		attr.Cloneflags |= uintptr(cloneFlags[k]) // flags
	}
	wait.SysProcAttr = attr
	in, err := wait.StdinPipe()
	if err != nil {
		return fmt.Errorf("make user namespace: %w", err)
	}
	if err := wait.Start(); err != nil {
		return fmt.Errorf("make user namespace: %w", describeUserNamespaceError(err))
	}
	all := append([]Namespace{UserNamespace}, kinds...)
	defer func() {
		err = errors.Join(err, end(wait, in))
		if err != nil {
			err = errors.Join(err, Release(dir, all))
		}
	}()
	for _, k := range all {
		if err := HoldNamespace(wait.Process.Pid, k, filepath.Join(dir, string(k))); err != nil {
			return err
		}
	}
	return nil
}

// end closes a process's standard input and waits until it has ended.
func end(cmd *exec.Cmd, in io.Closer) error {
	_ = in.Close() // an error means that the process has ended
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("make user namespace: %s: %w", cmd.Path, err)
	}
	return nil
}

func describeUserNamespaceError(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("the limit of user namespaces is reached (sysctl user.max_user_namespaces): %w", err)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("the kernel has none (CONFIG_USER_NS), or does not accept the mappings: %w", err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("not permitted (needs root, and mappings of ids that this process has): %w", err)
	}
	return err
}

func procMaps(maps []IDMap) []syscall.SysProcIDMap {
	out := make([]syscall.SysProcIDMap, 0, len(maps))
	for _, m := range maps {
		out = append(out, syscall.SysProcIDMap{ContainerID: int(m.Inside), HostID: int(m.Outside), Size: int(m.Length)})
	}
	return out
}

// InNamespaces runs f on a thread in the namespaces mounted below dir, but not in their user namespace. Goroutines that
// f starts are not in them.
func InNamespaces(dir string, kinds []Namespace, f func() error) error {
	return onThread(func() error {
		for _, k := range kinds {
			ns, err := os.Open(filepath.Join(dir, string(k)))
			if err != nil {
				return fmt.Errorf("open %s namespace: %w", k, err)
			}
			err = unix.Setns(int(ns.Fd()), cloneFlags[k])
			_ = ns.Close() // read only
			if err != nil {
				return fmt.Errorf("enter %s namespace: %w", k, err)
			}
		}
		return f()
	})
}

// BecomeOnThread sets user and group of the calling thread only. It cannot be undone: call it on a thread that ends, as
// in InNamespaces.
func BecomeOnThread(uid, gid uint32) error {
	// The functions of package unix would change all threads.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); errno != 0 {
		return fmt.Errorf("become group %d: %w", gid, errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
		return fmt.Errorf("become user %d: %w", uid, errno)
	}
	return nil
}

// MapMount returns a descriptor of a detached, id-mapped copy of the mount at path, without the mounts below it. A file
// of user 0 on disk belongs to the root of the user namespace mounted at userns.
func MapMount(path, userns string) (fd int, err error) {
	fd, err = unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("copy mount of %s: %w", path, err)
	}
	if err := MapIDs(fd, userns); err != nil {
		_ = unix.Close(fd) // a detached mount ends with its descriptor
		return -1, fmt.Errorf("%s: %w", path, err)
	}
	return fd, nil
}

// MapIDs makes the detached mount fd id-mapped.
func MapIDs(fd int, userns string) error {
	ns, err := os.Open(userns)
	if err != nil {
		return fmt.Errorf("open user namespace: %w", err)
	}
	defer func() { _ = ns.Close() }() // read only
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set:  unix.MOUNT_ATTR_IDMAP,
		Userns_fd: uint64(ns.Fd()),
	})
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.EINVAL) {
		var st unix.Statfs_t
		if unix.Fstatfs(fd, &st) == nil {
			// a magic number
			return fmt.Errorf("its file system (type %#x) does not support id-mapped mounts on this kernel: %w",
				uint32(st.Type), err)
		}
	}
	return fmt.Errorf("make an id-mapped mount: %w", err)
}

// Attach mounts a detached mount at path.
func Attach(fd int, path string) error {
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount at %s: %w", path, err)
	}
	return nil
}

// CheckMappedMount returns why the mount at path cannot be id-mapped for a user namespace; nil: it can.
func CheckMappedMount(path, userns string) error {
	fd, err := MapMount(path, userns)
	if err == nil {
		_ = unix.Close(fd) // a detached mount ends with its descriptor
	}
	return err
}

// CheckMappedTmpfs is CheckMappedMount for a new tmpfs, which needs Linux 6.3.
func CheckMappedTmpfs(userns string) error {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open tmpfs: %w", err)
	}
	defer func() { _ = unix.Close(fs) }() // nothing was written
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("make tmpfs: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	defer func() { _ = unix.Close(fd) }() // a detached mount ends with its descriptor
	return MapIDs(fd, userns)
}

// CanMountRecursivelyReadOnly reports whether this kernel supports recursive read-only mounts (mount_setattr, Linux
// 5.12).
func CanMountRecursivelyReadOnly() bool {
	err := unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY,
	})
	return !errors.Is(err, unix.ENOSYS)
}
