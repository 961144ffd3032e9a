// SPDX-License-Identifier: Apache-2.0

package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/inroot"
	"keelson/lib/linux"
	"keelson/runtime/fault"
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
