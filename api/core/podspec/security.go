// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/util/sysctl"

	"keelson/api/internal/check"
)

// checkPodSecurity checks the pod's security context.
func checkPodSecurity(errs *check.List, spec *corev1.PodSpec) {
	sc := spec.SecurityContext
	if share := spec.ShareProcessNamespace; share != nil && *share && spec.HostPID {
		errs.Invalid("securityContext.shareProcessNamespace", *share,
			"ShareProcessNamespace and HostPID cannot both be enabled")
	}
	if sc == nil {
		return
	}
	errs.In("securityContext")
	errs.GroupID("fsGroup", sc.FSGroup)
	errs.UserID("runAsUser", sc.RunAsUser)
	errs.GroupID("runAsGroup", sc.RunAsGroup)
	if len(sc.SupplementalGroups) > 0 {
		errs.In("supplementalGroups")
		for i := range sc.SupplementalGroups {
			errs.Index(i)
			errs.GroupID("", &sc.SupplementalGroups[i])
			errs.Out()
		}
		errs.Out()
	}
	checkSysctls(errs, spec, sc.Sysctls)
	check.Pointer(errs, "fsGroupChangePolicy", sc.FSGroupChangePolicy, corev1.FSGroupChangeAlways,
		corev1.FSGroupChangeOnRootMismatch)
	checkSeccomp(errs, sc.SeccompProfile)
	checkWindowsOptions(errs, sc.WindowsOptions)
	checkAppArmor(errs, sc.AppArmorProfile)
	check.Pointer(errs, "supplementalGroupsPolicy", sc.SupplementalGroupsPolicy,
		corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict)
	check.Pointer(errs, "seLinuxChangePolicy", sc.SELinuxChangePolicy,
		corev1.SELinuxChangePolicyMountOption, corev1.SELinuxChangePolicyRecursive)
	errs.Out()
}

const (
	sysctlSegment   = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
	sysctlMaxLength = 253
)

var sysctlName = regexp.MustCompile("^(" + sysctlSegment + `[\./])*` + sysctlSegment + "$")

func checkSysctls(errs *check.List, spec *corev1.PodSpec, list []corev1.Sysctl) {
	var seen check.Set
	errs.In("sysctls")
	for i := range list {
		name := list[i].Name
		errs.Index(i)
		switch {
		case name == "":
			errs.Required("name", "")
		case len(name) > sysctlMaxLength || !sysctlName.MatchString(name):
			errs.Invalid("name", name,
				fmt.Sprintf("must have at most %d characters and match regex %s", sysctlMaxLength, sysctlName))
		case !seen.Add(name):
			errs.Duplicate("name", name)
		}
		ns, _, _ := sysctl.GetNamespace(name)
		switch {
		case spec.HostNetwork && ns == sysctl.NetNamespace:
			errs.Invalid("name", name, "may not be specified when 'hostNetwork' is true")
		case spec.HostIPC && ns == sysctl.IPCNamespace:
			errs.Invalid("name", name, "may not be specified when 'hostIPC' is true")
		}
		errs.Out()
	}
	errs.Out()
}

// checkSecurity checks a container's security context.
func checkSecurity(errs *check.List, spec *corev1.PodSpec, sc *corev1.SecurityContext) {
	if sc == nil {
		return
	}
	errs.In("securityContext")
	errs.UserID("runAsUser", sc.RunAsUser)
	errs.GroupID("runAsGroup", sc.RunAsGroup)
	if sc.ProcMount != nil {
		check.Pointer(errs, "procMount", sc.ProcMount, corev1.DefaultProcMount, corev1.UnmaskedProcMount)
		if *sc.ProcMount == corev1.UnmaskedProcMount && (spec.HostUsers == nil || *spec.HostUsers) {
			errs.Invalid("procMount", *sc.ProcMount, "`hostUsers` must be false to use `Unmasked`")
		}
	}
	checkSeccomp(errs, sc.SeccompProfile)
	if sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation {
		if sc.Privileged != nil && *sc.Privileged {
			errs.Invalid("", sc, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
		}
		if sc.Capabilities != nil {
			for _, capability := range sc.Capabilities.Add {
				if capability == "CAP_SYS_ADMIN" {
					errs.Invalid("", sc, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` "+
						"CAP_SYS_ADMIN")
				}
			}
		}
	}
	checkWindowsOptions(errs, sc.WindowsOptions)
	checkAppArmor(errs, sc.AppArmorProfile)
	errs.Out()
}

func checkSeccomp(errs *check.List, seccompProfile *corev1.SeccompProfile) {
	if seccompProfile == nil {
		return
	}
	errs.In("seccompProfile")
	switch seccompProfile.Type {
	case corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault,
		corev1.SeccompProfileTypeUnconfined:
	case "":
		errs.Required("type", "type is required when seccompProfile is set")
	default:
		check.NotSupported(errs, "type", seccompProfile.Type,
			corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault,
			corev1.SeccompProfileTypeUnconfined)
	}
	switch local := seccompProfile.Type == corev1.SeccompProfileTypeLocalhost; {
	case local && seccompProfile.LocalhostProfile == nil:
		errs.Required("localhostProfile", "must be set when seccomp type is Localhost")
	case local:
		checkDescending(errs, "localhostProfile", *seccompProfile.LocalhostProfile)
	case seccompProfile.LocalhostProfile != nil:
		errs.Invalid("localhostProfile", seccompProfile, "can only be set when seccomp type is Localhost")
	}
	errs.Out()
}

func checkAppArmor(errs *check.List, profile *corev1.AppArmorProfile) {
	if profile == nil {
		return
	}
	errs.In("appArmorProfile")
	switch profile.Type {
	case corev1.AppArmorProfileTypeLocalhost:
		checkAppArmorLocal(errs, profile.LocalhostProfile)
	case corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined:
		if profile.LocalhostProfile != nil {
			errs.Invalid("localhostProfile", *profile.LocalhostProfile,
				"can only be set when AppArmor type is Localhost")
		}
	case "":
		errs.Required("type", "type is required when appArmorProfile is set")
	default:
		check.NotSupported(errs, "type", profile.Type,
			corev1.AppArmorProfileTypeLocalhost, corev1.AppArmorProfileTypeRuntimeDefault,
			corev1.AppArmorProfileTypeUnconfined)
	}
	errs.Out()
}

func checkAppArmorLocal(errs *check.List, name *string) {
	const longest = 4095 // PATH_MAX - 1
	switch {
	case name == nil:
		errs.Required("localhostProfile", "must be set when AppArmor type is Localhost")
		return
	case strings.TrimSpace(*name) != *name:
		errs.Invalid("localhostProfile", *name, "must not be padded with whitespace")
	case *name == "":
		errs.Required("localhostProfile", "must be set when AppArmor type is Localhost")
	}
	if len(*name) > longest {
		errs.TooLong("localhostProfile", longest)
	}
}

// checkHostUsers keeps pods in a user namespace of their own out of the host's other namespaces (KEP-127).
func checkHostUsers(errs *check.List, spec *corev1.PodSpec) {
	if spec.HostUsers == nil || *spec.HostUsers {
		return
	}
	const why = "when `pod.Spec.HostUsers` is false"
	if spec.HostNetwork {
		errs.Forbidden("hostNetwork", why)
	}
	if spec.HostPID {
		errs.Forbidden("HostPID", why)
	}
	if spec.HostIPC {
		errs.Forbidden("HostIPC", why)
	}
	for i := range spec.Containers {
		if len(spec.Containers[i].VolumeDevices) > 0 {
			errs.In("containers")
			errs.Index(i)
			errs.Forbidden("volumeDevices", why)
			errs.Out()
			errs.Out()
		}
	}
}
