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
		Warnings:       func(p, _ *policy) []string { return policyWarnings(&p.Spec) },
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

// policyWarnings are about ranges of addresses in a form that is not the usual one.
func policyWarnings(spec *networkingv1.NetworkPolicySpec) []string {
	var out []string
	peers := func(list []networkingv1.NetworkPolicyPeer, at *field.Path) {
		for i := range list {
			block := list[i].IPBlock
			if block == nil {
				continue
			}
			path := at.Index(i).Child("ipBlock")
			out = append(out, check.WarnCIDR(path.Child("cidr"), block.CIDR)...)
			for j, except := range block.Except {
				out = append(out, check.WarnCIDR(path.Child("except").Index(j), except)...)
			}
		}
	}
	for i := range spec.Ingress {
		peers(spec.Ingress[i].From, field.NewPath("spec", "ingress").Index(i).Child("from"))
	}
	for i := range spec.Egress {
		peers(spec.Egress[i].To, field.NewPath("spec", "egress").Index(i).Child("to"))
	}
	return out
}

func defaultPolicy(p *policy) {
	spec := &p.Spec
	ports := func(list []networkingv1.NetworkPolicyPort) {
		for i := range list {
			kind.Fill(&list[i].Protocol, corev1.ProtocolTCP)
		}
	}
	for i := range spec.Ingress {
		ports(spec.Ingress[i].Ports)
	}
	for i := range spec.Egress {
		ports(spec.Egress[i].Ports)
	}
	if len(spec.PolicyTypes) == 0 {
		spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(spec.Egress) > 0 {
			spec.PolicyTypes = append(spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
}

func validatePolicy(p *policy) field.ErrorList {
	errs := check.At(field.NewPath("spec"))
	spec := &p.Spec
	errs.Add(meta.Finalizers(p)...)
	errs.Selector("podSelector", &spec.PodSelector)
	check.Each(errs, "ingress", spec.Ingress, func(_ int, r *networkingv1.NetworkPolicyIngressRule) {
		validatePeers(errs, r.Ports, "from", r.From)
	})
	check.Each(errs, "egress", spec.Egress, func(_ int, r *networkingv1.NetworkPolicyEgressRule) {
		validatePeers(errs, r.Ports, "to", r.To)
	})
	const most = 2
	if len(spec.PolicyTypes) > most {
		errs.Invalid("policyTypes", &spec.PolicyTypes, "may not specify more than two policyTypes")
		return errs.Errors()
	}
	check.Each(errs, "policyTypes", spec.PolicyTypes, func(_ int, t *networkingv1.PolicyType) {
		check.Pointer(errs, "", t, networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress)
	})
	return errs.Errors()
}

func validatePeers(
	errs *check.List, ports []networkingv1.NetworkPolicyPort, child string, peers []networkingv1.NetworkPolicyPeer,
) {
	check.Each(errs, "ports", ports, func(_ int, p *networkingv1.NetworkPolicyPort) { validatePort(errs, p) })
	check.Each(errs, child, peers, func(_ int, p *networkingv1.NetworkPolicyPeer) {
		selectors := p.PodSelector != nil || p.NamespaceSelector != nil
		errs.Selector("podSelector", p.PodSelector)
		errs.Selector("namespaceSelector", p.NamespaceSelector)
		if p.IPBlock != nil {
			errs.Within("ipBlock", func() { validateBlock(errs, p.IPBlock) })
		}
		switch {
		case selectors && p.IPBlock != nil:
			errs.Forbidden("", "may not specify both ipBlock and another peer")
		case !selectors && p.IPBlock == nil:
			errs.Required("", "must specify a peer")
		}
	})
}

func validatePort(errs *check.List, port *networkingv1.NetworkPolicyPort) {
	check.Pointer(errs, "protocol", port.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
	switch {
	case port.Port == nil:
		if port.EndPort != nil {
			errs.Invalid("endPort", *port.EndPort, "may not be specified when `port` is not specified")
		}
	case port.Port.Type == intstr.Int:
		for _, msg := range validation.IsValidPortNum(int(port.Port.IntVal)) {
			errs.Invalid("port", port.Port.IntVal, msg)
		}
		if port.EndPort == nil {
			return
		}
		if *port.EndPort < port.Port.IntVal {
			errs.Invalid("endPort", *port.EndPort, "must be greater than or equal to `port`")
		}
		for _, msg := range validation.IsValidPortNum(int(*port.EndPort)) {
			errs.Invalid("endPort", *port.EndPort, msg)
		}
	default:
		if port.EndPort != nil {
			errs.Invalid("endPort", *port.EndPort, "may not be specified when `port` is non-numeric")
		}
		for _, msg := range check.PortName(port.Port.StrVal) {
			errs.Invalid("port", port.Port.StrVal, msg)
		}
	}
}

// validateBlock: what is excepted is a part of the block, not all of it.
func validateBlock(errs *check.List, b *networkingv1.IPBlock) {
	if b.CIDR == "" {
		errs.Missing("cidr")
		return
	}
	errs.CIDR("cidr", b.CIDR)
	whole, err := netip.ParsePrefix(b.CIDR)
	if err != nil {
		return
	}
	check.Each(errs, "except", b.Except, func(_ int, e *string) {
		errs.CIDR("", *e)
		part, err := netip.ParsePrefix(*e)
		if err == nil && (!whole.Contains(part.Addr()) || whole.Bits() >= part.Bits()) {
			errs.Invalid("", *e, "must be a strict subset of `cidr`")
		}
	})
}
