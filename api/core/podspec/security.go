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

// podSecurity checks the pod's security context.
func (c *Checker) podSecurity() {
	sc := c.spec.SecurityContext
	if share := c.spec.ShareProcessNamespace; share != nil && *share && c.spec.HostPID {
		c.Invalid("securityContext.shareProcessNamespace", *share,
			"ShareProcessNamespace and HostPID cannot both be enabled")
	}
	if sc == nil {
		return
	}
	c.In("securityContext")
	c.GroupID("fsGroup", sc.FSGroup)
	c.UserID("runAsUser", sc.RunAsUser)
	c.GroupID("runAsGroup", sc.RunAsGroup)
	if len(sc.SupplementalGroups) > 0 {
		c.In("supplementalGroups")
		for i := range sc.SupplementalGroups {
			c.Index(i)
			c.GroupID("", &sc.SupplementalGroups[i])
			c.Out()
		}
		c.Out()
	}
	c.sysctls(sc.Sysctls)
	check.Pointer(c.List, "fsGroupChangePolicy", sc.FSGroupChangePolicy, corev1.FSGroupChangeAlways,
		corev1.FSGroupChangeOnRootMismatch)
	c.seccomp(sc.SeccompProfile)
	c.windowsOptions(sc.WindowsOptions)
	c.appArmor(sc.AppArmorProfile)
	check.Pointer(c.List, "supplementalGroupsPolicy", sc.SupplementalGroupsPolicy,
		corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict)
	check.Pointer(c.List, "seLinuxChangePolicy", sc.SELinuxChangePolicy,
		corev1.SELinuxChangePolicyMountOption, corev1.SELinuxChangePolicyRecursive)
	c.Out()
}

const (
	sysctlSegment   = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
	sysctlMaxLength = 253
)

var sysctlName = regexp.MustCompile("^(" + sysctlSegment + `[\./])*` + sysctlSegment + "$")

func (c *Checker) sysctls(list []corev1.Sysctl) {
	var seen check.Set
	c.In("sysctls")
	for i := range list {
		name := list[i].Name
		c.Index(i)
		switch {
		case name == "":
			c.Required("name", "")
		case len(name) > sysctlMaxLength || !sysctlName.MatchString(name):
			c.Invalid("name", name, fmt.Sprintf("must have at most %d characters and match regex %s", sysctlMaxLength,
				sysctlName))
		case !seen.Add(name):
			c.Duplicate("name", name)
		}
		ns, _, _ := sysctl.GetNamespace(name)
		switch {
		case c.spec.HostNetwork && ns == sysctl.NetNamespace:
			c.Invalid("name", name, "may not be specified when 'hostNetwork' is true")
		case c.spec.HostIPC && ns == sysctl.IPCNamespace:
			c.Invalid("name", name, "may not be specified when 'hostIPC' is true")
		}
		c.Out()
	}
	c.Out()
}

// security checks a container's security context.
func (c *Checker) security(sc *corev1.SecurityContext) {
	if sc == nil {
		return
	}
	c.In("securityContext")
	c.UserID("runAsUser", sc.RunAsUser)
	c.GroupID("runAsGroup", sc.RunAsGroup)
	if sc.ProcMount != nil {
		check.Pointer(c.List, "procMount", sc.ProcMount, corev1.DefaultProcMount, corev1.UnmaskedProcMount)
		if *sc.ProcMount == corev1.UnmaskedProcMount && (c.spec.HostUsers == nil || *c.spec.HostUsers) {
			c.Invalid("procMount", *sc.ProcMount, "`hostUsers` must be false to use `Unmasked`")
		}
	}
	c.seccomp(sc.SeccompProfile)
	if sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation {
		if sc.Privileged != nil && *sc.Privileged {
			c.Invalid("", sc, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
		}
		if sc.Capabilities != nil {
			for _, capability := range sc.Capabilities.Add {
				if capability == "CAP_SYS_ADMIN" {
					c.Invalid("", sc, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` "+
						"CAP_SYS_ADMIN")
				}
			}
		}
	}
	c.windowsOptions(sc.WindowsOptions)
	c.appArmor(sc.AppArmorProfile)
	c.Out()
}

func (c *Checker) seccomp(seccompProfile *corev1.SeccompProfile) {
	if seccompProfile == nil {
		return
	}
	c.In("seccompProfile")
	switch seccompProfile.Type {
	case corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault,
		corev1.SeccompProfileTypeUnconfined:
	case "":
		c.Required("type", "type is required when seccompProfile is set")
	default:
		check.NotSupported(c.List, "type", seccompProfile.Type,
			corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault,
			corev1.SeccompProfileTypeUnconfined)
	}
	switch local := seccompProfile.Type == corev1.SeccompProfileTypeLocalhost; {
	case local && seccompProfile.LocalhostProfile == nil:
		c.Required("localhostProfile", "must be set when seccomp type is Localhost")
	case local:
		c.descending("localhostProfile", *seccompProfile.LocalhostProfile)
	case seccompProfile.LocalhostProfile != nil:
		c.Invalid("localhostProfile", seccompProfile, "can only be set when seccomp type is Localhost")
	}
	c.Out()
}

func (c *Checker) appArmor(profile *corev1.AppArmorProfile) {
	if profile == nil {
		return
	}
	c.In("appArmorProfile")
	switch profile.Type {
	case corev1.AppArmorProfileTypeLocalhost:
		c.appArmorLocal(profile.LocalhostProfile)
	case corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined:
		if profile.LocalhostProfile != nil {
			c.Invalid("localhostProfile", *profile.LocalhostProfile, "can only be set when AppArmor type is Localhost")
		}
	case "":
		c.Required("type", "type is required when appArmorProfile is set")
	default:
		check.NotSupported(c.List, "type", profile.Type,
			corev1.AppArmorProfileTypeLocalhost, corev1.AppArmorProfileTypeRuntimeDefault,
			corev1.AppArmorProfileTypeUnconfined)
	}
	c.Out()
}

func (c *Checker) appArmorLocal(name *string) {
	const longest = 4095 // PATH_MAX - 1
	switch {
	case name == nil:
		c.Required("localhostProfile", "must be set when AppArmor type is Localhost")
		return
	case strings.TrimSpace(*name) != *name:
		c.Invalid("localhostProfile", *name, "must not be padded with whitespace")
	case *name == "":
		c.Required("localhostProfile", "must be set when AppArmor type is Localhost")
	}
	if len(*name) > longest {
		c.TooLong("localhostProfile", longest)
	}
}

// hostUsers keeps pods in a user namespace of their own out of the host's other namespaces (KEP-127).
func (c *Checker) hostUsers() {
	spec := c.spec
	if spec.HostUsers == nil || *spec.HostUsers {
		return
	}
	const why = "when `pod.Spec.HostUsers` is false"
	if spec.HostNetwork {
		c.Forbidden("hostNetwork", why)
	}
	if spec.HostPID {
		c.Forbidden("HostPID", why)
	}
	if spec.HostIPC {
		c.Forbidden("HostIPC", why)
	}
	for i := range spec.Containers {
		if len(spec.Containers[i].VolumeDevices) > 0 {
			c.In("containers")
			c.Index(i)
			c.Forbidden("volumeDevices", why)
			c.Out()
			c.Out()
		}
	}
}
