// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/noderestriction"
)

// serviceExternalIPs rejects external IPs of Services that belong to the cluster: addresses in the ranges of pods and
// Services, and the ports of API servers and kubelets. Otherwise a tenant would receive what is sent to others
// (CVE-2020-8554). Keelson's own plugin; Kubernetes has none.
type serviceExternalIPs struct {
	Reader admission.Reader
	// PodRanges are the cluster's pod CIDRs, as far as the server knows them; each Node shows its own.
	PodRanges noderestriction.PodRanges
}

var (
	endpointSlices = discoveryv1.SchemeGroupVersion.WithResource("endpointslices")
	serviceCIDRs   = networkingv1.SchemeGroupVersion.WithResource("servicecidrs")
)

func (serviceExternalIPs) Name() string { return "ServiceExternalIPs" }

// Validate rejects external IPs and ports that the old Service did not have.
func (p serviceExternalIPs) Validate(ctx context.Context, req *admission.Request) error {
	service, ok := req.Object.(*corev1.Service)
	if !ok || req.Subresource != "" || req.Operation != admission.Create && req.Operation != admission.Update ||
		len(service.Spec.ExternalIPs) == 0 {
		return nil
	}
	old, _ := req.OldObject.(*corev1.Service)
	if old != nil && slices.Equal(old.Spec.ExternalIPs, service.Spec.ExternalIPs) &&
		slices.Equal(tcpPorts(old), tcpPorts(service)) {
		return nil
	}
	ranges, ports, err := p.reserved(ctx)
	if err != nil {
		return err
	}
	for i, text := range service.Spec.ExternalIPs {
		a, err := netip.ParseAddr(text)
		if err != nil || had(old, text) {
			continue // validation rejects it, or the old Service has it
		}
		if in, what := ranges.find(a.Unmap()); what != "" {
			return admission.Forbidden(req,
				"spec.externalIPs[%d]: %s is in %s, the range of %s: use an address outside the "+
					"cluster", i, text, in, what)
		}
	}
	for _, port := range tcpPorts(service) {
		if by := ports[port]; by != "" && (!had(old, "") || !slices.Contains(tcpPorts(old), port)) {
			return admission.Forbidden(req,
				"spec.ports: port %d is that of %s: a Service with externalIPs needs another one",
				port, by)
		}
	}
	return nil
}

// had reports whether the old Service had this external IP; empty: any.
func had(old *corev1.Service, ip string) bool {
	return old != nil && (slices.Contains(old.Spec.ExternalIPs, ip) || ip == "" && len(old.Spec.ExternalIPs) > 0)
}

func tcpPorts(s *corev1.Service) []int32 {
	var out []int32
	for _, p := range s.Spec.Ports {
		if p.Protocol == corev1.ProtocolTCP || p.Protocol == "" {
			out = append(out, p.Port)
		}
	}
	return out
}

// firstKubeletPort is the lowest port that is kept free for a kubelet.
const firstKubeletPort = 1024

// reserved reads the ranges of pods and Services, and the ports of API servers and kubelets.
func (p serviceExternalIPs) reserved(ctx context.Context) (ranges rangeSet, ports map[int32]string, err error) {
	ranges = rangeSet{}
	ports = map[int32]string{}
	for _, c := range p.PodRanges.Cluster {
		ranges[c.Masked()] = "pods"
	}
	all, err := admission.List[*corev1.Node](ctx, p.Reader, admission.Nodes, "")
	if err != nil {
		return nil, nil, err
	}
	for _, n := range all {
		ranges.add("pods", n.Spec.PodCIDRs...)
		// A node says itself which port its kubelet has, and must not take 80 and 443 from the Services of others.
		if port := n.Status.DaemonEndpoints.KubeletEndpoint.Port; port >= firstKubeletPort {
			ports[port] = "kubelets"
		}
	}
	cidrs, err := admission.List[*networkingv1.ServiceCIDR](ctx, p.Reader, serviceCIDRs, "")
	if err != nil {
		return nil, nil, err
	}
	for _, c := range cidrs {
		ranges.add("Services", c.Spec.CIDRs...)
	}
	servers, err := admission.List[*discoveryv1.EndpointSlice](ctx, p.Reader, endpointSlices, metav1.NamespaceDefault)
	if err != nil {
		return nil, nil, err
	}
	for _, s := range servers {
		if s.Labels[discoveryv1.LabelServiceName] != "kubernetes" {
			continue
		}
		for _, port := range s.Ports {
			if port.Port != nil {
				ports[*port.Port] = "the API server"
			}
		}
	}
	return ranges, ports, nil
}

// rangeSet maps ranges to what they are for.
type rangeSet map[netip.Prefix]string

func (r rangeSet) add(what string, cidrs ...string) {
	for _, c := range cidrs {
		if p, err := netip.ParsePrefix(c); err == nil {
			r[p.Masked()] = what
		}
	}
}

// find returns the range of an address and what it is for.
func (r rangeSet) find(a netip.Addr) (netip.Prefix, string) {
	for bits := a.BitLen(); bits >= 0; bits-- {
		p := netip.PrefixFrom(a, bits).Masked()
		if what := r[p]; what != "" {
			return p, what
		}
	}
	return netip.Prefix{}, ""
}
