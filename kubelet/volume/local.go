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

// emptyDir makes a directory that everybody may write to, on disk or in memory. Mode and ownership are set once, before a container
// of the pod has it: from then on what is in it is the pod's.
func (m *Manager) emptyDir(root *inroot.Dir, in Input, v *corev1.Volume) error {
	at := m.within(m.own(in.Pod, v))
	_, err := root.Lstat(at)
	missing := errors.Is(err, unix.ENOENT)
	if err := root.MkdirAll(at, 0o750); err != nil {
		return err
	}
	switch medium := v.EmptyDir.Medium; medium {
	case corev1.StorageMediumDefault:
	case corev1.StorageMediumMemory:
		mounted, err := m.memoryDir(in, v, m.own(in.Pod, v))
		if err != nil {
			return err
		}
		missing = missing || mounted
	default:
		return fmt.Errorf("storage medium %q is not supported by this node", medium)
	}
	return m.once(root, in.Pod, v, missing, func() error {
		i, err := root.Lstat(at)
		if err != nil {
			return err
		}
		if i.Perm()&0o777 != 0o777 { // the sticky bit of a tmpfs stays
			if err := root.Chmod(at, 0o777); err != nil {
				return err
			}
		}
		return own(root, at, in.Pod, true)
	})
}

// once calls fn when it has not succeeded for this volume of the pod yet, or again is set. That it has is a file that no container
// sees.
func (m *Manager) once(root *inroot.Dir, p *corev1.Pod, v *corev1.Volume, again bool, fn func() error) error {
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

// memoryDir mounts a tmpfs on dir where there is none yet.
func (m *Manager) memoryDir(in Input, v *corev1.Volume, dir string) (mounted bool, err error) {
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
	if l := v.EmptyDir.SizeLimit; l != nil && l.Value() > 0 && (size == 0 || l.Value() < size) {
		size = l.Value()
	}
	opts := ""
	if size > 0 {
		opts = fmt.Sprintf("size=%d", size)
	}
	return true, mountTmpfs(dir, opts)
}

// local gives a volume to the pod's fsGroup, once for the pod or again, unless it is mounted read-only.
func (m *Manager) local(root *inroot.Dir, in Input, v *corev1.Volume, dir string, again bool) error {
	sc := in.Pod.Spec.SecurityContext
	if sc == nil || sc.FSGroup == nil || readOnly(v) {
		return nil
	}
	return m.once(root, in.Pod, v, again, func() error {
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
		return own(d, ".", in.Pod, true)
	})
}

// own gives what is at and below p to the pod's fsGroup: group ownership, group bits, and set-group-id on directories. It goes by
// descriptors and follows no link, for another pod may be changing the volume. The root comes last, so that OnRootMismatch finds out
// whether all was done.
func own(d *inroot.Dir, p string, pod *corev1.Pod, writable bool) error {
	sc := pod.Spec.SecurityContext
	if sc == nil || sc.FSGroup == nil {
		return nil
	}
	return d.Walk(p, inroot.WalkOptions{After: true}, func(e *inroot.Entry) error {
		err := ownEntry(e, int(*sc.FSGroup), writable)
		if errors.Is(err, inroot.ErrChanged) {
			return nil // it was replaced: somebody else's doing
		}
		return err
	})
}

func ownEntry(e *inroot.Entry, gid int, writable bool) error {
	bits := uint32(0o440)
	if writable {
		bits = 0o660
	}
	if e.Info.IsDir() {
		bits |= 0o110 | unix.S_ISGID
	}
	if err := e.Lchown(-1, gid); err != nil || e.Info.IsSymlink() {
		return err
	}
	return e.Chmod(e.Info.Perm() | bits)
}
