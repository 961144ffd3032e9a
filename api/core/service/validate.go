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

func validateService(service, old *corev1.Service) field.ErrorList {
	errs := check.At(nil)
	errs.Add(meta.Finalizers(service)...)
	hints, hasHints := service.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	mode, hasMode := service.Annotations[corev1.AnnotationTopologyMode]
	if hasHints && hasMode && hints != mode {
		errs.Add(field.Invalid(field.NewPath("metadata", "annotations").Key(corev1.AnnotationTopologyMode), mode,
			fmt.Sprintf("must match annotations[%s] when both are specified",
				corev1.DeprecatedAnnotationTopologyAwareHints)))
	}
	errs.In("spec")
	if len(service.Spec.Ports) == 0 && !headless(service) && service.Spec.Type != corev1.ServiceTypeExternalName {
		errs.Required("ports", "")
	}
	serviceForType(errs, service)
	servicePorts(errs, service)
	errs.Labels("selector", service.Spec.Selector)
	sessionAffinity(errs, &service.Spec)
	clusterIPs(errs, service, old)
	externalIPs(errs, service, old)
	check.OneOf(errs, "type", service.Spec.Type, corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort)
	serviceDuplicates(errs, service)
	errs.Out()
	sourceRanges(errs, service, old)
	errs.In("spec")
	loadBalancerFields(errs, service, nil)
	trafficPolicies(errs, service)
	errs.Out()
	return errs.Errors()
}

// serviceForType checks what each type of service may not have.
func serviceForType(errs *check.List, service *corev1.Service) {
	switch service.Spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		if headless(service) {
			errs.In("clusterIPs")
			errs.Index(0)
			errs.Invalid("", service.Spec.ClusterIPs[0], fmt.Sprintf("may not be set to 'None' for %s services",
				service.Spec.Type))
			errs.Out()
			errs.Out()
		}
	case corev1.ServiceTypeExternalName:
		const why = "may not be set for ExternalName services"
		if len(service.Spec.ClusterIPs) > 0 {
			errs.Forbidden("clusterIPs", why)
		}
		if len(service.Spec.IPFamilies) > 0 {
			errs.Forbidden("ipFamilies", why)
		}
		if service.Spec.IPFamilyPolicy != nil {
			errs.Forbidden("ipFamilyPolicy", why)
		}
		if name := strings.TrimSuffix(service.Spec.ExternalName, "."); name != "" {
			errs.Subdomain("externalName", name)
		} else {
			errs.Required("externalName", "")
		}
	}
}

// protocols in the order in which they are printed.
var protocols = []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP}

func servicePorts(errs *check.List, service *corev1.Service) {
	var names check.Set
	errs.In("ports")
	for i := range service.Spec.Ports {
		servicePort := &service.Spec.Ports[i]
		errs.Index(i)
		if servicePort.Name != "" {
			errs.Label("name", servicePort.Name)
			if !names.Add(servicePort.Name) {
				errs.Duplicate("name", servicePort.Name)
			}
		} else if len(service.Spec.Ports) > 1 {
			errs.Required("name", "")
		}
		errs.Port("port", servicePort.Port)
		check.OneOf(errs, "protocol", servicePort.Protocol, protocols...)
		errs.PortOrName("targetPort", servicePort.TargetPort)
		if servicePort.AppProtocol != nil {
			errs.Qualified("appProtocol", *servicePort.AppProtocol)
		}
		errs.Out()
	}
	errs.Out()
}

// serviceDuplicates checks that no two ports are the same, inside or on the nodes.
func serviceDuplicates(errs *check.List, service *corev1.Service) {
	type key struct {
		protocol corev1.Protocol
		port     int32
	}
	errs.In("ports")
	for i := range service.Spec.Ports {
		if service.Spec.Type == corev1.ServiceTypeClusterIP && service.Spec.Ports[i].NodePort != 0 {
			errs.Index(i)
			errs.Forbidden("nodePort", "may not be used when `type` is 'ClusterIP'")
			errs.Out()
		}
	}
	nodePorts := map[key]bool{}
	ports := map[key]bool{}
	for i, p := range service.Spec.Ports {
		if k := (key{p.Protocol, p.NodePort}); p.NodePort != 0 {
			if nodePorts[k] {
				errs.Index(i)
				errs.Duplicate("nodePort", p.NodePort)
				errs.Out()
			}
			nodePorts[k] = true
		}
	}
	for i, p := range service.Spec.Ports {
		k := key{p.Protocol, p.Port}
		if ports[k] {
			errs.Index(i)
			errs.Duplicate("", corev1.ServicePort{Protocol: p.Protocol, Port: p.Port})
			errs.Out()
		}
		ports[k] = true
	}
	errs.Out()
}

func sessionAffinity(errs *check.List, s *corev1.ServiceSpec) {
	check.OneOf(errs, "sessionAffinity", s.SessionAffinity, corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone)
	config := s.SessionAffinityConfig
	switch {
	case s.SessionAffinity == corev1.ServiceAffinityNone && config != nil:
		errs.Forbidden("sessionAffinityConfig", fmt.Sprintf("must not be set when session affinity is %s",
			corev1.ServiceAffinityNone))
	case s.SessionAffinity == corev1.ServiceAffinityClientIP:
		why := fmt.Sprintf("when session affinity type is %s", corev1.ServiceAffinityClientIP)
		const seconds = "sessionAffinityConfig.clientIP.timeoutSeconds"
		switch {
		case config == nil:
			errs.Required("sessionAffinityConfig", why)
		case config.ClientIP == nil:
			errs.Required("sessionAffinityConfig.clientIP", why)
		case config.ClientIP.TimeoutSeconds == nil:
			errs.Required(seconds, why)
		case *config.ClientIP.TimeoutSeconds <= 0 || *config.ClientIP.TimeoutSeconds > 86400:
			errs.Invalid(seconds, *config.ClientIP.TimeoutSeconds, "must be greater than 0 and less than 86400")
		}
	}
}

// clusterIPs checks addresses and families, each alone and against each other.
func clusterIPs(errs *check.List, service, old *corev1.Service) {
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	ips := service.Spec.ClusterIPs
	families := service.Spec.IPFamilies
	switch {
	case service.Spec.ClusterIP != "" && len(ips) == 0:
		errs.Required("clusterIPs", "")
	case service.Spec.ClusterIP != "" && ips[0] != service.Spec.ClusterIP:
		errs.Invalid("clusterIPs", ips, "first value must match `clusterIP`")
	case service.Spec.ClusterIP == "" && len(ips) != 0:
		errs.Invalid("clusterIPs", ips, "must be empty when `clusterIP` is not specified")
	}
	ipFamilies(errs, service)
	bad := false
	errs.In("clusterIPs")
	for i, ip := range ips {
		if i == 0 && ip == corev1.ClusterIPNone {
			if len(ips) > 1 {
				bad = true
				errs.Invalid("", ips, "'None' must be the first and only value")
			}
			continue
		}
		before := errs.Len()
		if old == nil || !slices.Contains(old.Spec.ClusterIPs, ip) { // what was let in by older rules stays
			errs.Index(i)
			errs.IP("", ip)
			errs.Out()
		}
		bad = bad || errs.Len() > before
	}
	if len(ips) > 2 {
		errs.Invalid("", ips, "may only hold up to 2 values")
	}
	errs.Out()
	if bad {
		return
	}
	if len(ips) > 1 {
		if dual, err := utilnet.IsDualStackIPStrings(ips); err != nil || !dual {
			errs.Invalid("clusterIPs", ips, "may specify no more than one IP for each IP family")
		}
	}
	if headless(service) {
		return
	}
	errs.In("clusterIPs")
	for i := range min(len(ips), len(families)) {
		if v6 := utilnet.IsIPv6String(ips[i]); (families[i] == corev1.IPv4Protocol && v6) ||
			(families[i] == corev1.IPv6Protocol && !v6) {
			errs.Index(i)
			errs.Invalid("", ips[i], fmt.Sprintf("expected an %s value as indicated by `ipFamilies[%v]`", families[i],
				i))
			errs.Out()
		}
	}
	errs.Out()
}

// ipFamilies wants known families, once each.
func ipFamilies(errs *check.List, service *corev1.Service) {
	var seen check.Set
	errs.In("ipFamilies")
	for i, f := range service.Spec.IPFamilies {
		errs.Index(i)
		if f != corev1.IPv4Protocol && f != corev1.IPv6Protocol {
			check.NotSupported(errs, "", f, corev1.IPv4Protocol, corev1.IPv6Protocol)
		}
		if !seen.Add(string(f)) {
			errs.Duplicate("", f)
		}
		errs.Out()
	}
	errs.Out()
	p := service.Spec.IPFamilyPolicy
	check.Pointer(errs, "ipFamilyPolicy", p, corev1.IPFamilyPolicyPreferDualStack,
		corev1.IPFamilyPolicyRequireDualStack,
		corev1.IPFamilyPolicySingleStack)
}

// externalIPs lets the form of an address stay that the old Service has; what it means must be allowed.
func externalIPs(errs *check.List, s, old *corev1.Service) {
	had := &check.Set{}
	if old != nil {
		had = check.SetOf(old.Spec.ExternalIPs)
	}
	errs.In("externalIPs")
	for i, ip := range s.Spec.ExternalIPs {
		before := errs.Len()
		errs.Index(i)
		if !had.Has(ip) {
			errs.IP("", ip)
		}
		if errs.Len() == before {
			NonSpecialIP(errs, ip)
		}
		errs.Out()
	}
	errs.Out()
}

// NonSpecialIP refuses, at the current field, addresses that traffic from elsewhere cannot be meant for.
func NonSpecialIP(errs *check.List, s string) {
	ip := utilnet.ParseIPSloppy(s)
	switch {
	case ip == nil:
		errs.Invalid("", s, "must be a valid IP address")
	case ip.IsUnspecified():
		errs.Invalid("", s, fmt.Sprintf("may not be unspecified (%v)", s))
	case ip.IsLoopback():
		errs.Invalid("", s, "may not be in the loopback range (127.0.0.0/8, ::1/128)")
	case ip.IsLinkLocalUnicast():
		errs.Invalid("", s, "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
	case ip.IsLinkLocalMulticast():
		errs.Invalid("", s, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")
	}
}

// sourceRanges checks the field, or without it the annotation of former times; both may be padded with space. Ranges in
// the old Service's field stay.
func sourceRanges(errs *check.List, service, old *corev1.Service) {
	const why = "may only be used when `type` is 'LoadBalancer'"
	balanced := service.Spec.Type == corev1.ServiceTypeLoadBalancer
	if ranges := service.Spec.LoadBalancerSourceRanges; len(ranges) > 0 {
		errs.In("spec")
		errs.In("LoadBalancerSourceRanges")
		if !balanced {
			errs.Forbidden("", why)
		}
		had := &check.Set{}
		if old != nil {
			had = check.SetOf(old.Spec.LoadBalancerSourceRanges)
		}
		for i, r := range ranges {
			if had.Has(r) {
				continue
			}
			errs.Index(i)
			errs.CIDR("", strings.TrimSpace(r))
			errs.Out()
		}
		errs.Out()
		errs.Out()
		return
	}
	v, ok := service.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]
	if !ok {
		return
	}
	errs.In("metadata")
	errs.In("annotations")
	errs.Key(corev1.AnnotationLoadBalancerSourceRangesKey)
	if !balanced {
		errs.Forbidden("", why)
	}
	if v = strings.TrimSpace(v); v != "" {
		for r := range strings.SplitSeq(v, ",") {
			errs.CIDR("", strings.TrimSpace(r))
		}
	}
	errs.Out()
	errs.Out()
	errs.Out()
}

func loadBalancerFields(errs *check.List, s, old *corev1.Service) {
	balanced := s.Spec.Type == corev1.ServiceTypeLoadBalancer
	if old == nil {
		if s.Spec.AllocateLoadBalancerNodePorts != nil && !balanced {
			errs.Forbidden("allocateLoadBalancerNodePorts", "may only be used when `type` is 'LoadBalancer'")
		}
		if balanced && s.Spec.AllocateLoadBalancerNodePorts == nil {
			errs.Add(field.Required(field.NewPath("allocateLoadBalancerNodePorts"), ""))
		}
	}
	now := s.Spec.LoadBalancerClass
	if old != nil && balanced && old.Spec.Type == corev1.ServiceTypeLoadBalancer {
		if was := old.Spec.LoadBalancerClass; (now == nil) != (was == nil) || now != nil && *now != *was {
			errs.Invalid("loadBalancerClass", now, "may not change once set")
		}
	}
	switch {
	case now != nil && balanced:
		errs.Qualified("loadBalancerClass", *now)
	case now != nil:
		errs.Forbidden("loadBalancerClass", "may only be used when `type` is 'LoadBalancer'")
	}
}

func trafficPolicies(errs *check.List, service *corev1.Service) {
	spec := &service.Spec
	if fromOutside(service) {
		check.OneOf(errs, "externalTrafficPolicy", spec.ExternalTrafficPolicy,
			corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)
	} else if spec.ExternalTrafficPolicy != "" {
		errs.Invalid("externalTrafficPolicy", spec.ExternalTrafficPolicy,
			"may only be set for externally-accessible services")
	}
	switch port := spec.HealthCheckNodePort; {
	case !HasHealthCheck(service) && port != 0:
		errs.Invalid("healthCheckNodePort", port,
			"may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'")
	case HasHealthCheck(service) && port == 0:
		errs.Required("healthCheckNodePort", "")
	case port != 0:
		errs.Port("healthCheckNodePort", port)
	}
	if spec.InternalTrafficPolicy == nil && hasClusterIP(service) {
		errs.Required("internalTrafficPolicy", "")
	}
	check.Pointer(errs, "internalTrafficPolicy", spec.InternalTrafficPolicy,
		corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)
	check.Pointer(errs, "trafficDistribution", spec.TrafficDistribution, corev1.ServiceTrafficDistributionPreferClose,
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
func clusterIPChanges(errs *check.List, service, old *corev1.Service) {
	if !needsClusterIP(service) || !needsClusterIP(old) || headless(service) && headless(old) {
		return
	}
	now := service.Spec.ClusterIPs
	was := old.Spec.ClusterIPs
	change := func(i int, why string) {
		errs.In("clusterIPs")
		errs.Index(i)
		errs.Invalid("", now, why)
		errs.Out()
		errs.Out()
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
		releasedSecond(errs, service, "clusterIP")
	}
}

func releasedSecond(l *check.List, s *corev1.Service, what string) {
	if p := s.Spec.IPFamilyPolicy; p == nil || *p != corev1.IPFamilyPolicySingleStack {
		l.Invalid("ipFamilyPolicy", p, "must be set to 'SingleStack' when releasing the secondary "+what)
	}
}

func familyChanges(errs *check.List, service, old *corev1.Service) {
	if !needsClusterIP(service) || !needsClusterIP(old) || headless(service) || headless(old) {
		return
	}
	now := service.Spec.IPFamilies
	was := old.Spec.IPFamilies
	change := func(value any, why string) {
		errs.In("ipFamilies")
		errs.Index(0)
		errs.Invalid("", value, why)
		errs.Out()
		errs.Out()
	}
	if len(was) == len(now) {
		if !slices.Equal(was, now) {
			change(now, "may not change once set")
		}
		return
	}
	if len(was) > len(now) && len(service.Spec.ClusterIPs) == 0 {
		change(now, "primary ipFamily can not be unset")
	}
	if len(was) > 0 && len(now) > 0 && now[0] != was[0] {
		change(service.Spec.ClusterIPs, "may not change once set")
	}
	if len(was) > len(now) && len(now) == 1 {
		releasedSecond(errs, service, "ipFamily")
	}
}

// validateLoadBalancerStatus lets an address stay that the old Service's status has.
func validateLoadBalancerStatus(service, old *corev1.Service) field.ErrorList {
	errs := check.At(nil)
	errs.Add(meta.Finalizers(service)...)
	errs.In("status")
	errs.In("loadBalancer")
	errs.In("ingress")
	if service.Spec.Type != corev1.ServiceTypeLoadBalancer && len(service.Status.LoadBalancer.Ingress) != 0 {
		errs.Forbidden("", "may only be used when `spec.type` is 'LoadBalancer'")
		return errs.Errors()
	}
	for i := range service.Status.LoadBalancer.Ingress {
		ingress := &service.Status.LoadBalancer.Ingress[i]
		errs.Index(i)
		same := func(o corev1.LoadBalancerIngress) bool { return o.IP == ingress.IP }
		if ingress.IP != "" && !slices.ContainsFunc(old.Status.LoadBalancer.Ingress, same) {
			errs.IP("ip", ingress.IP)
		}
		switch {
		case ingress.IPMode == nil && ingress.IP != "":
			errs.Required("ipMode", "must be specified when `ip` is set")
		case ingress.IPMode != nil && ingress.IP == "":
			errs.Forbidden("ipMode", "may not be specified when `ip` is not set")
		default:
			check.Pointer(errs, "ipMode", ingress.IPMode, corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP)
		}
		if ingress.Hostname != "" {
			for _, m := range validation.IsDNS1123Subdomain(ingress.Hostname) {
				errs.Invalid("hostname", ingress.Hostname, m)
			}
			if utilnet.ParseIPSloppy(ingress.Hostname) != nil {
				errs.Invalid("hostname", ingress.Hostname, "must be a DNS name, not an IP address")
			}
		}
		errs.Out()
	}
	return errs.Errors()
}
