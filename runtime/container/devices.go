// SPDX-License-Identifier: Apache-2.0

package container

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/fault"
	"keelson/runtime/oci"
)

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
