// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Paths that are masked or read-only in a container, unless procMount is Unmasked.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// allMasked are maskedPaths and further paths of this machine that reveal the load of others.
var allMasked = sync.OnceValue(func() []string {
	return slices.Concat(maskedPaths, throttles("/sys/devices/system/cpu"))
})

// throttles are the directories below /sys with the CPUs' thermal throttle counters.
func throttles(sys string) []string {
	found, err := filepath.Glob(filepath.Join(sys, "cpu[0-9]*", "thermal_throttle"))
	if err != nil {
		return nil // only for a malformed pattern
	}
	return found
}

// effective returns the security context of a container: its own fields, else those of its pod.
func effective(p *corev1.Pod, c *corev1.Container) corev1.SecurityContext {
	var out corev1.SecurityContext
	if c.SecurityContext != nil {
		out = *c.SecurityContext.DeepCopy()
	}
	ps := p.Spec.SecurityContext
	if ps == nil {
		return out
	}
	if out.RunAsUser == nil {
		out.RunAsUser = ps.RunAsUser
	}
	if out.RunAsGroup == nil {
		out.RunAsGroup = ps.RunAsGroup
	}
	if out.RunAsNonRoot == nil {
		out.RunAsNonRoot = ps.RunAsNonRoot
	}
	if out.SELinuxOptions == nil {
		out.SELinuxOptions = ps.SELinuxOptions
	}
	if out.SeccompProfile == nil {
		out.SeccompProfile = ps.SeccompProfile
	}
	if out.AppArmorProfile == nil {
		out.AppArmorProfile = ps.AppArmorProfile
	}
	return out
}

// AppArmorProfile returns the AppArmor profile of a container, its own or its pod's; nil: none.
func AppArmorProfile(p *corev1.Pod, c *corev1.Container) *corev1.AppArmorProfile {
	return effective(p, c).AppArmorProfile
}

func containerSecurity(
	pod *corev1.Pod, container *corev1.Container, in ContainerInput,
) (*runtimeapi.LinuxContainerSecurityContext, error) {
	context := effective(pod, container)
	sc := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: namespaces(pod, in.Users),
		RunAsUser:        wrap64(context.RunAsUser),
		RunAsGroup:       wrap64(context.RunAsGroup),
		Privileged:       isTrue(context.Privileged),
		ReadonlyRootfs:   isTrue(context.ReadOnlyRootFilesystem),
		NoNewPrivs:       context.AllowPrivilegeEscalation != nil && !*context.AllowPrivilegeEscalation,
		MaskedPaths:      allMasked(),
		ReadonlyPaths:    readonlyPaths,
		Seccomp:          seccomp(context.SeccompProfile, in.SeccompDir),
		Apparmor:         apparmor(context.AppArmorProfile),
		SelinuxOptions:   selinux(context.SELinuxOptions),
	}
	if isTrue(context.Privileged) || context.ProcMount != nil && *context.ProcMount == corev1.UnmaskedProcMount {
		sc.MaskedPaths = nil
		sc.ReadonlyPaths = nil
	}
	if isTrue(context.Privileged) {
		sc.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	}
	if context.Capabilities != nil {
		sc.Capabilities = &runtimeapi.Capability{}
		for _, v := range context.Capabilities.Add {
			sc.Capabilities.AddCapabilities = append(sc.Capabilities.AddCapabilities, string(v))
		}
		for _, v := range context.Capabilities.Drop {
			sc.Capabilities.DropCapabilities = append(sc.Capabilities.DropCapabilities, string(v))
		}
	}
	if in.TargetID != "" {
		sc.NamespaceOptions.Pid = runtimeapi.NamespaceMode_TARGET
		sc.NamespaceOptions.TargetId = in.TargetID
	}
	sc.SupplementalGroups, sc.SupplementalGroupsPolicy = groups(pod)
	if context.RunAsUser == nil && in.Image != nil {
		if in.Image.GetUid() != nil {
			sc.RunAsUser = in.Image.GetUid()
		} else {
			sc.RunAsUsername = in.Image.GetUsername()
		}
	}
	return sc, nonRoot(pod, container, &context, in.Image)
}

func nonRoot(pod *corev1.Pod, container *corev1.Container, e *corev1.SecurityContext, img *runtimeapi.Image) error {
	if !isTrue(e.RunAsNonRoot) {
		return nil
	}
	switch {
	case e.RunAsUser != nil && *e.RunAsUser == 0:
		return ErrNonRoot(pod, container, "container's runAsUser breaks non-root policy")
	case e.RunAsUser != nil:
		return nil
	case img.GetUid() != nil && img.GetUid().GetValue() == 0 || img.GetUid() == nil && img.GetUsername() == "":
		return ErrNonRoot(pod, container, "image will run as root")
	case img.GetUid() == nil:
		return ErrNonRoot(pod, container, "image has non-numeric user ("+img.GetUsername()+
			"), cannot verify user is non-root")
	}
	return nil
}

func groups(p *corev1.Pod) ([]int64, runtimeapi.SupplementalGroupsPolicy) {
	ps := p.Spec.SecurityContext
	if ps == nil {
		return nil, runtimeapi.SupplementalGroupsPolicy_Merge
	}
	var out []int64
	if ps.FSGroup != nil {
		out = append(out, *ps.FSGroup)
	}
	out = append(out, ps.SupplementalGroups...)
	if ps.SupplementalGroupsPolicy != nil && *ps.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict {
		return out, runtimeapi.SupplementalGroupsPolicy_Strict
	}
	return out, runtimeapi.SupplementalGroupsPolicy_Merge
}

// namespaces returns the namespace options of the pod. users is its user namespace; nil: the host's.
func namespaces(pod *corev1.Pod, users *runtimeapi.UserNamespace) *runtimeapi.NamespaceOption {
	if users == nil {
		users = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}
	}
	option := &runtimeapi.NamespaceOption{
		Network:       runtimeapi.NamespaceMode_POD,
		Ipc:           runtimeapi.NamespaceMode_POD,
		Pid:           runtimeapi.NamespaceMode_CONTAINER,
		UsernsOptions: users,
	}
	if pod.Spec.HostNetwork {
		option.Network = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		option.Ipc = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case pod.Spec.HostPID:
		option.Pid = runtimeapi.NamespaceMode_NODE
	case isTrue(pod.Spec.ShareProcessNamespace):
		option.Pid = runtimeapi.NamespaceMode_POD
	}
	return option
}

func seccomp(s *corev1.SeccompProfile, dir string) *runtimeapi.SecurityProfile {
	if s == nil {
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	}
	switch s.Type {
	case corev1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	case corev1.SeccompProfileTypeLocalhost:
		ref := ""
		if s.LocalhostProfile != nil {
			ref = filepath.Join(dir, filepath.Clean("/"+*s.LocalhostProfile))
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: ref}
	case corev1.SeccompProfileTypeUnconfined:
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
}

func apparmor(a *corev1.AppArmorProfile) *runtimeapi.SecurityProfile {
	if a == nil {
		return nil
	}
	switch a.Type {
	case corev1.AppArmorProfileTypeLocalhost:
		ref := ""
		if a.LocalhostProfile != nil {
			ref = strings.TrimPrefix(*a.LocalhostProfile, "localhost/")
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: ref}
	case corev1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	case corev1.AppArmorProfileTypeRuntimeDefault:
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
}

func selinux(s *corev1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if s == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{
		User:  s.User,
		Role:  s.Role,
		Type:  s.Type,
		Level: s.Level,
	}
}
