// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"keelson/lib/inroot"
)

// emptyDir creates a directory with mode 0777, on disk or on a tmpfs. Mode and ownership are set once, before a
// container starts: later the pod may change them.
func (m *Manager) emptyDir(root *inroot.Dir, in Input, volume *corev1.Volume) error {
	at := m.within(m.ownDir(in.Pod, volume))
	_, err := root.Lstat(at)
	missing := errors.Is(err, unix.ENOENT)
	if err := root.MkdirAll(at, 0o750); err != nil {
		return err
	}
	switch medium := volume.EmptyDir.Medium; medium {
	case corev1.StorageMediumDefault:
	case corev1.StorageMediumMemory:
		mounted, err := m.memoryDir(in, volume, m.ownDir(in.Pod, volume))
		if err != nil {
			return err
		}
		missing = missing || mounted
	default:
		return fmt.Errorf("storage medium %q is not supported by this node", medium)
	}
	return m.setUpOnce(root, in.Pod, volume, missing, func() error {
		i, err := root.Lstat(at)
		if err != nil {
			return err
		}
		if i.Perm()&0o777 != 0o777 { // the sticky bit of a tmpfs stays
			if err := root.Chmod(at, 0o777); err != nil {
				return err
			}
		}
		return applyFSGroup(root, at, in.Pod, true)
	})
}

// setUpOnce calls fn if it has not succeeded for this volume of the pod yet, or again is set. The success is recorded
// in a file outside the volume.
func (m *Manager) setUpOnce(root *inroot.Dir, p *corev1.Pod, v *corev1.Volume, again bool, fn func() error) error {
	mark := begunAt(string(p.UID), v)
	_, err := root.Lstat(filepath.Join(mark, "ready"))
	if err == nil && !again {
		return nil
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := fn(); err != nil {
		return err
	}
	if err := root.MkdirAll(mark, 0o750); err != nil {
		return err
	}
	return root.WriteFile(filepath.Join(mark, "ready"), nil, 0o640)
}

// memoryDir mounts a tmpfs on dir unless it is mounted already.
func (m *Manager) memoryDir(in Input, volume *corev1.Volume, dir string) (mounted bool, err error) {
	if !m.tmpfs {
		return false, errors.New("an emptyDir in memory needs root")
	}
	resolved, err := resolvedPath(dir)
	if err != nil {
		return false, err
	}
	mounts, err := mountPoints()
	if err != nil || slices.Contains(mounts, resolved) {
		return false, err
	}
	size := in.Allocatable.Memory().Value()
	limits := resourcehelper.PodLimits(in.Pod, resourcehelper.PodResourcesOptions{})
	if limit := limits.Memory().Value(); limit > 0 && (size == 0 || limit < size) {
		size = limit
	}
	if l := volume.EmptyDir.SizeLimit; l != nil && l.Value() > 0 && (size == 0 || l.Value() < size) {
		size = l.Value()
	}
	opts := ""
	if size > 0 {
		opts = fmt.Sprintf("size=%d", size)
	}
	return true, mountTmpfs(dir, opts)
}

// setGroup applies the pod's fsGroup to a volume, once for the pod or again, unless the volume is read-only.
func (m *Manager) setGroup(root *inroot.Dir, in Input, v *corev1.Volume, dir string, again bool) error {
	sc := in.Pod.Spec.SecurityContext
	if sc == nil || sc.FSGroup == nil || readOnly(v) {
		return nil
	}
	return m.setUpOnce(root, in.Pod, v, again, func() error {
		d, err := inroot.Open(dir)
		if err != nil {
			return err
		}
		defer func() { _ = d.Close() }() // O_PATH
		i, err := d.Lstat(".")
		if err != nil {
			return err
		}
		onMismatch := sc.FSGroupChangePolicy != nil && *sc.FSGroupChangePolicy == corev1.FSGroupChangeOnRootMismatch
		if onMismatch && int64(i.GID) == *sc.FSGroup && i.Perm()&0o660 == 0o660 && i.Perm()&unix.S_ISGID != 0 {
			return nil
		}
		return applyFSGroup(d, ".", in.Pod, true)
	})
}

// applyFSGroup sets for p and all below it: group ownership, group bits, and set-group-id on directories. It uses
// descriptors and follows no links, since another pod may be changing the volume. The root comes last, so that
// OnRootMismatch can detect whether an earlier run completed.
func applyFSGroup(d *inroot.Dir, p string, pod *corev1.Pod, writable bool) error {
	sc := pod.Spec.SecurityContext
	if sc == nil || sc.FSGroup == nil {
		return nil
	}
	return d.Walk(p, inroot.WalkOptions{After: true}, func(e *inroot.Entry) error {
		err := applyFSGroupTo(e, int(*sc.FSGroup), writable)
		if errors.Is(err, inroot.ErrChanged) {
			return nil // another process replaced it
		}
		return err
	})
}

func applyFSGroupTo(entry *inroot.Entry, gid int, writable bool) error {
	bits := uint32(0o440)
	if writable {
		bits = 0o660
	}
	if entry.Info.IsDir() {
		bits |= 0o110 | unix.S_ISGID
	}
	if err := entry.Lchown(-1, gid); err != nil || entry.Info.IsSymlink() {
		return err
	}
	return entry.Chmod(entry.Info.Perm() | bits)
}
