// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"keelson/api/internal/check"
)

const (
	maxNameservers  = 3
	maxSearchPaths  = 32
	maxSearchLength = 2048
)

// checkDNS checks dnsConfig; the limits are libc's.
func checkDNS(errs *check.List, spec *corev1.PodSpec) {
	podDNSConfig := spec.DNSConfig
	if spec.DNSPolicy == corev1.DNSNone {
		if podDNSConfig == nil {
			errs.Required("dnsConfig", fmt.Sprintf("must provide `dnsConfig` when `dnsPolicy` is %s", corev1.DNSNone))
			return
		}
		if len(podDNSConfig.Nameservers) == 0 {
			errs.Required("dnsConfig.nameservers",
				fmt.Sprintf("must provide at least one DNS nameserver when `dnsPolicy` is %s", corev1.DNSNone))
			return
		}
	}
	if podDNSConfig == nil {
		return
	}
	errs.In("dnsConfig")
	if len(podDNSConfig.Nameservers) > maxNameservers {
		errs.Invalid("nameservers", podDNSConfig.Nameservers, fmt.Sprintf("must not have more than %v nameservers",
			maxNameservers))
	}
	errs.In("nameservers")
	for i, ns := range podDNSConfig.Nameservers {
		errs.Index(i)
		errs.IP("", ns)
		errs.Out()
	}
	errs.Out()
	if len(podDNSConfig.Searches) > maxSearchPaths {
		errs.Invalid("searches", podDNSConfig.Searches, fmt.Sprintf("must not have more than %v search paths",
			maxSearchPaths))
	}
	if len(strings.Join(podDNSConfig.Searches, " ")) > maxSearchLength {
		errs.Invalid("searches", podDNSConfig.Searches,
			fmt.Sprintf("must not have more than %v characters (including spaces) in the search list", maxSearchLength))
	}
	errs.In("searches")
	for i, s := range podDNSConfig.Searches {
		if s == "." {
			continue
		}
		errs.Index(i)
		s = strings.TrimSuffix(s, ".")
		for _, m := range validation.IsDNS1123SubdomainWithUnderscore(s) {
			errs.Invalid("", s, m)
		}
		errs.Out()
	}
	errs.Out()
	errs.In("options")
	for i := range podDNSConfig.Options {
		if podDNSConfig.Options[i].Name == "" {
			errs.Index(i)
			errs.Required("", "must not be empty")
			errs.Out()
		}
	}
	errs.Out()
	errs.Out()
}

// checkStopSignal needs to know the operating system it is for (KEP-4960).
func checkStopSignal(errs *check.List, spec *corev1.PodSpec, signal *corev1.Signal) {
	if signal == nil {
		return
	}
	switch os := spec.OS; {
	case os == nil:
		errs.Forbidden("stopSignal", "may not be set for containers with empty `spec.os.name`")
	case os.Name == corev1.Windows:
		if *signal != corev1.SIGTERM && *signal != corev1.SIGKILL {
			check.NotSupported(errs, "stopSignal", *signal, corev1.SIGKILL, corev1.SIGTERM)
		}
	case !slices.Contains(linuxSignals, *signal):
		check.NotSupported(errs, "stopSignal", *signal, linuxSignals...)
	}
}

// checkOS holds the pod to what its operating system has.
func checkOS(errs *check.List, spec *corev1.PodSpec) {
	if spec.OS == nil {
		return
	}
	switch spec.OS.Name {
	case corev1.Linux:
		checkLinux(errs, spec)
	case corev1.Windows:
		checkWindows(errs, spec)
	case "":
		errs.Required("os.name", "")
	default:
		check.NotSupported(errs, "os", spec.OS.Name, corev1.Linux, corev1.Windows)
	}
}

func checkLinux(errs *check.List, spec *corev1.PodSpec) {
	const why = "windows options cannot be set for a linux pod"
	if sc := spec.SecurityContext; sc != nil && sc.WindowsOptions != nil {
		errs.Forbidden("securityContext.windowsOptions", why)
	}
	eachContainerAt(errs, spec, func(ctr *corev1.Container) {
		if sc := ctr.SecurityContext; sc != nil && sc.WindowsOptions != nil {
			errs.Forbidden("securityContext.windowsOptions", why)
		}
	})
}

// eachContainerAt stands the list at each container in turn, in the order Kubernetes visits them.
func eachContainerAt(errs *check.List, spec *corev1.PodSpec, visit func(*corev1.Container)) {
	walk := func(child string, n int, at func(int) *corev1.Container) {
		errs.In(child)
		for i := range n {
			errs.Index(i)
			visit(at(i))
			errs.Out()
		}
		errs.Out()
	}
	s := spec
	walk("initContainers", len(s.InitContainers), func(i int) *corev1.Container { return &s.InitContainers[i] })
	walk("containers", len(s.Containers), func(i int) *corev1.Container { return &s.Containers[i] })
	walk("ephemeralContainers", len(s.EphemeralContainers), func(i int) *corev1.Container {
		return (*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon)
	})
}

func checkWindows(errs *check.List, spec *corev1.PodSpec) {
	not := func(child string, set bool) {
		if set {
			errs.Forbidden(child, "cannot be set for a windows pod")
		}
	}
	if sc := spec.SecurityContext; sc != nil {
		not("securityContext.appArmorProfile", sc.AppArmorProfile != nil)
		not("securityContext.seLinuxOptions", sc.SELinuxOptions != nil)
	}
	not("hostUsers", spec.HostUsers != nil)
	not("hostPID", spec.HostPID)
	not("hostIPC", spec.HostIPC)
	if sc := spec.SecurityContext; sc != nil {
		not("securityContext.seccompProfile", sc.SeccompProfile != nil)
		not("securityContext.fsGroup", sc.FSGroup != nil)
		not("securityContext.fsGroupChangePolicy", sc.FSGroupChangePolicy != nil)
		not("securityContext.sysctls", len(sc.Sysctls) > 0)
	}
	not("shareProcessNamespace", spec.ShareProcessNamespace != nil)
	if sc := spec.SecurityContext; sc != nil {
		not("securityContext.runAsUser", sc.RunAsUser != nil)
		not("securityContext.runAsGroup", sc.RunAsGroup != nil)
		not("securityContext.supplementalGroups", sc.SupplementalGroups != nil)
		not("securityContext.supplementalGroupsPolicy", sc.SupplementalGroupsPolicy != nil)
		not("securityContext.seLinuxChangePolicy", sc.SELinuxChangePolicy != nil)
	}
	eachContainerAt(errs, spec, func(ctr *corev1.Container) {
		sc := ctr.SecurityContext
		if sc == nil {
			return
		}
		not("securityContext.appArmorProfile", sc.AppArmorProfile != nil)
		not("securityContext.seLinuxOptions", sc.SELinuxOptions != nil)
		not("securityContext.seccompProfile", sc.SeccompProfile != nil)
		not("securityContext.capabilities", sc.Capabilities != nil)
		not("securityContext.readOnlyRootFilesystem", sc.ReadOnlyRootFilesystem != nil)
		not("securityContext.privileged", sc.Privileged != nil)
		not("securityContext.allowPrivilegeEscalation", sc.AllowPrivilegeEscalation != nil)
		not("securityContext.procMount", sc.ProcMount != nil)
		not("securityContext.runAsUser", sc.RunAsUser != nil)
		not("securityContext.runAsGroup", sc.RunAsGroup != nil)
	})
}

// checkHostProcess wants Windows host processes to be all of the pod's containers, on the host's network.
func checkHostProcess(errs *check.List, spec *corev1.PodSpec) {
	var pod *bool
	if sc := spec.SecurityContext; sc != nil && sc.WindowsOptions != nil {
		pod = sc.WindowsOptions.HostProcess
	}
	all := 0
	host := 0
	if pod == nil && !hasWindowsOptions(spec) {
		return
	}
	eachContainerAt(errs, spec, func(ctr *corev1.Container) {
		all++
		own := pod
		if sc := ctr.SecurityContext; sc != nil && sc.WindowsOptions != nil && sc.WindowsOptions.HostProcess != nil {
			own = sc.WindowsOptions.HostProcess
			if pod != nil && *pod != *own {
				errs.Invalid("securityContext.windowsOptions.hostProcess", *own,
					fmt.Sprintf("pod hostProcess value must be identical if both are specified, was %v", *pod))
			}
		}
		if own != nil && *own {
			host++
		}
	})
	if host == 0 {
		return
	}
	if host != all {
		errs.Invalid("", "", "If pod contains any hostProcess containers then all containers must be HostProcess "+
			"containers")
	}
	if !spec.HostNetwork {
		errs.Invalid("hostNetwork", false, "hostNetwork must be true if pod contains any hostProcess containers")
	}
}

// hasWindowsOptions reports whether a container has options for Windows.
func hasWindowsOptions(spec *corev1.PodSpec) (found bool) {
	EachContainer(spec, func(ctr *corev1.Container) {
		found = found || ctr.SecurityContext != nil && ctr.SecurityContext.WindowsOptions != nil
	})
	return found
}

const dnsPart = `[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?`

var (
	controlBytes  = regexp.MustCompile(`[[:cntrl:]]+`)
	netBIOSName   = regexp.MustCompile(`^[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}$`)
	dnsDomain     = regexp.MustCompile(`^` + dnsPart + `(?:\.` + dnsPart + `)*$`)
	badUserBytes  = regexp.MustCompile(`["/\\:;|=,\+\*\?<>@\[\]]`)
	dotsAndSpaces = regexp.MustCompile(`^[\. ]+$`)
)

func checkWindowsOptions(errs *check.List, options *corev1.WindowsSecurityContextOptions) {
	if options == nil {
		return
	}
	errs.In("windowsOptions")
	if options.GMSACredentialSpecName != nil {
		errs.Subdomain("gmsaCredentialSpecName", *options.GMSACredentialSpecName)
	}
	if s := options.GMSACredentialSpec; s != nil {
		switch {
		case *s == "":
			errs.Invalid("gmsaCredentialSpec", *s, "gmsaCredentialSpec cannot be an empty string")
		case len(*s) > 64*1024:
			errs.Invalid("gmsaCredentialSpec", *s, "gmsaCredentialSpec size must be under 64 KiB")
		}
	}
	if options.RunAsUserName != nil {
		for _, m := range windowsUser(*options.RunAsUserName) {
			errs.Invalid("runAsUserName", *options.RunAsUserName, m)
		}
	}
	errs.Out()
}

// windowsUser says what is wrong with [DOMAIN\]USER.
func windowsUser(name string) (msgs []string) {
	domain, user, qualified := strings.Cut(name, `\`)
	switch {
	case name == "":
		return []string{"runAsUserName cannot be an empty string"}
	case controlBytes.MatchString(name):
		return []string{"runAsUserName cannot contain control characters"}
	case strings.Contains(user, `\`):
		return []string{"runAsUserName cannot contain more than one backslash"}
	case !qualified:
		domain = ""
		user = name
	}
	if len(domain) >= 256 {
		msgs = append(msgs, "runAsUserName's Domain length must be under 256 characters")
	}
	if qualified && !netBIOSName.MatchString(domain) && !dnsDomain.MatchString(domain) {
		msgs = append(msgs, "runAsUserName's Domain doesn't match the NetBios nor the DNS format")
	}
	if user == "" {
		msgs = append(msgs, "runAsUserName's User cannot be empty")
	} else if len(user) > 104 {
		msgs = append(msgs, "runAsUserName's User length must not be longer than 104 characters")
	}
	if dotsAndSpaces.MatchString(user) {
		msgs = append(msgs, "runAsUserName's User cannot contain only periods or spaces")
	}
	if badUserBytes.MatchString(user) {
		msgs = append(msgs, `runAsUserName's User cannot contain the following characters: "/\:;|=,+*?<>@[]`)
	}
	return msgs
}
