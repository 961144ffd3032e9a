// SPDX-License-Identifier: Apache-2.0

package service

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"keelson/api/kind"
)

func defaultService(service *corev1.Service) {
	spec := &service.Spec
	kind.FillZero(&spec.SessionAffinity, corev1.ServiceAffinityNone)
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityNone:
		spec.SessionAffinityConfig = nil
	case corev1.ServiceAffinityClientIP:
		if c := spec.SessionAffinityConfig; c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			seconds := corev1.DefaultClientIPServiceAffinitySeconds
			spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds},
			}
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
	if fromOutside(service) {
		kind.FillZero(&spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if hasClusterIP(service) {
		kind.Fill(&spec.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		kind.Fill(&spec.AllocateLoadBalancerNodePorts, true)
		defaultIPMode(service)
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

// fromOutside reports whether clients outside the cluster can reach a service.
func fromOutside(s *corev1.Service) bool {
	switch s.Spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeClusterIP:
		return len(s.Spec.ExternalIPs) > 0
	}
	return false
}

// hasClusterIP reports whether a service is of a type that gets a cluster IP, and not headless.
func hasClusterIP(s *corev1.Service) bool {
	switch s.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		return true
	}
	return false
}

// needsClusterIP reports whether a service's type, known or not, is not ExternalName.
func needsClusterIP(s *corev1.Service) bool { return s.Spec.Type != corev1.ServiceTypeExternalName }

// hasPortsOnNodes reports whether a service may have node ports.
func hasPortsOnNodes(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// GetsNodePorts reports whether ports of a service that name no node port get one.
func GetsNodePorts(s *corev1.Service) bool {
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeLoadBalancer:
		return s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts
	}
	return false
}

// HasHealthCheck reports whether the service's load balancer asks each node whether it has endpoints.
func HasHealthCheck(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer &&
		s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func headless(s *corev1.Service) bool {
	return len(s.Spec.ClusterIPs) == 1 && s.Spec.ClusterIPs[0] == corev1.ClusterIPNone
}

// prepareServiceUpdate drops what the new type has no use for where the client did not touch it.
func prepareServiceUpdate(s, old *corev1.Service) {
	s.Status = old.Status
	dropForType(s, old)
	dropPolicy(s)
}

// dropPolicy takes from a name what only addresses have and what Kubernetes, too, never shows; what is no policy is
// left to be refused.
func dropPolicy(s *corev1.Service) {
	p := s.Spec.InternalTrafficPolicy
	if s.Spec.Type == corev1.ServiceTypeExternalName && p != nil &&
		(*p == corev1.ServiceInternalTrafficPolicyCluster || *p == corev1.ServiceInternalTrafficPolicyLocal) {
		s.Spec.InternalTrafficPolicy = nil
	}
}

func dropForType(service, old *corev1.Service) {
	now := &service.Spec
	was := &old.Spec
	if needsClusterIP(old) && !needsClusterIP(service) {
		if now.ClusterIP == was.ClusterIP && slices.Equal(now.ClusterIPs, was.ClusterIPs) {
			now.ClusterIP = ""
			now.ClusterIPs = nil
		}
		if slices.Equal(now.IPFamilies, was.IPFamilies) {
			now.IPFamilies = nil
		}
		now.IPFamilyPolicy = dropSame(now.IPFamilyPolicy, was.IPFamilyPolicy)
	}
	if hasPortsOnNodes(old) && !hasPortsOnNodes(service) && samePorts(now.Ports, was.Ports) {
		for i := range now.Ports {
			now.Ports[i].NodePort = 0
		}
	}
	if HasHealthCheck(old) && !HasHealthCheck(service) && now.HealthCheckNodePort == was.HealthCheckNodePort {
		now.HealthCheckNodePort = 0
	}
	if was.Type == corev1.ServiceTypeLoadBalancer && now.Type != corev1.ServiceTypeLoadBalancer {
		service.Status.LoadBalancer = corev1.LoadBalancerStatus{}
		now.AllocateLoadBalancerNodePorts = dropSame(now.AllocateLoadBalancerNodePorts,
			was.AllocateLoadBalancerNodePorts)
		now.LoadBalancerClass = dropSame(now.LoadBalancerClass, was.LoadBalancerClass)
	}
	if fromOutside(old) && !fromOutside(service) && now.ExternalTrafficPolicy == was.ExternalTrafficPolicy {
		now.ExternalTrafficPolicy = ""
	}
}

// samePorts reports whether the client left all node ports alone.
func samePorts(now, was []corev1.ServicePort) bool {
	had := map[int32]bool{0: true}
	for _, p := range was {
		had[p.NodePort] = true
	}
	return !slices.ContainsFunc(now, func(p corev1.ServicePort) bool { return !had[p.NodePort] })
}

// dropSame is nil where now says what was said, else now.
func dropSame[T comparable](now, was *T) *T {
	if now != nil && was != nil && *now == *was {
		return nil
	}
	return now
}
