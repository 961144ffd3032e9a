// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Mounts are a container's volume mounts for CRI. expand replaces $(NAME) in subPathExpr. An error is one that users must mend.
func (m *Manager) Mounts(ctx context.Context, p *corev1.Pod, c *corev1.Container, expand func(string) (string, error)) ([]*runtimeapi.Mount, error) {
	var out []*runtimeapi.Mount
	for i := range c.VolumeMounts {
		vm := &c.VolumeMounts[i]
		v := find(p, vm.Name)
		if v == nil {
			return nil, fmt.Errorf("cannot find volume %q to mount into container %q", vm.Name, c.Name)
		}
		mount := &runtimeapi.Mount{ContainerPath: absolute(vm.MountPath), Readonly: vm.ReadOnly, Propagation: propagation(vm.MountPropagation)}
		mount.RecursiveReadOnly = vm.RecursiveReadOnly != nil && *vm.RecursiveReadOnly == corev1.RecursiveReadOnlyEnabled
		sub, err := subPath(vm, expand)
		if err != nil {
			return nil, err
		}
		if v.Image != nil {
			mount.Image, mount.ImageSubPath, mount.Readonly = &runtimeapi.ImageSpec{Image: v.Image.Reference}, sub, true
			out = append(out, mount)
			continue
		}
		mount.HostPath, err = m.Path(ctx, p, vm.Name)
		if err != nil {
			return nil, err
		}
		if sub != "" {
			name := filepath.Join(m.PodDir(string(p.UID)), "volume-subpaths", vm.Name, c.Name, strconv.Itoa(i))
			if mount.HostPath, err = m.resolve(mount.HostPath, sub, name); err != nil {
				return nil, fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: %w", vm.Name, c.Name, err)
			}
		}
		if v.Secret != nil || v.ConfigMap != nil || v.DownwardAPI != nil || v.Projected != nil {
			mount.Readonly = true
		}
		out = append(out, mount)
	}
	return out, nil
}

func find(p *corev1.Pod, name string) *corev1.Volume {
	i := slices.IndexFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	if i < 0 {
		return nil
	}
	return &p.Spec.Volumes[i]
}

func absolute(p string) string {
	if path.IsAbs(p) {
		return p
	}
	return "/" + p
}

func propagation(mode *corev1.MountPropagationMode) runtimeapi.MountPropagation {
	if mode == nil {
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
	}
	switch *mode {
	case corev1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
	case corev1.MountPropagationBidirectional:
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	case corev1.MountPropagationNone:
	}
	return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
}

// subPath is the mount's path within its volume, checked: relative, and with no way up.
func subPath(vm *corev1.VolumeMount, expand func(string) (string, error)) (string, error) {
	sub := vm.SubPath
	if vm.SubPathExpr != "" {
		var err error
		if sub, err = expand(vm.SubPathExpr); err != nil {
			return "", err
		}
	}
	if sub == "" {
		return "", nil
	}
	if path.IsAbs(sub) {
		return "", fmt.Errorf("error SubPath `%s` must not be an absolute path", sub)
	}
	if slices.Contains(strings.Split(sub, "/"), "..") {
		return "", fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", sub)
	}
	return path.Clean(sub), nil
}

// resolve opens sub within a volume, following links only as long as they stay inside, making it as a directory when it is not
// there, and gives what it found a path of its own that nobody in a container can change: a bind mount at name.
func (m *Manager) resolve(vol, sub, name string) (string, error) {
	root, err := os.OpenRoot(vol)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }() // nothing was written through it
	st, err := root.Stat(sub)
	if errors.Is(err, fs.ErrNotExist) {
		perm := fs.FileMode(0o750)
		if vst, err := os.Stat(vol); err == nil {
			perm = vst.Mode().Perm()
		}
		if err := root.MkdirAll(sub, perm); err != nil {
			return "", err
		}
		if err := root.Chmod(sub, perm); err != nil { // regardless of the umask
			return "", err
		}
		st, err = root.Stat(sub)
		if err != nil {
			return "", err
		}
	} else if err != nil {
		return "", err
	}
	fd, err := openBeneath(vol, sub)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }() // O_PATH
	if !m.tmpfs {
		return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	}
	return name, m.bind(fd, st.IsDir(), name)
}

// openBeneath opens path within dir; a link that leads out of it is an error.
func openBeneath(dir, path string) (int, error) {
	base, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", dir, err)
	}
	defer func() { _ = unix.Close(base) }() // O_PATH
	fd, err := unix.Openat2(base, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, fmt.Errorf("open %s within its volume: %w", path, err)
	}
	return fd, nil
}

// bind mounts fd at name, replacing what an earlier run of the container left there.
func (m *Manager) bind(fd int, dir bool, name string) error {
	if err := unmountBelow(name); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		return err
	}
	if dir {
		if err := os.MkdirAll(name, 0o750); err != nil {
			return err
		}
	} else {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o640)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return bindFD(fd, name)
}
