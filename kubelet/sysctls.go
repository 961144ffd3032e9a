// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/node/util/sysctl"
)

// safeSysctls change nothing for other pods of the node; every pod may set them, on kernels from since on.
var safeSysctls = []struct{ name, since string }{
	{"kernel.shm_rmid_forced", ""},
	{"net.ipv4.ip_local_port_range", ""},
	{"net.ipv4.tcp_syncookies", ""},
	{"net.ipv4.ping_group_range", ""},
	{"net.ipv4.ip_unprivileged_port_start", ""},
	{"net.ipv4.ip_local_reserved_ports", "3.16"},
	{"net.ipv4.tcp_keepalive_time", "4.5"},
	{"net.ipv4.tcp_fin_timeout", "4.6"},
	{"net.ipv4.tcp_keepalive_intvl", "4.5"},
	{"net.ipv4.tcp_keepalive_probes", "4.5"},
	{"net.ipv4.tcp_notsent_lowat", "4.6"},
	{"net.ipv4.tcp_rmem", "4.15"},
	{"net.ipv4.tcp_wmem", "4.15"},
	{"net.ipv4.tcp_slow_start_after_idle", "4.15"},
}

// sysctlPattern is a name with dots or slashes, or the beginning of one and a star.
var sysctlPattern = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]$`)

const sysctlMaxLength = 253

// sysctls are the kernel parameters that pods of this node may set, by name or by prefix, with the namespace each
// belongs to.
type sysctls struct {
	names    map[string]sysctl.Namespace
	prefixes map[string]sysctl.Namespace
}

// newSysctls allows what is safe with a kernel, and the patterns that the node's administrator allows besides.
func newSysctls(kernel string, unsafe []string) (*sysctls, error) {
	s := &sysctls{names: map[string]sysctl.Namespace{}, prefixes: map[string]sysctl.Namespace{}}
	have, err := version.ParseGeneric(kernel)
	for _, safe := range safeSysctls {
		if safe.since == "" || err == nil && have.AtLeast(version.MustParseGeneric(safe.since)) {
			s.names[safe.name], _, _ = sysctl.GetNamespace(safe.name)
		}
	}
	var errs []error
	for _, p := range unsafe {
		errs = append(errs, s.allow(p))
	}
	return s, errors.Join(errs...)
}

func (s *sysctls) allow(pattern string) error {
	if len(pattern) > sysctlMaxLength || !sysctlPattern.MatchString(pattern) {
		return fmt.Errorf("sysctl %q must have at most %d characters and match regex %s", pattern, sysctlMaxLength,
			sysctlPattern)
	}
	name := sysctl.NormalizeName(pattern)
	ns, _, _ := sysctl.GetNamespace(name)
	prefix, isPrefix := strings.CutSuffix(name, "*")
	if isPrefix {
		ns, _, _ = sysctl.GetNamespace(prefix)
	}
	switch {
	case ns == sysctl.UnknownNamespace && isPrefix:
		return fmt.Errorf("the sysctls %q are not known to be namespaced", pattern)
	case ns == sysctl.UnknownNamespace:
		return fmt.Errorf("the sysctl %q are not known to be namespaced", pattern)
	case isPrefix:
		s.prefixes[prefix] = ns
	default:
		s.names[name] = ns
	}
	return nil
}

// check says why a pod may not have one of its kernel parameters; nil: it may have all.
func (s *sysctls) check(p *corev1.Pod) error {
	if p.Spec.SecurityContext == nil {
		return nil
	}
	for _, want := range p.Spec.SecurityContext.Sysctls {
		name := sysctl.NormalizeName(want.Name)
		ns, ok := s.find(name)
		switch {
		case !ok:
			return fmt.Errorf("forbidden sysctl: %q not allowlisted", name)
		case ns == sysctl.IPCNamespace && p.Spec.HostIPC, ns == sysctl.NetNamespace && p.Spec.HostNetwork:
			return fmt.Errorf("forbidden sysctl: %q not allowed with host %s enabled", name, ns)
		}
	}
	return nil
}

func (s *sysctls) find(name string) (sysctl.Namespace, bool) {
	if ns, ok := s.names[name]; ok {
		return ns, true
	}
	for p, ns := range s.prefixes {
		if strings.HasPrefix(name, p) {
			return ns, true
		}
	}
	return "", false
}

// ValidateSysctls checks patterns of kernel parameters that a node allows its pods.
func ValidateSysctls(patterns []string) error {
	_, err := newSysctls("", patterns)
	return err
}
