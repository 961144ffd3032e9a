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

	"keelson/kubelet/podinfo"
	"keelson/lib/inroot"
)

// Mounts returns a container's volume mounts for CRI. recursive: the runtime can make mounts recursively read-only.
// expand replaces $(NAME) in subPathExpr. An error is a mistake in the pod.
func (m *Manager) Mounts(
	ctx context.Context, pod *corev1.Pod, container *corev1.Container, recursive bool,
	expand func(string) (string, error),
) ([]*runtimeapi.Mount, error) {
	var out []*runtimeapi.Mount
	for i := range container.VolumeMounts {
		vm := &container.VolumeMounts[i]
		volume := find(pod, vm.Name)
		if volume == nil {
			return nil, fmt.Errorf("cannot find volume %q to mount into container %q", vm.Name, container.Name)
		}
		mount := &runtimeapi.Mount{
			ContainerPath: absolute(vm.MountPath),
			Readonly:      vm.ReadOnly,
			Propagation:   propagation(vm.MountPropagation),
		}
		mount.RecursiveReadOnly = recursive && WantsRecursiveReadOnly(*vm)
		if !recursive && vm.RecursiveReadOnly != nil && *vm.RecursiveReadOnly == corev1.RecursiveReadOnlyEnabled {
			return nil, fmt.Errorf("volume %q requested recursive read-only mode, but it is not supported by the "+
				"runtime", vm.Name)
		}
		sub, err := subPath(vm, expand)
		if err != nil {
			return nil, err
		}
		if volume.Image != nil {
			mount.Image = &runtimeapi.ImageSpec{Image: volume.Image.Reference}
			mount.ImageSubPath = sub
			mount.Readonly = true
			out = append(out, mount)
			continue
		}
		mount.HostPath, err = m.Path(ctx, pod, vm.Name)
		if err != nil {
			return nil, err
		}
		if sub != "" {
			name := filepath.Join(m.PodDir(string(pod.UID)), "volume-subpaths", vm.Name, container.Name,
				strconv.Itoa(i))
			if mount.HostPath, err = m.resolve(mount.HostPath, sub, name); err != nil {
				return nil, fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: %w", vm.Name,
					container.Name, err)
			}
		}
		if volume.Secret != nil || volume.ConfigMap != nil || volume.DownwardAPI != nil || volume.Projected != nil ||
			readOnly(volume) {
			mount.Readonly = true
		}
		out = append(out, mount)
	}
	return out, nil
}

// mountsBelow returns the paths within a volume at which containers of the pod mount other volumes. A volume of files
// from API objects is read-only in the container, so that only the kubelet can make these directories.
func mountsBelow(pod *corev1.Pod, volume string) []string {
	var out []string
	for container := range podinfo.All(pod) {
		for _, outer := range container.VolumeMounts {
			if outer.Name != volume || outer.SubPath != "" || outer.SubPathExpr != "" {
				continue
			}
			root := strings.TrimSuffix(path.Clean(absolute(outer.MountPath)), "/") + "/"
			for _, inner := range container.VolumeMounts {
				at, below := strings.CutPrefix(path.Clean(absolute(inner.MountPath)), root)
				if below && inner.Name != volume && !slices.Contains(out, at) {
					out = append(out, at)
				}
			}
		}
	}
	return out
}

// WantsRecursiveReadOnly reports whether a mount is to be read-only with all mounts below it: always, or if the
// runtime can.
func WantsRecursiveReadOnly(m corev1.VolumeMount) bool {
	return m.ReadOnly && m.RecursiveReadOnly != nil && *m.RecursiveReadOnly != corev1.RecursiveReadOnlyDisabled
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

// subPath returns the mount's path within its volume. It must be relative and without "..".
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

// resolve opens sub within a volume, and bind-mounts the open descriptor at name, so that no container can change the
// result later. Links must stay inside the volume. A missing directory is created.
func (m *Manager) resolve(vol, sub, name string) (string, error) {
	root, err := inroot.OpenBeneath(vol)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }() // O_PATH
	file, err := root.OpenPath(sub)
	if errors.Is(err, unix.ENOENT) {
		var i inroot.Info
		if i, err = root.Lstat("."); err != nil {
			return "", err
		}
		// A new directory gets the mode of the volume, including set-group-id and sticky. With set-group-id the kernel
		// also sets the group.
		if _, err = root.MkdirAllExact(sub, fileMode(i.Perm())); err != nil {
			return "", err
		}
		file, err = root.OpenPath(sub)
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // O_PATH
	if !m.tmpfs {
		return pathOfFile(file)
	}
	i, err := inroot.StatFile(file)
	if err != nil {
		return "", err
	}
	return name, m.bind(file, i.IsDir(), name)
}

func fileMode(perm uint32) fs.FileMode {
	out := fs.FileMode(perm & 0o777)
	if perm&unix.S_ISGID != 0 {
		out |= fs.ModeSetgid
	}
	if perm&unix.S_ISVTX != 0 {
		out |= fs.ModeSticky
	}
	return out
}

// bind mounts file at name, and replaces the mount of an earlier run of the container.
func (m *Manager) bind(file *os.File, dir bool, name string) error {
	if err := unmountBelow(name); err != nil {
		return err
	}
	root, err := inroot.Open(m.dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // O_PATH
	at := m.within(name)
	if err := root.RemoveAll(at); err != nil {
		return err
	}
	if err := root.MkdirAll(filepath.Dir(at), 0o750); err != nil {
		return err
	}
	if dir {
		err = root.Mkdir(at, 0o750)
	} else {
		err = root.WriteFile(at, nil, 0o640)
	}
	if err != nil {
		return err
	}
	return bindFD(int(file.Fd()), name)
}
