// SPDX-License-Identifier: Apache-2.0

package networking

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

type policy = networkingv1.NetworkPolicy

// NetworkPolicy describes networking.k8s.io/v1 NetworkPolicy.
func NetworkPolicy() *kind.Kind {
	return kind.Spec[*policy]{
		Names:         names("NetworkPolicy", "networkpolicies", "networkpolicy", true, "netpol"),
		New:           func() *policy { return &policy{} },
		NewList:       func() runtime.Object { return &networkingv1.NetworkPolicyList{} },
		Default:       defaultPolicy,
		PrepareCreate: func(p *policy) { p.Generation = 1 },
		PrepareUpdate: func(p, old *policy) {
			p.Generation = old.Generation
			if !equality.Semantic.DeepEqual(p.Spec, old.Spec) {
				p.Generation++
			}
		},
		Validate:       validatePolicy,
		ValidateUpdate: func(p, _ *policy) field.ErrorList { return validatePolicy(p) },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn, {
				Name:        "Pod-Selector",
				Type:        "string",
				Description: "The pods to which this policy applies.",
			}, kind.AgeColumn,
		},
		Row: func(p *policy) []any {
			return []any{p.Name, metav1.FormatLabelSelector(&p.Spec.PodSelector), kind.Age(p.CreationTimestamp)}
		},
	}.Erase()
}

func defaultPolicy(p *policy) {
	s := &p.Spec
	ports := func(list []networkingv1.NetworkPolicyPort) {
		for i := range list {
			kind.Fill(&list[i].Protocol, corev1.ProtocolTCP)
		}
	}
	for i := range s.Ingress {
		ports(s.Ingress[i].Ports)
	}
	for i := range s.Egress {
		ports(s.Egress[i].Ports)
	}
	if len(s.PolicyTypes) == 0 {
		s.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(s.Egress) > 0 {
			s.PolicyTypes = append(s.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
}

func validatePolicy(p *policy) field.ErrorList {
	l := check.At(field.NewPath("spec"))
	s := &p.Spec
	l.Add(meta.Finalizers(p)...)
	l.Selector("podSelector", &s.PodSelector)
	check.Each(l, "ingress", s.Ingress, func(_ int, r *networkingv1.NetworkPolicyIngressRule) {
		validatePeers(l, r.Ports, "from", r.From)
	})
	check.Each(l, "egress", s.Egress, func(_ int, r *networkingv1.NetworkPolicyEgressRule) {
		validatePeers(l, r.Ports, "to", r.To)
	})
	const most = 2
	if len(s.PolicyTypes) > most {
		l.Invalid("policyTypes", &s.PolicyTypes, "may not specify more than two policyTypes")
		return l.Errors()
	}
	check.Each(l, "policyTypes", s.PolicyTypes, func(_ int, t *networkingv1.PolicyType) {
		check.Pointer(l, "", t, networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress)
	})
	return l.Errors()
}

func validatePeers(
	l *check.List, ports []networkingv1.NetworkPolicyPort, child string, peers []networkingv1.NetworkPolicyPeer,
) {
	check.Each(l, "ports", ports, func(_ int, p *networkingv1.NetworkPolicyPort) { validatePort(l, p) })
	check.Each(l, child, peers, func(_ int, p *networkingv1.NetworkPolicyPeer) {
		selectors := p.PodSelector != nil || p.NamespaceSelector != nil
		l.Selector("podSelector", p.PodSelector)
		l.Selector("namespaceSelector", p.NamespaceSelector)
		if p.IPBlock != nil {
			l.Within("ipBlock", func() { validateBlock(l, p.IPBlock) })
		}
		switch {
		case selectors && p.IPBlock != nil:
			l.Forbidden("", "may not specify both ipBlock and another peer")
		case !selectors && p.IPBlock == nil:
			l.Required("", "must specify a peer")
		}
	})
}

func validatePort(l *check.List, p *networkingv1.NetworkPolicyPort) {
	check.Pointer(l, "protocol", p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
	switch {
	case p.Port == nil:
		if p.EndPort != nil {
			l.Invalid("endPort", *p.EndPort, "may not be specified when `port` is not specified")
		}
	case p.Port.Type == intstr.Int:
		for _, msg := range validation.IsValidPortNum(int(p.Port.IntVal)) {
			l.Invalid("port", p.Port.IntVal, msg)
		}
		if p.EndPort == nil {
			return
		}
		if *p.EndPort < p.Port.IntVal {
			l.Invalid("endPort", *p.EndPort, "must be greater than or equal to `port`")
		}
		for _, msg := range validation.IsValidPortNum(int(*p.EndPort)) {
			l.Invalid("endPort", *p.EndPort, msg)
		}
	default:
		if p.EndPort != nil {
			l.Invalid("endPort", *p.EndPort, "may not be specified when `port` is non-numeric")
		}
		for _, msg := range check.PortName(p.Port.StrVal) {
			l.Invalid("port", p.Port.StrVal, msg)
		}
	}
}

// validateBlock: what is excepted is a part of the block, not all of it.
func validateBlock(l *check.List, b *networkingv1.IPBlock) {
	if b.CIDR == "" {
		l.Missing("cidr")
		return
	}
	l.CIDR("cidr", b.CIDR)
	whole, err := netip.ParsePrefix(b.CIDR)
	if err != nil {
		return
	}
	check.Each(l, "except", b.Except, func(_ int, e *string) {
		l.CIDR("", *e)
		part, err := netip.ParsePrefix(*e)
		if err == nil && (!whole.Contains(part.Addr()) || whole.Bits() >= part.Bits()) {
			l.Invalid("", *e, "must be a strict subset of `cidr`")
		}
	})
}
