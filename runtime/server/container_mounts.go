// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/inroot"
	"keelson/lib/linux"
	"keelson/runtime/fault"
	"keelson/runtime/oci"
	"keelson/runtime/pods"
)

// maxUserFile bounds an image's /etc/passwd and /etc/group.
const maxUserFile = 4 << 20

// readInside reads a file below rootfs. Links cannot lead out of rootfs, and devices are not opened. A missing file is
// nil.
func readInside(rootfs, name string) ([]byte, error) {
	root, err := inroot.Open(rootfs)
	if err != nil {
		return nil, fmt.Errorf("open root file system: %w", err)
	}
	defer func() { _ = root.Close() }() // O_PATH
	b, err := root.ReadFile(name, maxUserFile)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the image's %s: %w", name, err)
	}
	return b, nil
}

// resolveMounts resolves links in the sources of mounts, makes missing sources, as the kubelet expects, and checks that
// the source of a mount with propagation is on a shared mount (or a slave one, where that is enough).
func resolveMounts(cfg *runtimeapi.ContainerConfig) (*runtimeapi.ContainerConfig, error) {
	if len(cfg.GetMounts()) == 0 {
		return cfg, nil
	}
	out, ok := proto.Clone(cfg).(*runtimeapi.ContainerConfig)
	if !ok {
		return nil, errors.New("copy container configuration")
	}
	var mounts []linux.Mount
	for _, mount := range out.GetMounts() {
		if mount.GetHostPath() == "" {
			continue
		}
		src, err := filepath.EvalSymlinks(mount.GetHostPath())
		if errors.Is(err, fs.ErrNotExist) {
			if err = os.MkdirAll(mount.GetHostPath(), 0o755); err == nil {
				src, err = filepath.EvalSymlinks(mount.GetHostPath())
			}
		}
		if err != nil {
			return nil, fmt.Errorf("mount at %s: %w", mount.GetContainerPath(), err)
		}
		mount.HostPath = src
		if mount.GetPropagation() == runtimeapi.MountPropagation_PROPAGATION_PRIVATE {
			continue
		}
		if mounts == nil {
			if mounts, err = linux.Mounts(); err != nil {
				return nil, err
			}
		}
		on, _ := linux.MountOf(mounts, src)
		if both := mount.GetPropagation() == runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL; !on.Shared &&
			(both || !on.Slave) {
			return nil, fault.InvalidArgument("mount at %s: %s is on the mount %s, which is not shared",
				mount.GetContainerPath(), src, on.Point)
		}
	}
	return out, nil
}

// mountImages makes a snapshot for each image volume and returns the configuration with their paths as host paths.
func (s *Server) mountImages(
	ctx context.Context, sb *pods.Sandbox, ctr *pods.Container, cfg *runtimeapi.ContainerConfig,
) (*runtimeapi.ContainerConfig, error) {
	var out *runtimeapi.ContainerConfig
	for i, mount := range cfg.GetMounts() {
		if mount.GetImage().GetImage() == "" {
			continue
		}
		if out == nil {
			clone, ok := proto.Clone(cfg).(*runtimeapi.ContainerConfig)
			if !ok {
				return nil, errors.New("copy container configuration")
			}
			out = clone
		}
		img, ok := s.cfg.Images.Get(mount.GetImage().GetImage())
		if !ok {
			return nil, fault.NotFound("image", mount.GetImage().GetImage())
		}
		id := fmt.Sprintf("%s-image-%d", ctr.ID, i)
		if err := ctr.Update(func(r *pods.ContainerRecord) { r.ImageMounts = append(r.ImageMounts, id) }); err != nil {
			return nil, err
		}
		root, err := s.users.Rootfs(ctx, sb, id, img)
		if err != nil {
			return nil, err
		}
		at, err := subPath(root, mount.GetImageSubPath())
		if err != nil {
			return nil, fmt.Errorf("image volume at %s: %w", mount.GetContainerPath(), err)
		}
		out.Mounts[i].HostPath = at
		out.Mounts[i].Readonly = true
		out.Mounts[i].Image = nil
		out.Mounts[i].UidMappings = nil
		out.Mounts[i].GidMappings = nil // the snapshot is mapped already
	}
	if out == nil {
		return cfg, nil
	}
	return out, nil
}

// mountVolumes adds the directories that an image calls its volumes to a container's mounts, except those where the
// container mounts something itself. They are in the container's own root file system, which may be read-only for the
// container; their mounts are not. What the image has there is there, and a missing directory is made.
func mountVolumes(
	pod *pods.SandboxRecord, rootfs string, cfg *runtimeapi.ContainerConfig, volumes map[string]struct{},
) (*runtimeapi.ContainerConfig, error) {
	taken := map[string]bool{
		"/":                true,
		"/etc/hostname":    true,
		"/etc/hosts":       true,
		"/etc/resolv.conf": true,
	}
	for _, m := range cfg.GetMounts() {
		taken[path.Join("/", m.GetContainerPath())] = true
	}
	var added []*runtimeapi.Mount
	for _, name := range slices.Sorted(maps.Keys(volumes)) {
		at := path.Join("/", name)
		if top, _, _ := strings.Cut(at[1:], "/"); taken[at] || slices.Contains([]string{"dev", "proc", "sys"}, top) {
			continue
		}
		taken[at] = true
		from, err := makeVolume(pod, rootfs, at)
		if err != nil {
			return nil, fmt.Errorf("volume %s of the image: %w", at, err)
		}
		if from != "" {
			added = append(added, &runtimeapi.Mount{ContainerPath: at, HostPath: from})
		}
	}
	if len(added) == 0 {
		return cfg, nil
	}
	out, ok := proto.Clone(cfg).(*runtimeapi.ContainerConfig)
	if !ok {
		return nil, errors.New("copy container configuration")
	}
	out.Mounts = append(added, out.GetMounts()...)
	return out, nil
}

// makeVolume makes a directory of a root file system, unless it is there, and returns its path on the host; empty: a
// link in the image leads to nothing there.
func makeVolume(pod *pods.SandboxRecord, rootfs, at string) (string, error) {
	root, err := inroot.Open(rootfs)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }() // O_PATH
	made, err := root.MkdirAllExact(at, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fault.InvalidArgument("%v", err)
	}
	if pod.HasUserNamespace() {
		uid, gid, err := pod.IDMaps().Root()
		if err != nil {
			return "", err
		}
		for _, dir := range made {
			if err := root.Lchown(dir, int(uid), int(gid)); err != nil {
				return "", err
			}
		}
	}
	return subPath(rootfs, at)
}

// subPath resolves a path within an image; links cannot lead out of it.
func subPath(root, sub string) (string, error) {
	if sub == "" {
		return root, nil
	}
	d, err := inroot.Open(root)
	if err != nil {
		return "", err
	}
	defer func() { _ = d.Close() }() // O_PATH
	f, err := d.OpenPath(sub)
	if err != nil {
		return "", fault.InvalidArgument("sub path %q: %v", sub, err)
	}
	defer func() { _ = f.Close() }() // O_PATH
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// devices returns the device nodes of a container: those in its configuration, and all of the host's when it is
// privileged.
func devices(asked []*runtimeapi.Device, privileged bool) ([]oci.Device, error) {
	var out []oci.Device
	var err error
	if privileged {
		if out, err = hostDevices("/dev", out, 0); err != nil {
			return nil, err
		}
	}
	for _, d := range asked {
		at := filepath.Clean(d.GetContainerPath())
		out = slices.DeleteFunc(out, func(o oci.Device) bool { return o.Path == at })
		if out, err = addDevice(out, d); err != nil {
			return nil, fault.InvalidArgument("device %s: %v", d.GetHostPath(), err)
		}
	}
	return out, nil
}

// addDevice adds the device node at the host path, or all nodes below it when it is a directory.
func addDevice(out []oci.Device, d *runtimeapi.Device) ([]oci.Device, error) {
	src, err := filepath.EvalSymlinks(d.GetHostPath())
	if err != nil {
		return nil, err
	}
	fi, err := os.Stat(src)
	if err != nil {
		return nil, err
	}
	if !fi.IsDir() {
		dev, ok := device(src, fi)
		if !ok {
			return nil, errors.New("not a device node")
		}
		dev.Path = d.GetContainerPath()
		dev.Access = d.GetPermissions()
		return append(out, dev), nil
	}
	found, err := hostDevices(src, nil, 0)
	for _, dev := range found {
		dev.Path = filepath.Join(d.GetContainerPath(), strings.TrimPrefix(dev.Path, src))
		dev.Access = d.GetPermissions()
		out = append(out, dev)
	}
	return out, err
}

// hostDevices lists the device nodes below a directory, except those that every container gets its own of.
func hostDevices(dir string, out []oci.Device, depth int) ([]oci.Device, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		at := filepath.Join(dir, entry.Name())
		switch entry.Name() {
		case "pts", "shm", "fd", "mqueue", ".lxc", ".lxd-mounts", ".udev", "console":
			continue
		}
		if entry.IsDir() {
			if depth < 8 {
				if out, err = hostDevices(at, out, depth+1); err != nil {
					return nil, err
				}
			}
			continue
		}
		fi, err := entry.Info()
		if err != nil {
			continue // a device may disappear meanwhile
		}
		if dev, ok := device(at, fi); ok {
			dev.Access = "rwm"
			out = append(out, dev)
		}
	}
	return out, nil
}

func device(path string, fi fs.FileInfo) (oci.Device, bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || fi.Mode()&fs.ModeDevice == 0 {
		return oci.Device{}, false
	}
	kind := "b"
	if fi.Mode()&fs.ModeCharDevice != 0 {
		kind = "c"
	}
	mode := fi.Mode().Perm()
	uid := st.Uid
	gid := st.Gid
	return oci.Device{LinuxDevice: specs.LinuxDevice{
		Path:     path,
		Type:     kind,
		Major:    int64(unix.Major(st.Rdev)),
		Minor:    int64(unix.Minor(st.Rdev)),
		FileMode: &mode,
		UID:      &uid,
		GID:      &gid,
	}}, true
}
