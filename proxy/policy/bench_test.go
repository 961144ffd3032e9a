// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// big is a cluster of 1,000 policies and 10,000 pods, a hundred of them on this node, in 50 namespaces with 20
// applications each. Each application accepts one other of its namespace, and one of all namespaces.
func big() ([]*networkingv1.NetworkPolicy, []Pod) {
	const namespaces, apps, pods = 50, 20, 10000
	var policies []*networkingv1.NetworkPolicy
	for n := range namespaces {
		for a := range apps {
			policy := &networkingv1.NetworkPolicy{}
			policy.Namespace = fmt.Sprintf("ns-%d", n)
			policy.Name = fmt.Sprintf("app-%d", a)
			app := func(i int) *metav1.LabelSelector {
				return &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(i % apps)}}
			}
			policy.Spec.PodSelector = *app(a)
			policy.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{
				From: []networkingv1.NetworkPolicyPeer{
					{PodSelector: app(a + 1)},
					{NamespaceSelector: &metav1.LabelSelector{}, PodSelector: app(a + 2)},
				},
				Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(80))}},
			}}
			policies = append(policies, policy)
		}
	}
	list := make([]Pod, pods)
	for i := range list {
		list[i] = Pod{
			Namespace: fmt.Sprintf("ns-%d", i%namespaces),
			Name:      fmt.Sprintf("pod-%d", i),
			UID:       fmt.Sprint(i),
			Local:     i%100 == 0,
			Labels:    map[string]string{"app": fmt.Sprint(i / namespaces % apps), "pod-template-hash": "5d4f8c7b9"},
			Addrs:     []netip.Addr{netip.AddrFrom4([4]byte{10, 42, byte(i >> 8), byte(i)})},
		}
	}
	return policies, list
}

func fill(policies []*networkingv1.NetworkPolicy, pods []Pod) *State {
	s := NewState()
	for n := range 50 {
		s.SetNamespace(fmt.Sprintf("ns-%d", n), nil)
	}
	for _, p := range policies {
		s.SetPolicy(p)
	}
	for _, p := range pods {
		s.SetPod(p)
	}
	return s
}

// BenchmarkFirstPlan: from objects to rules, 1,000 policies and 10,000 pods.
func BenchmarkFirstPlan(b *testing.B) {
	policies, pods := big()
	for b.Loop() {
		s := fill(policies, pods)
		if t := Table("t", s.Plan()); len(t.Chains) < 4 {
			b.Fatal("no rules")
		}
	}
	b.StopTimer()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s := fill(policies, pods)
	t := Table("t", s.Plan())
	s.Drain()
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MB")
	runtime.KeepAlive(t)
	runtime.KeepAlive(s)
}

// BenchmarkPodChange: a pod of another node comes and goes, among 10,000.
func BenchmarkPodChange(b *testing.B) {
	policies, pods := big()
	s := fill(policies, pods)
	s.Drain()
	p := pods[1]
	p.Name = "new"
	p.Addrs = []netip.Addr{netip.MustParseAddr("10.43.0.1")}
	for b.Loop() {
		s.SetPod(p)
		s.Drain()
		s.DeletePod(p.Namespace, p.Name)
		s.Drain()
	}
}

// BenchmarkPodChangeKernel is the same with a pod of this node, and the kernel.
func BenchmarkPodChangeKernel(b *testing.B) {
	needRoot(b)
	policies, pods := big()
	state := fill(policies, pods)
	w := openWriter(b, "keelson-bench-pol")
	must(b, w.Write(Table("keelson-bench-pol", state.Plan())))
	state.Drain()
	p := pods[0]
	p.Name = "new"
	p.Addrs = []netip.Addr{netip.MustParseAddr("10.43.0.1")}
	for b.Loop() {
		state.SetPod(p)
		must(b, w.Change(state.Drain()))
		state.DeletePod(p.Namespace, p.Name)
		must(b, w.Change(state.Drain()))
	}
}
