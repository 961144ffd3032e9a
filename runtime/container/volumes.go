// SPDX-License-Identifier: Apache-2.0

package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/inroot"
	"keelson/runtime/fault"
	"keelson/runtime/pods"
)

// mountImages makes a snapshot for each image volume and returns the configuration with their paths as host paths.
func (s *Service) mountImages(
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
		img, ok := s.images.Get(mount.GetImage().GetImage())
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
// container; their mounts are not. The files that the image has there are visible, and a missing directory is made.
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
