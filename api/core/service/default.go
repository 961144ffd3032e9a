// SPDX-License-Identifier: Apache-2.0

package service

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilnet "k8s.io/utils/net"

	"keelson/api/kind"
)

func defaultService(s *corev1.Service) {
	spec := &s.Spec
	kind.FillZero(&spec.SessionAffinity, corev1.ServiceAffinityNone)
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityNone:
		spec.SessionAffinityConfig = nil
	case corev1.ServiceAffinityClientIP:
		if c := spec.SessionAffinityConfig; c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			seconds := corev1.DefaultClientIPServiceAffinitySeconds
			spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
		}
	}
	kind.FillZero(&spec.Type, corev1.ServiceTypeClusterIP)
	for i := range spec.Ports {
		p := &spec.Ports[i]
		kind.FillZero(&p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	if fromOutside(s) {
		kind.FillZero(&spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if hasClusterIP(s) {
		kind.Fill(&spec.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		kind.Fill(&spec.AllocateLoadBalancerNodePorts, true)
		defaultIPMode(s)
	}
}

func defaultIPMode(s *corev1.Service) {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	for i := range s.Status.LoadBalancer.Ingress {
		if ingress := &s.Status.LoadBalancer.Ingress[i]; ingress.IP != "" {
			kind.Fill(&ingress.IPMode, corev1.LoadBalancerIPModeVIP)
		}
	}
}

// fromOutside tells services that clients outside the cluster can reach.
func fromOutside(s *corev1.Service) bool {
	switch s.Spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeClusterIP:
		return len(s.Spec.ExternalIPs) > 0
	}
	return false
}

// hasClusterIP tells services of a type that gets a cluster IP, unless headless.
func hasClusterIP(s *corev1.Service) bool {
	switch s.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		return true
	}
	return false
}

func hasNodePort(s *corev1.Service) bool {
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeLoadBalancer:
		return s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts
	}
	return false
}

// hasHealthCheck tells load balancers that ask each node whether it has endpoints.
func hasHealthCheck(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func headless(s *corev1.Service) bool {
	return len(s.Spec.ClusterIPs) == 1 && s.Spec.ClusterIPs[0] == corev1.ClusterIPNone
}

// syncClusterIPs lets clients that know only clusterIP change it: where clusterIPs was left as it was (or out), it
// follows. old is nil at create.
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
		now.ClusterIPs = was.ClusterIPs
	}
	if was.ClusterIP == now.ClusterIP || !slices.Equal(was.ClusterIPs, now.ClusterIPs) {
		return
	}
	if now.ClusterIP == "" {
		now.ClusterIPs = nil
	} else {
		now.ClusterIPs = []string{now.ClusterIP}
	}
}

// defaultFamilies says which IP families the service has, from its addresses where it has some.
func defaultFamilies(s *corev1.Service) {
	if !hasClusterIP(s) {
		return
	}
	spec := &s.Spec
	if len(spec.ClusterIPs) == 2 || len(spec.IPFamilies) == 2 {
		kind.Fill(&spec.IPFamilyPolicy, corev1.IPFamilyPolicyRequireDualStack)
	}
	if !headless(s) {
		for i, ip := range spec.ClusterIPs {
			if i >= len(spec.IPFamilies) && utilnet.ParseIPSloppy(ip) != nil {
				spec.IPFamilies = append(spec.IPFamilies, familyOf(ip))
			}
		}
	} else if len(spec.Selector) == 0 {
		// Nobody but the one who writes its endpoints knows what families such a service has: it may have both.
		kind.Fill(&spec.IPFamilyPolicy, corev1.IPFamilyPolicyRequireDualStack)
		if len(spec.IPFamilies) == 0 {
			spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
		}
		if len(spec.IPFamilies) == 1 && *spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack {
			spec.IPFamilies = append(spec.IPFamilies, otherFamily(spec.IPFamilies[0]))
		}
		return
	}
	kind.Fill(&spec.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack)
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	}
}

func familyOf(ip string) corev1.IPFamily {
	if utilnet.IsIPv6String(ip) {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

func otherFamily(f corev1.IPFamily) corev1.IPFamily {
	if f == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// prepareServiceUpdate keeps what the server allocated where the client left it out, and drops what the new type has
// no use for where the client did not touch it.
func prepareServiceUpdate(s, old *corev1.Service) {
	s.Status = old.Status
	keepAllocated(s, old)
	syncClusterIPs(s, old)
	dropForType(s, old)
	if hasClusterIP(s) && hasClusterIP(old) {
		if s.Spec.IPFamilyPolicy == nil {
			s.Spec.IPFamilyPolicy = old.Spec.IPFamilyPolicy
		}
		if len(s.Spec.IPFamilies) == 0 {
			s.Spec.IPFamilies = old.Spec.IPFamilies
		}
	}
	downgradeFamilies(s, old)
	defaultFamilies(s)
}

// downgradeFamilies releases the second family of a service that asks for one stack and nothing else.
func downgradeFamilies(s, old *corev1.Service) {
	p := s.Spec.IPFamilyPolicy
	if p == nil || *p != corev1.IPFamilyPolicySingleStack || old.Spec.IPFamilyPolicy == nil || *old.Spec.IPFamilyPolicy == *p {
		return
	}
	if slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) && slices.Equal(s.Spec.IPFamilies, old.Spec.IPFamilies) {
		s.Spec.ClusterIPs = slices.Clone(s.Spec.ClusterIPs[:min(1, len(s.Spec.ClusterIPs))])
		s.Spec.IPFamilies = slices.Clone(s.Spec.IPFamilies[:min(1, len(s.Spec.IPFamilies))])
	}
}

func keepAllocated(s, old *corev1.Service) {
	now, was := &s.Spec, &old.Spec
	if hasClusterIP(old) && hasClusterIP(s) {
		kind.FillZero(&now.ClusterIP, was.ClusterIP)
		if len(now.ClusterIPs) == 0 && now.ClusterIP == was.ClusterIP {
			now.ClusterIPs = was.ClusterIPs
		}
	}
	if hasNodePort(old) && hasNodePort(s) {
		used := map[int32]bool{}
		for i := range now.Ports {
			used[now.Ports[i].NodePort] = true
		}
		for i := range now.Ports {
			p := &now.Ports[i]
			j := slices.IndexFunc(was.Ports, func(o corev1.ServicePort) bool { return o.Name == p.Name })
			if p.NodePort == 0 && j >= 0 && !used[was.Ports[j].NodePort] {
				p.NodePort = was.Ports[j].NodePort
				used[p.NodePort] = true
			}
		}
	}
	if hasHealthCheck(old) && hasHealthCheck(s) {
		kind.FillZero(&now.HealthCheckNodePort, was.HealthCheckNodePort)
	}
}

func dropForType(s, old *corev1.Service) {
	now, was := &s.Spec, &old.Spec
	if hasClusterIP(old) && !hasClusterIP(s) {
		if now.ClusterIP == was.ClusterIP && slices.Equal(now.ClusterIPs, was.ClusterIPs) {
			now.ClusterIP, now.ClusterIPs = "", nil
		}
		if slices.Equal(now.IPFamilies, was.IPFamilies) {
			now.IPFamilies = nil
		}
		now.IPFamilyPolicy = dropSame(now.IPFamilyPolicy, was.IPFamilyPolicy)
	}
	if hasNodePort(old) && !hasNodePort(s) && samePorts(now.Ports, was.Ports) {
		for i := range now.Ports {
			now.Ports[i].NodePort = 0
		}
	}
	if hasHealthCheck(old) && !hasHealthCheck(s) && now.HealthCheckNodePort == was.HealthCheckNodePort {
		now.HealthCheckNodePort = 0
	}
	if was.Type == corev1.ServiceTypeLoadBalancer && now.Type != corev1.ServiceTypeLoadBalancer {
		now.AllocateLoadBalancerNodePorts = dropSame(now.AllocateLoadBalancerNodePorts, was.AllocateLoadBalancerNodePorts)
		now.LoadBalancerClass = dropSame(now.LoadBalancerClass, was.LoadBalancerClass)
	}
	if fromOutside(old) && !fromOutside(s) && now.ExternalTrafficPolicy == was.ExternalTrafficPolicy {
		now.ExternalTrafficPolicy = ""
	}
}

// samePorts tells whether the client left all node ports alone.
func samePorts(now, was []corev1.ServicePort) bool {
	return !slices.ContainsFunc(now, func(p corev1.ServicePort) bool {
		return p.NodePort != 0 && !slices.ContainsFunc(was, func(o corev1.ServicePort) bool { return o.NodePort == p.NodePort })
	})
}

// dropSame is nil where now says what was said, else now.
func dropSame[T comparable](now, was *T) *T {
	if now != nil && was != nil && *now == *was {
		return nil
	}
	return now
}
