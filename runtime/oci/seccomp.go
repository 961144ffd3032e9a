// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"encoding/json"
	"runtime"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// seccompOf returns the seccomp filter; nil: unconfined.
func seccompOf(
	in Input, sec *runtimeapi.LinuxContainerSecurityContext, caps *specs.LinuxCapabilities,
) (*specs.LinuxSeccomp, error) {
	if sec.GetPrivileged() {
		return nil, nil
	}
	kind, asked := profileOf(sec)
	if !asked || kind == runtimeapi.SecurityProfile_Unconfined {
		return nil, nil
	}
	if !in.Host.Seccomp {
		return nil, invalid("a seccomp profile is asked for, but the kernel has no seccomp")
	}
	switch kind {
	case runtimeapi.SecurityProfile_RuntimeDefault:
		return DefaultSeccomp(caps.Bounding), nil
	case runtimeapi.SecurityProfile_Localhost:
		var p specs.LinuxSeccomp
		if err := json.Unmarshal(in.SeccompProfile, &p); err != nil {
			return nil, invalid("seccomp profile %s: %v", sec.GetSeccomp().GetLocalhostRef(), err)
		}
		return &p, nil
	}
	return nil, invalid("seccomp profile type %d", kind)
}

// profileOf returns the profile type, also from the deprecated field that old kubelets send.
func profileOf(sec *runtimeapi.LinuxContainerSecurityContext) (runtimeapi.SecurityProfile_ProfileType, bool) {
	if sec.GetSeccomp() != nil {
		return sec.GetSeccomp().GetProfileType(), true
	}
	switch p := sec.GetSeccompProfilePath(); { //nolint:staticcheck // old kubelets
	case p == "runtime/default" || p == "docker/default":
		return runtimeapi.SecurityProfile_RuntimeDefault, true
	case strings.HasPrefix(p, "localhost/"):
		return runtimeapi.SecurityProfile_Localhost, true
	}
	return 0, false
}

// LocalhostProfile returns the path of the Localhost profile; empty when the security context has another type.
func LocalhostProfile(sec *runtimeapi.LinuxContainerSecurityContext) string {
	if kind, asked := profileOf(sec); !asked || kind != runtimeapi.SecurityProfile_Localhost {
		return ""
	}
	if ref := sec.GetSeccomp().GetLocalhostRef(); ref != "" {
		return strings.TrimPrefix(ref, "localhost/")
	}
	return strings.TrimPrefix(sec.GetSeccompProfilePath(), "localhost/") //nolint:staticcheck // old kubelets
}

// DefaultSeccomp returns the RuntimeDefault filter of a container with these capabilities. System calls fail with EPERM
// unless they are in allowed, or in byCapability with a capability that the container has.
func DefaultSeccomp(caps []string) *specs.LinuxSeccomp {
	deny := uint(1)
	missing := uint(38) // EPERM, ENOSYS
	linuxSeccomp := &specs.LinuxSeccomp{
		DefaultAction:   specs.ActErrno,
		DefaultErrnoRet: &deny,
		Architectures:   archs[runtime.GOARCH],
	}
	allow := func(args []specs.LinuxSeccompArg, names ...string) {
		linuxSeccomp.Syscalls = append(linuxSeccomp.Syscalls, specs.LinuxSyscall{
			Names:  names,
			Action: specs.ActAllow,
			Args:   args,
		})
	}
	names := strings.Fields(allowed)
	for _, c := range byCapability {
		if slices.Contains(caps, c.capability) {
			names = append(names, strings.Fields(c.calls)...)
		}
	}
	slices.Sort(names)
	allow(nil, slices.Compact(names)...)
	for _, persona := range personas {
		allow([]specs.LinuxSeccompArg{{Index: 0, Value: persona, Op: specs.OpEqualTo}}, "personality")
	}
	allow([]specs.LinuxSeccompArg{{Index: 0, Value: afVsock, Op: specs.OpNotEqual}}, "socket")
	if !slices.Contains(caps, "CAP_SYS_ADMIN") {
		allow([]specs.LinuxSeccompArg{{
			Index:    0,
			Value:    namespaceFlags,
			ValueTwo: 0,
			Op:       specs.OpMaskedEqual,
		}}, "clone")
		// A filter cannot read the flags of clone3, which are in memory. After ENOSYS the C library falls back to
		// clone.
		linuxSeccomp.Syscalls = append(linuxSeccomp.Syscalls, specs.LinuxSyscall{
			Names:    []string{"clone3"},
			Action:   specs.ActErrno,
			ErrnoRet: &missing,
		})
	}
	return linuxSeccomp
}

var archs = map[string][]specs.Arch{
	"amd64": {specs.ArchX86_64, specs.ArchX86, specs.ArchX32},
	"arm64": {specs.ArchAARCH64, specs.ArchARM},
}
