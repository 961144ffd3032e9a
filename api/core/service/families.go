// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"

	"keelson/api/internal/check"
)

// Complete puts in what a client that sends a whole service may leave out: what the server allocated for old, and one
// of clusterIP and clusterIPs where only the other was written. old is nil for a creation. It is the first step of
// every write.
func Complete(s, old *corev1.Service) {
	if old != nil {
		keepAllocated(s, old)
	}
	syncClusterIPs(s, old)
}

// syncClusterIPs lets clients that know only clusterIP change it: clusterIPs follows if it is unchanged or absent.
func syncClusterIPs(s, old *corev1.Service) {
	now := &s.Spec
	if old == nil {
		if now.ClusterIP != "" && len(now.ClusterIPs) == 0 {
			now.ClusterIPs = []string{now.ClusterIP}
		}
		return
	}
	was := &old.Spec
	if len(was.ClusterIPs) > 0 && len(now.ClusterIPs) == 0 && was.ClusterIP == now.ClusterIP {
		now.ClusterIPs = slices.Clone(was.ClusterIPs)
	}
	if was.ClusterIP == now.ClusterIP || !slices.Equal(was.ClusterIPs, now.ClusterIPs) {
		return
	}
	if was.ClusterIP != "" && now.ClusterIP == "" {
		now.ClusterIPs = nil
	} else {
		now.ClusterIPs = []string{now.ClusterIP}
	}
}

func keepAllocated(service, old *corev1.Service) {
	now := &service.Spec
	was := &old.Spec
	if needsClusterIP(old) && needsClusterIP(service) {
		if now.ClusterIP == "" {
			now.ClusterIP = was.ClusterIP
		}
		if len(now.ClusterIPs) == 0 {
			now.ClusterIPs = slices.Clone(was.ClusterIPs)
		}
	}
	if GetsNodePorts(old) && GetsNodePorts(service) {
		keepNodePorts(now, was)
	}
	if HasHealthCheck(old) && HasHealthCheck(service) && now.HealthCheckNodePort == 0 {
		now.HealthCheckNodePort = was.HealthCheckNodePort
	}
}

// keepNodePorts gives ports without node port the one that the port of that name had, unless another port has it now.
func keepNodePorts(now, was *corev1.ServiceSpec) {
	used := map[int32]bool{}
	byName := map[string]int32{}
	for _, p := range now.Ports {
		used[p.NodePort] = true
	}
	for _, p := range was.Ports {
		byName[p.Name] = p.NodePort
	}
	for i := range now.Ports {
		if p := &now.Ports[i]; p.NodePort == 0 && !used[byName[p.Name]] {
			p.NodePort = byName[p.Name]
		}
	}
}

// LeftAlone reports whether an update leaves a service that prefers two families with the addresses and families it
// has: it is not moved to what the cluster has by now.
func LeftAlone(s, old *corev1.Service) bool {
	prefers := func(s *corev1.Service, unset bool) bool {
		p := s.Spec.IPFamilyPolicy
		return p == nil && unset || p != nil && *p == corev1.IPFamilyPolicyPreferDualStack
	}
	return old != nil && s.Spec.Type == old.Spec.Type && hasClusterIP(s) && prefers(s, false) && prefers(old, true) &&
		slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) && slices.Equal(s.Spec.IPFamilies, old.Spec.IPFamilies)
}

// SettleFamilies says which IP families s has, and by what policy, in a cluster that has the given ones, the default
// one first. Complete has been before; old is nil for a creation. Errors are what contradicts itself or the cluster;
// then s is half done.
func SettleFamilies(s, old *corev1.Service, cluster []corev1.IPFamily) field.ErrorList {
	if !needsClusterIP(s) || LeftAlone(s, old) {
		return nil
	}
	spec := &s.Spec
	unselected := spec.ClusterIP == corev1.ClusterIPNone && len(spec.Selector) == 0
	if spec.IPFamilyPolicy == nil {
		spec.IPFamilyPolicy = defaultPolicy(old, unselected)
	}
	errs := check.At(field.NewPath("spec"))
	if clusterIPs(errs, s, old); errs.Len() > 0 {
		return errs.Errors()
	}
	single := *spec.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack
	if old != nil {
		release(errs, spec, &old.Spec, single)
	}
	if single {
		const need = "must be 'RequireDualStack' or 'PreferDualStack' when multiple "
		if len(spec.ClusterIPs) == 2 {
			errs.Invalid("ipFamilyPolicy", *spec.IPFamilyPolicy, need+"cluster IPs are specified")
		}
		if len(spec.IPFamilies) == 2 {
			errs.Invalid("ipFamilyPolicy", *spec.IPFamilyPolicy, need+"IP families are specified")
		}
	}
	familiesOfAddresses(errs, spec, cluster)
	if errs.Len() > 0 {
		return errs.Errors()
	}
	if unselected { // only who writes its endpoints knows: it may have families that the cluster has not
		if len(spec.IPFamilies) == 0 {
			spec.IPFamilies = []corev1.IPFamily{cluster[0]}
		}
		addSecond(spec, !single)
		return nil
	}
	if configuredFamilies(errs, spec, cluster); errs.Len() > 0 {
		return errs.Errors()
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []corev1.IPFamily{cluster[0]}
	}
	addSecond(spec, !single && len(cluster) == 2)
	return nil
}

// defaultPolicy keeps that of the Service before.
func defaultPolicy(old *corev1.Service, unselected bool) *corev1.IPFamilyPolicy {
	policy := corev1.IPFamilyPolicySingleStack
	switch {
	case old != nil && old.Spec.IPFamilyPolicy != nil:
		policy = *old.Spec.IPFamilyPolicy
	case unselected:
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	return &policy
}

// configuredFamilies refuses families that the cluster does not have.
func configuredFamilies(errs *check.List, spec *corev1.ServiceSpec, cluster []corev1.IPFamily) {
	if *spec.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack && len(cluster) < 2 {
		errs.Invalid("ipFamilyPolicy", *spec.IPFamilyPolicy, "this cluster is not configured for dual-stack services")
	}
	errs.In("ipFamilies")
	for i, f := range spec.IPFamilies {
		if !slices.Contains(cluster, f) {
			errs.Index(i)
			errs.Invalid("", f, "not configured on this cluster")
			errs.Out()
		}
	}
	errs.Out()
}

// release lets the second family go where one stack is asked for and nothing else was touched, and wants that it is
// asked for.
func release(errs *check.List, now, was *corev1.ServiceSpec, single bool) {
	ips := len(now.ClusterIPs)
	families := len(now.IPFamilies)
	if single {
		if ips > 1 && slices.Equal(now.ClusterIPs, was.ClusterIPs) {
			now.ClusterIPs = slices.Clone(now.ClusterIPs[:1])
		}
		if families > 1 && slices.Equal(now.IPFamilies, was.IPFamilies) {
			now.IPFamilies = slices.Clone(now.IPFamilies[:1])
		}
		return
	}
	if ips > 0 && ips < len(was.ClusterIPs) {
		errs.Invalid("ipFamilyPolicy", *now.IPFamilyPolicy, "must be 'SingleStack' to release the secondary cluster IP")
	}
	if families > 0 && families < len(was.IPFamilies) {
		errs.Invalid("ipFamilyPolicy", *now.IPFamilyPolicy, "must be 'SingleStack' to release the secondary IP family")
	}
}

// familiesOfAddresses adds the families of addresses that have none yet.
func familiesOfAddresses(errs *check.List, spec *corev1.ServiceSpec, cluster []corev1.IPFamily) {
	errs.In("clusterIPs")
	defer errs.Out()
	for i, ip := range spec.ClusterIPs {
		if ip == corev1.ClusterIPNone {
			return
		}
		if i < len(spec.IPFamilies) {
			continue
		}
		f := familyOf(ip)
		if slices.Contains(cluster, f) {
			spec.IPFamilies = append(spec.IPFamilies, f)
			continue
		}
		errs.Index(i)
		errs.Invalid("", spec.ClusterIPs, fmt.Sprintf("%s is not configured on this cluster", f))
		errs.Out()
	}
}

func addSecond(spec *corev1.ServiceSpec, wanted bool) {
	if wanted && len(spec.IPFamilies) == 1 {
		spec.IPFamilies = []corev1.IPFamily{spec.IPFamilies[0], OtherFamily(spec.IPFamilies[0])}
	}
}

func familyOf(ip string) corev1.IPFamily {
	if utilnet.IsIPv6String(ip) {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// OtherFamily is the one that f is not.
func OtherFamily(f corev1.IPFamily) corev1.IPFamily {
	if f == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}
