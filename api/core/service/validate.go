// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"

	"keelson/api/internal/check"
	"keelson/api/meta"
)

func validateService(s, old *corev1.Service) field.ErrorList {
	l := check.At(nil)
	l.Add(meta.Finalizers(s)...)
	hints, hasHints := s.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	mode, hasMode := s.Annotations[corev1.AnnotationTopologyMode]
	if hasHints && hasMode && hints != mode {
		l.Add(field.Invalid(field.NewPath("metadata", "annotations").Key(corev1.AnnotationTopologyMode), mode,
			fmt.Sprintf("must match annotations[%s] when both are specified",
				corev1.DeprecatedAnnotationTopologyAwareHints)))
	}
	l.In("spec")
	if len(s.Spec.Ports) == 0 && !headless(s) && s.Spec.Type != corev1.ServiceTypeExternalName {
		l.Required("ports", "")
	}
	serviceForType(l, s)
	servicePorts(l, s)
	l.Labels("selector", s.Spec.Selector)
	sessionAffinity(l, &s.Spec)
	clusterIPs(l, s, old)
	externalIPs(l, s, old)
	check.OneOf(l, "type", s.Spec.Type, corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort)
	serviceDuplicates(l, s)
	l.Out()
	sourceRanges(l, s, old)
	l.In("spec")
	loadBalancerFields(l, s, nil)
	trafficPolicies(l, s)
	l.Out()
	return l.Errors()
}

// serviceForType checks what each type of service may not have.
func serviceForType(l *check.List, s *corev1.Service) {
	switch s.Spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		if headless(s) {
			l.In("clusterIPs")
			l.Index(0)
			l.Invalid("", s.Spec.ClusterIPs[0], fmt.Sprintf("may not be set to 'None' for %s services", s.Spec.Type))
			l.Out()
			l.Out()
		}
	case corev1.ServiceTypeExternalName:
		const why = "may not be set for ExternalName services"
		if len(s.Spec.ClusterIPs) > 0 {
			l.Forbidden("clusterIPs", why)
		}
		if len(s.Spec.IPFamilies) > 0 {
			l.Forbidden("ipFamilies", why)
		}
		if s.Spec.IPFamilyPolicy != nil {
			l.Forbidden("ipFamilyPolicy", why)
		}
		if name := strings.TrimSuffix(s.Spec.ExternalName, "."); name != "" {
			l.Subdomain("externalName", name)
		} else {
			l.Required("externalName", "")
		}
	}
}

// protocols in the order in which they are printed.
var protocols = []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP}

func servicePorts(l *check.List, s *corev1.Service) {
	var names check.Set
	l.In("ports")
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		l.Index(i)
		if p.Name != "" {
			l.Label("name", p.Name)
			if !names.Add(p.Name) {
				l.Duplicate("name", p.Name)
			}
		} else if len(s.Spec.Ports) > 1 {
			l.Required("name", "")
		}
		l.Port("port", p.Port)
		check.OneOf(l, "protocol", p.Protocol, protocols...)
		l.PortOrName("targetPort", p.TargetPort)
		if p.AppProtocol != nil {
			l.Qualified("appProtocol", *p.AppProtocol)
		}
		l.Out()
	}
	l.Out()
}

// serviceDuplicates checks that no two ports are the same, inside or on the nodes.
func serviceDuplicates(l *check.List, s *corev1.Service) {
	type key struct {
		protocol corev1.Protocol
		port     int32
	}
	l.In("ports")
	for i := range s.Spec.Ports {
		if s.Spec.Type == corev1.ServiceTypeClusterIP && s.Spec.Ports[i].NodePort != 0 {
			l.Index(i)
			l.Forbidden("nodePort", "may not be used when `type` is 'ClusterIP'")
			l.Out()
		}
	}
	nodePorts := map[key]bool{}
	ports := map[key]bool{}
	for i, p := range s.Spec.Ports {
		if k := (key{p.Protocol, p.NodePort}); p.NodePort != 0 {
			if nodePorts[k] {
				l.Index(i)
				l.Duplicate("nodePort", p.NodePort)
				l.Out()
			}
			nodePorts[k] = true
		}
	}
	for i, p := range s.Spec.Ports {
		k := key{p.Protocol, p.Port}
		if ports[k] {
			l.Index(i)
			l.Duplicate("", corev1.ServicePort{Protocol: p.Protocol, Port: p.Port})
			l.Out()
		}
		ports[k] = true
	}
	l.Out()
}

func sessionAffinity(l *check.List, s *corev1.ServiceSpec) {
	check.OneOf(l, "sessionAffinity", s.SessionAffinity, corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone)
	c := s.SessionAffinityConfig
	switch {
	case s.SessionAffinity == corev1.ServiceAffinityNone && c != nil:
		l.Forbidden("sessionAffinityConfig", fmt.Sprintf("must not be set when session affinity is %s",
			corev1.ServiceAffinityNone))
	case s.SessionAffinity == corev1.ServiceAffinityClientIP:
		why := fmt.Sprintf("when session affinity type is %s", corev1.ServiceAffinityClientIP)
		const seconds = "sessionAffinityConfig.clientIP.timeoutSeconds"
		switch {
		case c == nil:
			l.Required("sessionAffinityConfig", why)
		case c.ClientIP == nil:
			l.Required("sessionAffinityConfig.clientIP", why)
		case c.ClientIP.TimeoutSeconds == nil:
			l.Required(seconds, why)
		case *c.ClientIP.TimeoutSeconds <= 0 || *c.ClientIP.TimeoutSeconds > 86400:
			l.Invalid(seconds, *c.ClientIP.TimeoutSeconds, "must be greater than 0 and less than 86400")
		}
	}
}

// clusterIPs checks addresses and families, each alone and against each other.
func clusterIPs(l *check.List, s, old *corev1.Service) {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	ips := s.Spec.ClusterIPs
	families := s.Spec.IPFamilies
	switch {
	case s.Spec.ClusterIP != "" && len(ips) == 0:
		l.Required("clusterIPs", "")
	case s.Spec.ClusterIP != "" && ips[0] != s.Spec.ClusterIP:
		l.Invalid("clusterIPs", ips, "first value must match `clusterIP`")
	case s.Spec.ClusterIP == "" && len(ips) != 0:
		l.Invalid("clusterIPs", ips, "must be empty when `clusterIP` is not specified")
	}
	ipFamilies(l, s)
	bad := false
	l.In("clusterIPs")
	for i, ip := range ips {
		if i == 0 && ip == corev1.ClusterIPNone {
			if len(ips) > 1 {
				bad = true
				l.Invalid("", ips, "'None' must be the first and only value")
			}
			continue
		}
		before := l.Len()
		if old == nil || !slices.Contains(old.Spec.ClusterIPs, ip) { // what was let in by older rules stays
			l.Index(i)
			l.IP("", ip)
			l.Out()
		}
		bad = bad || l.Len() > before
	}
	if len(ips) > 2 {
		l.Invalid("", ips, "may only hold up to 2 values")
	}
	l.Out()
	if bad {
		return
	}
	if len(ips) > 1 {
		if dual, err := utilnet.IsDualStackIPStrings(ips); err != nil || !dual {
			l.Invalid("clusterIPs", ips, "may specify no more than one IP for each IP family")
		}
	}
	if headless(s) {
		return
	}
	l.In("clusterIPs")
	for i := range min(len(ips), len(families)) {
		if v6 := utilnet.IsIPv6String(ips[i]); (families[i] == corev1.IPv4Protocol && v6) ||
			(families[i] == corev1.IPv6Protocol && !v6) {
			l.Index(i)
			l.Invalid("", ips[i], fmt.Sprintf("expected an %s value as indicated by `ipFamilies[%v]`", families[i], i))
			l.Out()
		}
	}
	l.Out()
}

// ipFamilies wants known families, once each.
func ipFamilies(l *check.List, s *corev1.Service) {
	var seen check.Set
	l.In("ipFamilies")
	for i, f := range s.Spec.IPFamilies {
		l.Index(i)
		if f != corev1.IPv4Protocol && f != corev1.IPv6Protocol {
			check.NotSupported(l, "", f, corev1.IPv4Protocol, corev1.IPv6Protocol)
		}
		if !seen.Add(string(f)) {
			l.Duplicate("", f)
		}
		l.Out()
	}
	l.Out()
	p := s.Spec.IPFamilyPolicy
	check.Pointer(l, "ipFamilyPolicy", p, corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack,
		corev1.IPFamilyPolicySingleStack)
}

// externalIPs lets the form of an address stay that the old Service has; what it means must be allowed.
func externalIPs(l *check.List, s, old *corev1.Service) {
	l.In("externalIPs")
	for i, ip := range s.Spec.ExternalIPs {
		before := l.Len()
		l.Index(i)
		if old == nil || !slices.Contains(old.Spec.ExternalIPs, ip) {
			l.IP("", ip)
		}
		if l.Len() == before {
			NonSpecialIP(l, ip)
		}
		l.Out()
	}
	l.Out()
}

// NonSpecialIP refuses, at the current field, addresses that traffic from elsewhere cannot be meant for.
func NonSpecialIP(l *check.List, s string) {
	ip := utilnet.ParseIPSloppy(s)
	switch {
	case ip == nil:
		l.Invalid("", s, "must be a valid IP address")
	case ip.IsUnspecified():
		l.Invalid("", s, fmt.Sprintf("may not be unspecified (%v)", s))
	case ip.IsLoopback():
		l.Invalid("", s, "may not be in the loopback range (127.0.0.0/8, ::1/128)")
	case ip.IsLinkLocalUnicast():
		l.Invalid("", s, "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
	case ip.IsLinkLocalMulticast():
		l.Invalid("", s, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")
	}
}

// sourceRanges checks the field, or without it the annotation of former times; both may be padded with space. Ranges in
// the old Service's field stay.
func sourceRanges(l *check.List, s, old *corev1.Service) {
	const why = "may only be used when `type` is 'LoadBalancer'"
	balanced := s.Spec.Type == corev1.ServiceTypeLoadBalancer
	if ranges := s.Spec.LoadBalancerSourceRanges; len(ranges) > 0 {
		l.In("spec")
		l.In("LoadBalancerSourceRanges")
		if !balanced {
			l.Forbidden("", why)
		}
		for i, r := range ranges {
			if old != nil && slices.Contains(old.Spec.LoadBalancerSourceRanges, r) {
				continue
			}
			l.Index(i)
			l.CIDR("", strings.TrimSpace(r))
			l.Out()
		}
		l.Out()
		l.Out()
		return
	}
	v, ok := s.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]
	if !ok {
		return
	}
	l.In("metadata")
	l.In("annotations")
	l.Key(corev1.AnnotationLoadBalancerSourceRangesKey)
	if !balanced {
		l.Forbidden("", why)
	}
	if v = strings.TrimSpace(v); v != "" {
		for r := range strings.SplitSeq(v, ",") {
			l.CIDR("", strings.TrimSpace(r))
		}
	}
	l.Out()
	l.Out()
	l.Out()
}

func loadBalancerFields(l *check.List, s, old *corev1.Service) {
	balanced := s.Spec.Type == corev1.ServiceTypeLoadBalancer
	if old == nil {
		if s.Spec.AllocateLoadBalancerNodePorts != nil && !balanced {
			l.Forbidden("allocateLoadBalancerNodePorts", "may only be used when `type` is 'LoadBalancer'")
		}
		if balanced && s.Spec.AllocateLoadBalancerNodePorts == nil {
			l.Add(field.Required(field.NewPath("allocateLoadBalancerNodePorts"), ""))
		}
	}
	now := s.Spec.LoadBalancerClass
	if old != nil && balanced && old.Spec.Type == corev1.ServiceTypeLoadBalancer {
		if was := old.Spec.LoadBalancerClass; (now == nil) != (was == nil) || now != nil && *now != *was {
			l.Invalid("loadBalancerClass", now, "may not change once set")
		}
	}
	switch {
	case now != nil && balanced:
		l.Qualified("loadBalancerClass", *now)
	case now != nil:
		l.Forbidden("loadBalancerClass", "may only be used when `type` is 'LoadBalancer'")
	}
}

func trafficPolicies(l *check.List, s *corev1.Service) {
	spec := &s.Spec
	if fromOutside(s) {
		check.OneOf(l, "externalTrafficPolicy", spec.ExternalTrafficPolicy,
			corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)
	} else if spec.ExternalTrafficPolicy != "" {
		l.Invalid("externalTrafficPolicy", spec.ExternalTrafficPolicy,
			"may only be set for externally-accessible services")
	}
	switch port := spec.HealthCheckNodePort; {
	case !HasHealthCheck(s) && port != 0:
		l.Invalid("healthCheckNodePort", port,
			"may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'")
	case HasHealthCheck(s) && port == 0:
		l.Required("healthCheckNodePort", "")
	case port != 0:
		l.Port("healthCheckNodePort", port)
	}
	if spec.InternalTrafficPolicy == nil && hasClusterIP(s) {
		l.Required("internalTrafficPolicy", "")
	}
	check.Pointer(l, "internalTrafficPolicy", spec.InternalTrafficPolicy,
		corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)
	check.Pointer(l, "trafficDistribution", spec.TrafficDistribution, corev1.ServiceTrafficDistributionPreferClose,
		corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode)
}

func validateServiceUpdate(s, old *corev1.Service) field.ErrorList {
	l := check.At(nil)
	l.In("spec")
	clusterIPChanges(l, s, old)
	familyChanges(l, s, old)
	loadBalancerFields(l, s, old)
	if HasHealthCheck(old) && HasHealthCheck(s) && s.Spec.HealthCheckNodePort != old.Spec.HealthCheckNodePort {
		l.Forbidden("healthCheckNodePort", "field is immutable")
	}
	l.Out()
	l.Add(validateService(s, old)...)
	return l.Errors()
}

// clusterIPChanges lets a second address come and go; the first stays as long as the service has one.
func clusterIPChanges(l *check.List, s, old *corev1.Service) {
	if !needsClusterIP(s) || !needsClusterIP(old) || headless(s) && headless(old) {
		return
	}
	now := s.Spec.ClusterIPs
	was := old.Spec.ClusterIPs
	change := func(i int, why string) {
		l.In("clusterIPs")
		l.Index(i)
		l.Invalid("", now, why)
		l.Out()
		l.Out()
	}
	switch {
	case len(was) == len(now):
		for i := range was {
			if was[i] != now[i] {
				change(i, "may not change once set")
			}
		}
		return
	case len(now) == 0:
		change(0, "primary clusterIP can not be unset")
		return
	case len(was) > 0 && now[0] != was[0]:
		change(0, "may not change once set")
	}
	if len(was) > len(now) && len(now) == 1 {
		releasedSecond(l, s, "clusterIP")
	}
}

func releasedSecond(l *check.List, s *corev1.Service, what string) {
	if p := s.Spec.IPFamilyPolicy; p == nil || *p != corev1.IPFamilyPolicySingleStack {
		l.Invalid("ipFamilyPolicy", p, "must be set to 'SingleStack' when releasing the secondary "+what)
	}
}

func familyChanges(l *check.List, s, old *corev1.Service) {
	if !needsClusterIP(s) || !needsClusterIP(old) || headless(s) || headless(old) {
		return
	}
	now := s.Spec.IPFamilies
	was := old.Spec.IPFamilies
	change := func(value any, why string) {
		l.In("ipFamilies")
		l.Index(0)
		l.Invalid("", value, why)
		l.Out()
		l.Out()
	}
	if len(was) == len(now) {
		if !slices.Equal(was, now) {
			change(now, "may not change once set")
		}
		return
	}
	if len(was) > len(now) && len(s.Spec.ClusterIPs) == 0 {
		change(now, "primary ipFamily can not be unset")
	}
	if len(was) > 0 && len(now) > 0 && now[0] != was[0] {
		change(s.Spec.ClusterIPs, "may not change once set")
	}
	if len(was) > len(now) && len(now) == 1 {
		releasedSecond(l, s, "ipFamily")
	}
}

// validateLoadBalancerStatus lets an address stay that the old Service's status has.
func validateLoadBalancerStatus(s, old *corev1.Service) field.ErrorList {
	l := check.At(nil)
	l.Add(meta.Finalizers(s)...)
	l.In("status")
	l.In("loadBalancer")
	l.In("ingress")
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer && len(s.Status.LoadBalancer.Ingress) != 0 {
		l.Forbidden("", "may only be used when `spec.type` is 'LoadBalancer'")
		return l.Errors()
	}
	for i := range s.Status.LoadBalancer.Ingress {
		ingress := &s.Status.LoadBalancer.Ingress[i]
		l.Index(i)
		same := func(o corev1.LoadBalancerIngress) bool { return o.IP == ingress.IP }
		if ingress.IP != "" && !slices.ContainsFunc(old.Status.LoadBalancer.Ingress, same) {
			l.IP("ip", ingress.IP)
		}
		switch {
		case ingress.IPMode == nil && ingress.IP != "":
			l.Required("ipMode", "must be specified when `ip` is set")
		case ingress.IPMode != nil && ingress.IP == "":
			l.Forbidden("ipMode", "may not be specified when `ip` is not set")
		default:
			check.Pointer(l, "ipMode", ingress.IPMode, corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP)
		}
		if ingress.Hostname != "" {
			for _, m := range validation.IsDNS1123Subdomain(ingress.Hostname) {
				l.Invalid("hostname", ingress.Hostname, m)
			}
			if utilnet.ParseIPSloppy(ingress.Hostname) != nil {
				l.Invalid("hostname", ingress.Hostname, "must be a DNS name, not an IP address")
			}
		}
		l.Out()
	}
	return l.Errors()
}
