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

// dns checks dnsConfig; the limits are libc's.
func (c *Checker) dns() {
	podDNSConfig := c.spec.DNSConfig
	if c.spec.DNSPolicy == corev1.DNSNone {
		if podDNSConfig == nil {
			c.Required("dnsConfig", fmt.Sprintf("must provide `dnsConfig` when `dnsPolicy` is %s", corev1.DNSNone))
			return
		}
		if len(podDNSConfig.Nameservers) == 0 {
			c.Required("dnsConfig.nameservers",
				fmt.Sprintf("must provide at least one DNS nameserver when `dnsPolicy` is %s", corev1.DNSNone))
			return
		}
	}
	if podDNSConfig == nil {
		return
	}
	c.In("dnsConfig")
	if len(podDNSConfig.Nameservers) > maxNameservers {
		c.Invalid("nameservers", podDNSConfig.Nameservers, fmt.Sprintf("must not have more than %v nameservers",
			maxNameservers))
	}
	c.In("nameservers")
	for i, ns := range podDNSConfig.Nameservers {
		c.Index(i)
		c.IP("", ns)
		c.Out()
	}
	c.Out()
	if len(podDNSConfig.Searches) > maxSearchPaths {
		c.Invalid("searches", podDNSConfig.Searches, fmt.Sprintf("must not have more than %v search paths",
			maxSearchPaths))
	}
	if len(strings.Join(podDNSConfig.Searches, " ")) > maxSearchLength {
		c.Invalid("searches", podDNSConfig.Searches,
			fmt.Sprintf("must not have more than %v characters (including spaces) in the search list", maxSearchLength))
	}
	c.In("searches")
	for i, s := range podDNSConfig.Searches {
		if s == "." {
			continue
		}
		c.Index(i)
		s = strings.TrimSuffix(s, ".")
		for _, m := range validation.IsDNS1123SubdomainWithUnderscore(s) {
			c.Invalid("", s, m)
		}
		c.Out()
	}
	c.Out()
	c.In("options")
	for i := range podDNSConfig.Options {
		if podDNSConfig.Options[i].Name == "" {
			c.Index(i)
			c.Required("", "must not be empty")
			c.Out()
		}
	}
	c.Out()
	c.Out()
}

// stopSignal needs to know the operating system it is for (KEP-4960).
func (c *Checker) stopSignal(signal *corev1.Signal) {
	if signal == nil {
		return
	}
	switch os := c.spec.OS; {
	case os == nil:
		c.Forbidden("stopSignal", "may not be set for containers with empty `spec.os.name`")
	case os.Name == corev1.Windows:
		if *signal != corev1.SIGTERM && *signal != corev1.SIGKILL {
			check.NotSupported(c.List, "stopSignal", *signal, corev1.SIGKILL, corev1.SIGTERM)
		}
	case !slices.Contains(linuxSignals, *signal):
		check.NotSupported(c.List, "stopSignal", *signal, linuxSignals...)
	}
}

// os holds the pod to what its operating system has.
func (c *Checker) os() {
	if c.spec.OS == nil {
		return
	}
	switch c.spec.OS.Name {
	case corev1.Linux:
		c.linux()
	case corev1.Windows:
		c.windows()
	case "":
		c.Required("os.name", "")
	default:
		check.NotSupported(c.List, "os", c.spec.OS.Name, corev1.Linux, corev1.Windows)
	}
}

func (c *Checker) linux() {
	const why = "windows options cannot be set for a linux pod"
	if sc := c.spec.SecurityContext; sc != nil && sc.WindowsOptions != nil {
		c.Forbidden("securityContext.windowsOptions", why)
	}
	c.eachContainer(func(ctr *corev1.Container) {
		if sc := ctr.SecurityContext; sc != nil && sc.WindowsOptions != nil {
			c.Forbidden("securityContext.windowsOptions", why)
		}
	})
}

// eachContainer stands the list at each container in turn, in the order Kubernetes visits them.
func (c *Checker) eachContainer(visit func(*corev1.Container)) {
	walk := func(child string, n int, at func(int) *corev1.Container) {
		c.In(child)
		for i := range n {
			c.Index(i)
			visit(at(i))
			c.Out()
		}
		c.Out()
	}
	s := c.spec
	walk("initContainers", len(s.InitContainers), func(i int) *corev1.Container { return &s.InitContainers[i] })
	walk("containers", len(s.Containers), func(i int) *corev1.Container { return &s.Containers[i] })
	walk("ephemeralContainers", len(s.EphemeralContainers), func(i int) *corev1.Container {
		return (*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon)
	})
}

func (c *Checker) windows() {
	spec := c.spec
	not := func(child string, set bool) {
		if set {
			c.Forbidden(child, "cannot be set for a windows pod")
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
	c.eachContainer(func(ctr *corev1.Container) {
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

// hostProcess wants Windows host processes to be all of the pod's containers, on the host's network.
func (c *Checker) hostProcess() {
	var pod *bool
	if sc := c.spec.SecurityContext; sc != nil && sc.WindowsOptions != nil {
		pod = sc.WindowsOptions.HostProcess
	}
	all := 0
	host := 0
	if pod == nil && !c.anyWindowsOptions() {
		return
	}
	c.eachContainer(func(ctr *corev1.Container) {
		all++
		own := pod
		if sc := ctr.SecurityContext; sc != nil && sc.WindowsOptions != nil && sc.WindowsOptions.HostProcess != nil {
			own = sc.WindowsOptions.HostProcess
			if pod != nil && *pod != *own {
				c.Invalid("securityContext.windowsOptions.hostProcess", *own,
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
		c.Invalid("", "", "If pod contains any hostProcess containers then all containers must be HostProcess "+
			"containers")
	}
	if !c.spec.HostNetwork {
		c.Invalid("hostNetwork", false, "hostNetwork must be true if pod contains any hostProcess containers")
	}
}

func (c *Checker) anyWindowsOptions() (found bool) {
	EachContainer(c.spec, func(ctr *corev1.Container) {
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

func (c *Checker) windowsOptions(options *corev1.WindowsSecurityContextOptions) {
	if options == nil {
		return
	}
	c.In("windowsOptions")
	if options.GMSACredentialSpecName != nil {
		c.Subdomain("gmsaCredentialSpecName", *options.GMSACredentialSpecName)
	}
	if s := options.GMSACredentialSpec; s != nil {
		switch {
		case *s == "":
			c.Invalid("gmsaCredentialSpec", *s, "gmsaCredentialSpec cannot be an empty string")
		case len(*s) > 64*1024:
			c.Invalid("gmsaCredentialSpec", *s, "gmsaCredentialSpec size must be under 64 KiB")
		}
	}
	if options.RunAsUserName != nil {
		for _, m := range windowsUser(*options.RunAsUserName) {
			c.Invalid("runAsUserName", *options.RunAsUserName, m)
		}
	}
	c.Out()
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
