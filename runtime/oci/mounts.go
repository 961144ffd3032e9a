// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// mountsOf returns the mounts in mount order (parents first), and the propagation of the root.
func mountsOf(in Input, sec *runtimeapi.LinuxContainerSecurityContext) ([]specs.Mount, string, error) {
	mounts := kernelMounts(sec.GetPrivileged())
	put := func(m specs.Mount) {
		// A mount of the container replaces a default one at the same path.
		mounts = slices.DeleteFunc(mounts, func(o specs.Mount) bool { return o.Destination == m.Destination })
		mounts = append(mounts, m)
	}
	mode := "rw"
	if sec.GetReadonlyRootfs() {
		mode = "ro"
	}
	for _, f := range []struct {
		at, from, mode string
		mapped         bool // the host's root owns the file; in the container the container's root does
	}{
		{"/etc/hostname", in.Files.Hostname, mode, true},
		{"/etc/hosts", in.Files.Hosts, mode, true},
		{"/etc/resolv.conf", in.Files.ResolvConf, mode, true},
		{"/dev/shm", in.Files.Shm, "rw", false},
	} {
		if f.from == "" {
			continue
		}
		opts := []string{"rbind", "rprivate", f.mode}
		if f.mapped && in.Namespaces.User != "" {
			opts = append(opts, idMapped)
		}
		put(specs.Mount{
			Destination: f.at,
			Type:        "bind",
			Source:      f.from,
			Options:     opts,
		})
	}
	propagation := "private"
	for _, m := range in.Container.GetMounts() {
		om, err := bindMount(m, in.Namespaces.User != "")
		if err != nil {
			return nil, "", err
		}
		put(om)
		switch m.GetPropagation() {
		case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
			propagation = "rshared"
		case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
			if propagation == "private" {
				propagation = "rslave"
			}
		case runtimeapi.MountPropagation_PROPAGATION_PRIVATE:
		}
	}
	slices.SortStableFunc(mounts, func(a, b specs.Mount) int {
		return strings.Count(a.Destination, "/") - strings.Count(b.Destination, "/")
	})
	return mounts, propagation, nil
}

// idMapped is the mount option that maps file owners with the id mappings of the container's user namespace. It does
// not apply to mounts below this one.
const idMapped = "idmap"

func bindMount(mount *runtimeapi.Mount, ownUserNamespace bool) (specs.Mount, error) {
	at := filepath.Clean(mount.GetContainerPath())
	if !strings.HasPrefix(at, "/") {
		at = "/" + at
	}
	if at == "/" {
		return specs.Mount{}, invalid("mount of %s: the container path is its root", mount.GetHostPath())
	}
	if mount.GetHostPath() == "" {
		return specs.Mount{}, invalid("mount at %s: no host path", at)
	}
	opts := []string{"rbind"}
	if len(mount.GetUidMappings())+len(mount.GetGidMappings()) > 0 {
		if !ownUserNamespace {
			return specs.Mount{}, invalid("mount at %s: id mappings without a user namespace", at)
		}
		opts = append(opts, idMapped)
	}
	switch mount.GetPropagation() {
	case runtimeapi.MountPropagation_PROPAGATION_PRIVATE:
		opts = append(opts, "rprivate")
	case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		opts = append(opts, "rslave")
	case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		opts = append(opts, "rshared")
	default:
		return specs.Mount{}, invalid("mount at %s: propagation %d", at, mount.GetPropagation())
	}
	switch {
	case mount.GetRecursiveReadOnly() &&
		(!mount.GetReadonly() || mount.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_PRIVATE):
		return specs.Mount{}, invalid("mount at %s: recursive read-only needs read-only and private propagation", at)
	case mount.GetRecursiveReadOnly():
		opts = append(opts, "rro")
	case mount.GetReadonly():
		opts = append(opts, "ro")
	default:
		opts = append(opts, "rw")
	}
	for _, o := range mount.GetMountOptions() {
		if !slices.Contains([]string{"noexec", "nodev", "nosuid"}, o) {
			return specs.Mount{}, invalid("mount at %s: option %q", at, o)
		}
		opts = append(opts, o)
	}
	return specs.Mount{
		Destination: at,
		Type:        "bind",
		Source:      mount.GetHostPath(),
		Options:     opts,
	}, nil
}

// kernelMounts returns the kernel file systems that every container has.
func kernelMounts(privileged bool) []specs.Mount {
	mode := "ro"
	if privileged {
		mode = "rw"
	}
	return []specs.Mount{
		{
			Destination: "/proc",
			Type:        "proc",
			Source:      "proc",
			Options:     []string{"nosuid", "noexec", "nodev"},
		},
		{
			Destination: "/dev",
			Type:        "tmpfs",
			Source:      "tmpfs",
			Options:     []string{"nosuid", "strictatime", "mode=755", "size=65536k"},
		},
		{
			Destination: "/dev/pts",
			Type:        "devpts",
			Source:      "devpts",
			Options:     []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"},
		},
		{
			Destination: "/dev/mqueue",
			Type:        "mqueue",
			Source:      "mqueue",
			Options:     []string{"nosuid", "noexec", "nodev"},
		},
		{
			Destination: "/sys",
			Type:        "sysfs",
			Source:      "sysfs",
			Options:     []string{"nosuid", "noexec", "nodev", mode},
		},
		{
			Destination: "/sys/fs/cgroup",
			Type:        "cgroup",
			Source:      "cgroup",
			Options:     []string{"nosuid", "noexec", "nodev", "relatime", mode},
		},
	}
}
