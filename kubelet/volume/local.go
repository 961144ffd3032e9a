// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// emptyDir makes a directory that everybody may write to, on disk or in memory.
func (m *Manager) emptyDir(in Input, v *corev1.Volume) error {
	dir := m.own(in.Pod, v)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	switch medium := v.EmptyDir.Medium; medium {
	case corev1.StorageMediumDefault:
	case corev1.StorageMediumMemory:
		if err := m.memoryDir(in, v, dir); err != nil {
			return err
		}
	default:
		return fmt.Errorf("storage medium %q is not supported by this node", medium)
	}
	if err := os.Chmod(dir, 0o777); err != nil { //nolint:gosec // all of the pod's users write here
		return err
	}
	return own(dir, in.Pod, true)
}

func (m *Manager) memoryDir(in Input, v *corev1.Volume, dir string) error {
	if !m.tmpfs {
		return errors.New("an emptyDir in memory needs root")
	}
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	mounts, err := mountPoints()
	if err != nil || slices.Contains(mounts, resolved) {
		return err
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
	return mountTmpfs(dir, opts)
}

// checkHostPath checks a path of the host, and makes it where its type says so.
func checkHostPath(h *corev1.HostPathVolumeSource) error {
	t := corev1.HostPathUnset
	if h.Type != nil {
		t = *h.Type
	}
	st, err := os.Stat(h.Path)
	missing := errors.Is(err, os.ErrNotExist)
	if err != nil && !missing {
		return fmt.Errorf("hostPath type check failed: %w", err)
	}
	want := func(ok bool, what string) error {
		if missing || !ok {
			return fmt.Errorf("hostPath type check failed: %s is not %s", h.Path, what)
		}
		return nil
	}
	mode := fs.FileMode(0)
	if !missing {
		mode = st.Mode()
	}
	switch t {
	case corev1.HostPathUnset:
		if missing { // the runtime would refuse to mount what is not there
			return os.MkdirAll(h.Path, 0o755) //nolint:gosec // as container runtimes make it
		}
		return nil
	case corev1.HostPathDirectoryOrCreate:
		if missing {
			return os.MkdirAll(h.Path, 0o755) //nolint:gosec // documented mode
		}
		return want(mode.IsDir(), "a directory")
	case corev1.HostPathDirectory:
		return want(mode.IsDir(), "a directory")
	case corev1.HostPathFileOrCreate:
		if missing {
			f, err := os.OpenFile(h.Path, os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // documented mode
			if err != nil {
				return err
			}
			return f.Close()
		}
		return want(mode.IsRegular(), "a file")
	case corev1.HostPathFile:
		return want(mode.IsRegular(), "a file")
	case corev1.HostPathSocket:
		return want(mode&fs.ModeSocket != 0, "a socket file")
	case corev1.HostPathCharDev:
		return want(mode&fs.ModeCharDevice != 0, "a character device")
	case corev1.HostPathBlockDev:
		return want(mode&fs.ModeDevice != 0 && mode&fs.ModeCharDevice == 0, "a block device")
	}
	return fmt.Errorf("hostPath type %q is not known", t)
}

// own gives a volume to the pod's fsGroup: group ownership, group bits, and set-group-id on directories. A volume whose root has
// them already is left alone when the pod says OnRootMismatch.
func own(dir string, p *corev1.Pod, writable bool) error {
	sc := p.Spec.SecurityContext
	if sc == nil || sc.FSGroup == nil {
		return nil
	}
	gid := int(*sc.FSGroup)
	bits := fs.FileMode(0o440)
	if writable {
		bits = 0o660
	}
	if pol := sc.FSGroupChangePolicy; pol != nil && *pol == corev1.FSGroupChangeOnRootMismatch {
		if st, err := os.Stat(dir); err == nil && hasGroup(st, gid) && st.Mode().Perm()&bits == bits && st.Mode()&fs.ModeSetgid != 0 {
			return nil
		}
	}
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := os.Lchown(path, -1, gid); err != nil {
			return err
		}
		if d.Type()&fs.ModeSymlink != 0 {
			return nil
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		mode := st.Mode().Perm() | bits | st.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky)
		if d.IsDir() {
			mode |= 0o110 | fs.ModeSetgid
		}
		return os.Chmod(path, mode)
	})
}
