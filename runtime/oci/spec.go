// SPDX-License-Identifier: Apache-2.0

// Package oci computes the OCI runtime spec of a container from its CRI configuration, the image's configuration and
// the facts of this machine. runtime/server calls it. It is a pure function: it opens, stats and mounts nothing.
package oci

import (
	"errors"
	"fmt"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
)

// ErrInvalid is wrapped by errors in the CRI request; runtime/server maps it to InvalidArgument.
var ErrInvalid = errors.New("invalid container configuration")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// Input is everything that the spec depends on. The caller has read all files: Spec reads none.
type Input struct {
	Container *runtimeapi.ContainerConfig
	// Sandbox is the pod as the kubelet describes it now. It may have got a privileged ephemeral container since the
	// sandbox was made.
	Sandbox *runtimeapi.PodSandboxConfig
	Image   ocispec.ImageConfig
	Host    linux.Facts
	// Hostname is the pod's host name, for $HOSTNAME.
	Hostname string
	// Rootfs is the mounted root file system.
	Rootfs string
	// Passwd and Group are the contents of the image's /etc/passwd and /etc/group; nil when it has none.
	Passwd, Group []byte
	Namespaces    Namespaces
	Files         PodFiles
	// CgroupPath is the container's cgroup, relative to the root of the hierarchies.
	CgroupPath string
	// Devices are the host's device nodes for the container, with their paths in the container; for a privileged
	// container all device nodes of the host.
	Devices []Device
	// SeccompProfile is the content of the profile file when the type is Localhost.
	SeccompProfile []byte
}

// Namespaces are paths of the pod's namespaces to join. An empty path means the host's namespace, except for PID, where
// it means a new one. With User, mounts that have id mappings get those of the user namespace.
type Namespaces struct {
	User, Network, IPC, UTS, PID string
}

// PodFiles are host paths of files that are mounted into every container of the pod, unless the container mounts
// something else there. Empty ones are not mounted.
type PodFiles struct {
	Hosts, ResolvConf, Hostname, Shm string
}

// Device is a device node with its cgroup access ("rwm").
type Device struct {
	specs.LinuxDevice
	Access string
}

// Result is the spec, and the resolved user, which ContainerStatus reports.
type Result struct {
	Spec *specs.Spec
	User *runtimeapi.LinuxContainerUser
}

// Spec computes the OCI spec. Errors that wrap ErrInvalid name the invalid field.
func Spec(in Input) (Result, error) {
	sec := in.Container.GetLinux().GetSecurityContext()
	if err := checkSupported(in, sec); err != nil {
		return Result{}, err
	}
	user, err := resolveUser(in, sec)
	if err != nil {
		return Result{}, err
	}
	process, err := newProcess(in, sec, user)
	if err != nil {
		return Result{}, err
	}
	mounts, propagation, err := mountsOf(in, sec)
	if err != nil {
		return Result{}, err
	}
	seccomp, err := seccompOf(in, sec, process.Capabilities)
	if err != nil {
		return Result{}, err
	}
	spec := &specs.Spec{
		Version: specs.Version,
		Process: process,
		Root:    &specs.Root{Path: in.Rootfs, Readonly: sec.GetReadonlyRootfs()},
		Mounts:  mounts,
		Linux: &specs.Linux{
			CgroupsPath:       in.CgroupPath,
			Namespaces:        namespacesOf(in, sec),
			Resources:         Resources(in.Container.GetLinux().GetResources(), in.Host),
			RootfsPropagation: propagation,
			Seccomp:           seccomp,
		},
	}
	spec.Process.ApparmorProfile = appArmorProfile(sec)
	devicesOf(spec.Linux, in, sec)
	if !sec.GetPrivileged() {
		spec.Linux.MaskedPaths = sec.GetMaskedPaths()
		spec.Linux.ReadonlyPaths = sec.GetReadonlyPaths()
	}
	reported := &runtimeapi.LinuxContainerUser{Uid: int64(user.uid), Gid: int64(user.gid)}
	for _, g := range user.groups {
		reported.SupplementalGroups = append(reported.SupplementalGroups, int64(g))
	}
	return Result{Spec: spec, User: reported}, nil
}

// checkSupported refuses requests that would otherwise be ignored silently.
func checkSupported(in Input, sec *runtimeapi.LinuxContainerSecurityContext) error {
	if u := sec.GetNamespaceOptions().GetUsernsOptions(); u != nil && u.GetMode() != runtimeapi.NamespaceMode_NODE &&
		in.Namespaces.User == "" {
		return invalid("a user namespace in a pod sandbox that has none")
	}
	if sec.GetPrivileged() && !in.Sandbox.GetLinux().GetSecurityContext().GetPrivileged() {
		return invalid("a privileged container in a pod sandbox that is not privileged")
	}
	return checkAppArmor(in, sec)
}

// checkAppArmor refuses a Localhost profile on a kernel without AppArmor. RuntimeDefault and Unconfined mean the same
// there: none.
func checkAppArmor(in Input, sec *runtimeapi.LinuxContainerSecurityContext) error {
	if appArmorProfile(sec) != "" && !in.Host.AppArmor {
		return invalid("an AppArmor profile is asked for, but the kernel has no AppArmor")
	}
	return nil
}

// appArmorProfile returns the name of the Localhost profile; empty: none.
func appArmorProfile(sec *runtimeapi.LinuxContainerSecurityContext) string {
	if a := sec.GetApparmor(); a != nil {
		if a.GetProfileType() != runtimeapi.SecurityProfile_Localhost {
			return ""
		}
		return strings.TrimPrefix(a.GetLocalhostRef(), "localhost/")
	}
	p := sec.GetApparmorProfile() //nolint:staticcheck // old kubelets
	if p == "runtime/default" || p == "unconfined" {
		return ""
	}
	return strings.TrimPrefix(p, "localhost/")
}

func namespacesOf(in Input, sec *runtimeapi.LinuxContainerSecurityContext) []specs.LinuxNamespace {
	opts := sec.GetNamespaceOptions()
	out := []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	if opts.GetPid() != runtimeapi.NamespaceMode_NODE {
		out = append(out, specs.LinuxNamespace{Type: specs.PIDNamespace, Path: in.Namespaces.PID})
	}
	for _, ns := range []specs.LinuxNamespace{
		{Type: specs.UserNamespace, Path: in.Namespaces.User},
		{Type: specs.NetworkNamespace, Path: in.Namespaces.Network},
		{Type: specs.IPCNamespace, Path: in.Namespaces.IPC},
		{Type: specs.UTSNamespace, Path: in.Namespaces.UTS},
	} {
		if ns.Path != "" {
			out = append(out, ns)
		}
	}
	if in.Host.Cgroups == linux.CgroupV2 {
		out = append(out, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	return out
}
