// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/kind/kindtest"
)

const v4, v6 = corev1.IPv4Protocol, corev1.IPv6Protocol

// said is what became of a service: its policy, families and addresses.
func said(s *corev1.Service) string {
	policy := corev1.IPFamilyPolicy("-")
	if s.Spec.IPFamilyPolicy != nil {
		policy = *s.Spec.IPFamilyPolicy
	}
	return fmt.Sprintf("%s%v%v", policy, s.Spec.IPFamilies, s.Spec.ClusterIPs)
}

var (
	single   = corev1.IPFamilyPolicySingleStack
	prefer   = corev1.IPFamilyPolicyPreferDualStack
	require  = corev1.IPFamilyPolicyRequireDualStack
	selector = map[string]string{"a": "b"}
)

func one(ip string) corev1.ServiceSpec { return corev1.ServiceSpec{ClusterIP: ip, Selector: selector} }

func both(ips ...string) corev1.ServiceSpec {
	return corev1.ServiceSpec{ClusterIP: ips[0], ClusterIPs: ips, Selector: selector}
}

func asks(spec corev1.ServiceSpec, policy corev1.IPFamilyPolicy, families ...corev1.IPFamily) corev1.ServiceSpec {
	if policy != "" {
		spec.IPFamilyPolicy = &policy
	}
	spec.IPFamilies = families
	return spec
}

// TestFamiliesOfNewServices: one row for a fact; the words are those of Kubernetes v1.37.
func TestFamiliesOfNewServices(t *testing.T) {
	type families = []corev1.IPFamily
	only4 := families{v4}
	only6 := families{v6}
	dual := families{v4, v6}
	dual6 := families{v6, v4}
	plain := corev1.ServiceSpec{Selector: selector}
	name := corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "a.b"}
	const (
		notDual = `spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for dual-stack services`
		no4     = `spec.ipFamilies[0]: Invalid value: "IPv4": not configured on this cluster`
		no6     = `spec.ipFamilies[1]: Invalid value: "IPv6": not configured on this cluster`
		many    = `spec.ipFamilyPolicy: Invalid value: "SingleStack": must be 'RequireDualStack' or 'PreferDualStack' when multiple `
	)
	for _, tt := range []struct {
		cluster families
		spec    corev1.ServiceSpec
		want    string
	}{
		{only4, plain, "SingleStack[IPv4][]"},
		{dual6, plain, "SingleStack[IPv6][]"},
		{dual, asks(plain, "", v6), "SingleStack[IPv6][]"},
		{only4, asks(plain, prefer), "PreferDualStack[IPv4][]"},
		{dual, asks(plain, prefer), "PreferDualStack[IPv4 IPv6][]"},
		{dual, asks(plain, prefer, v6), "PreferDualStack[IPv6 IPv4][]"},
		{dual6, asks(plain, require), "RequireDualStack[IPv6 IPv4][]"},
		{only4, asks(plain, require), notDual},
		{only4, asks(plain, require, v4, v6), notDual + "; " + no6},
		{only6, asks(plain, "", v4), no4},
		{dual, asks(plain, "", v4, v6), many + "IP families are specified"},
		{dual, both("10.0.0.1", "fd00::1"), many + "cluster IPs are specified"},
		{dual, asks(both("10.0.0.1", "fd00::1"), require), "RequireDualStack[IPv4 IPv6][10.0.0.1 fd00::1]"},
		{dual, asks(one("fd00::1"), prefer), "PreferDualStack[IPv6 IPv4][fd00::1]"},
		{
			only4, one("fd00::1"),
			`spec.clusterIPs[0]: Invalid value: ["fd00::1"]: IPv6 is not configured on this cluster`,
		},
		{
			dual, asks(one("10.0.0.1"), "", v6), "spec.clusterIPs[0]: Invalid value: \"10.0.0.1\": expected an IPv6 " +
				"value as indicated by `ipFamilies[0]`",
		},
		{
			dual, asks(both("10.0.0.1", "10.0.0.2"), prefer),
			`spec.clusterIPs: Invalid value: ["10.0.0.1","10.0.0.2"]: may specify no more than one IP for each IP family`,
		},
		{dual, asks(plain, prefer, v4, v4), `spec.ipFamilies[1]: Duplicate value: "IPv4"`},
		{
			dual, asks(plain, "Bogus"),
			`spec.ipFamilyPolicy: Unsupported value: "Bogus": supported values: "PreferDualStack", "RequireDualStack", "SingleStack"`,
		},
		{dual, one("None"), "SingleStack[IPv4][None]"},
		{only4, corev1.ServiceSpec{ClusterIP: "None"}, "RequireDualStack[IPv4 IPv6][None]"},
		{only6, corev1.ServiceSpec{ClusterIP: "None"}, "RequireDualStack[IPv6 IPv4][None]"},
		{only4, asks(corev1.ServiceSpec{ClusterIP: "None"}, single, v6), "SingleStack[IPv6][None]"},
		{dual, name, "-[][]"},
	} {
		s := &corev1.Service{Spec: tt.spec}
		got := ""
		for _, e := range create(s, tt.cluster...) {
			got += "; " + e.Error()
		}
		if got = strings.TrimPrefix(got, "; "); got == "" {
			got = said(s)
		}
		if got != tt.want {
			t.Errorf("cluster %v, %+v:\ngot  %s\nwant %s", tt.cluster, tt.spec, got, tt.want)
		}
	}
}

// TestFamiliesChange: what an update makes of a service's families; the addresses that are new are for the server to
// fill in.
func TestFamiliesChange(t *testing.T) {
	four := one("10.0.0.1")
	two := asks(both("10.0.0.1", "fd00::1"), require)
	policy := func(p corev1.IPFamilyPolicy) func(*corev1.ServiceSpec) {
		return func(s *corev1.ServiceSpec) { s.IPFamilyPolicy = &p }
	}
	for _, tt := range []struct {
		what string
		spec corev1.ServiceSpec
		do   func(*corev1.ServiceSpec)
		want string
	}{
		{"upgrade", four, policy(require), "RequireDualStack[IPv4 IPv6][10.0.0.1]"},
		{"a client that knows no families", four, func(s *corev1.ServiceSpec) {
			s.IPFamilies = nil
			s.IPFamilyPolicy = nil
		}, "SingleStack[IPv4][10.0.0.1]"},
		{"downgrade", two, policy(single), "SingleStack[IPv4][10.0.0.1]"},
		{"downgrade by hand", two, func(s *corev1.ServiceSpec) {
			s.IPFamilyPolicy = &single
			s.IPFamilies = s.IPFamilies[:1]
			s.ClusterIPs = s.ClusterIPs[:1]
		}, "SingleStack[IPv4][10.0.0.1]"},
		{
			"an address less", two, func(s *corev1.ServiceSpec) { s.ClusterIPs = s.ClusterIPs[:1] },
			`spec.ipFamilyPolicy: Invalid value: "RequireDualStack": must be 'SingleStack' to release the secondary cluster IP`,
		},
		{
			"a family less", two, func(s *corev1.ServiceSpec) { s.IPFamilies = s.IPFamilies[:1] },
			`spec.ipFamilyPolicy: Invalid value: "RequireDualStack": must be 'SingleStack' to release the secondary IP family`,
		},
		{"preferred where there is one now", asks(four, prefer, v4), func(s *corev1.ServiceSpec) {
			s.SessionAffinity = "ClientIP"
		}, "PreferDualStack[IPv4][10.0.0.1]"},
		{"to a name", two, func(s *corev1.ServiceSpec) {
			s.Type = "ExternalName"
			s.ExternalName = "a.b"
		}, "-[][]"},
	} {
		cluster := []corev1.IPFamily{v4, v6}
		if tt.spec.IPFamilyPolicy != nil && *tt.spec.IPFamilyPolicy == prefer {
			cluster = cluster[:1] // the cluster's families when the service was created
		}
		old := &corev1.Service{Spec: tt.spec}
		old.Name = "web"
		old.Namespace = "default"
		old.ResourceVersion = "1"
		old.Spec.Ports = []corev1.ServicePort{{Port: 80}}
		if errs := create(old, cluster...); len(errs) > 0 {
			t.Fatalf("%s: %v", tt.what, errs)
		}
		s := old.DeepCopy()
		tt.do(&s.Spec)
		errs := update(s, old, v4, v6)
		if strings.HasPrefix(tt.want, "spec.") {
			kindtest.Same(t, tt.what, errs, []string{tt.want})
		} else if got := said(s); len(errs) > 0 || got != tt.want {
			t.Errorf("%s: got %s, %v\nwant %s", tt.what, got, errs, tt.want)
		}
	}
}
