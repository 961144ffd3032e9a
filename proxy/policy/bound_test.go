// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// labelled selects pods by a label.
func labelled(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

// wide is a policy that isolates the pods a of a namespace, with n selectors, of which one selects b: as the peers of
// one rule, or as rules.
func wide(namespace string, n int, asRules bool, ports ...networkingv1.NetworkPolicyPort) *networkingv1.NetworkPolicy {
	policy := &networkingv1.NetworkPolicy{}
	policy.Namespace = namespace
	policy.Name = "wide"
	policy.Spec.PodSelector = *labelled("pod", "a")
	var peers []networkingv1.NetworkPolicyPeer
	for i := range n {
		value := fmt.Sprint("v", i)
		if i == n/2 {
			value = "b"
		}
		peers = append(peers, networkingv1.NetworkPolicyPeer{PodSelector: labelled("pod", value)})
	}
	if !asRules {
		policy.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: peers, Ports: ports}}
		return policy
	}
	for i := range peers {
		policy.Spec.Ingress = append(policy.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{
			From:  peers[i : i+1],
			Ports: ports,
		})
	}
	return policy
}

// manyPorts are n ports that do not touch.
func manyPorts(n int) []networkingv1.NetworkPolicyPort {
	var out []networkingv1.NetworkPolicyPort
	for i := range n {
		out = append(out, networkingv1.NetworkPolicyPort{Port: new(intstr.FromInt32(int32(2*i + 2)))})
	}
	return out
}

// TestManyPeersAreOneSet: what a policy takes in the kernel does not grow with its selectors and ports. Each selector
// and port once had a set or rule of its own, and a policy of 4,000 selectors stopped all new pods of the node.
func TestManyPeersAreOneSet(t *testing.T) {
	for name, p := range map[string]*networkingv1.NetworkPolicy{
		"peers": wide("x", 4000, false, manyPorts(4000)...),
		"rules": wide("x", 4000, true, manyPorts(1)...),
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			c.policies = []*networkingv1.NetworkPolicy{p}
			plan := c.state().Plan()
			table := Table("t", plan)
			rules := 0
			for _, ch := range table.Chains {
				rules += len(ch.Rules)
			}
			if len(plan.Sets) > 2 || len(table.Sets) > 12 || rules > 30 {
				t.Errorf("%d sets of peers, %d sets and %d rules in the kernel: want a few of each", len(plan.Sets),
					len(table.Sets), rules)
			}
			a := netip.MustParseAddr("10.0.0.1")
			for from, want := range map[string]bool{"10.0.0.2": true, "10.0.0.3": false, "10.0.1.2": false} {
				if got := plan.allows(netip.MustParseAddr(from), a, tcp, 2); got != want {
					t.Errorf("%s to %s: got %v, want %v", from, a, got, want)
				}
			}
		})
	}
}

// TestClosedNamespace: policies above the bound isolate the pods of their namespace, and change nothing for another.
// Nothing is made for them.
func TestClosedNamespace(t *testing.T) {
	cluster := newCluster()
	cluster.most = 1000
	cluster.policies = []*networkingv1.NetworkPolicy{wide("x", 2000, false), wide("y", 20, false)}
	state := cluster.state()
	plan := state.Plan()
	if closed, changed := state.Closed(); !slices.Equal(closed, []string{"x"}) || !changed {
		t.Errorf("closed: %v, %v", closed, changed)
	}
	if n := len(state.sets.selectors); n != 20 {
		t.Errorf("%d selectors are in use, want those of y", n)
	}
	for _, row := range []struct {
		from, to string
		want     bool
	}{
		{"10.0.0.2", "10.0.0.1", false},
		{"10.0.1.2", "10.0.1.1", true},
		{"10.0.1.3", "10.0.1.1", false},
		{"10.0.0.1", "10.0.0.2", true},
		{"10.0.0.1", "10.0.0.1", true},
	} {
		if got := plan.allows(netip.MustParseAddr(row.from), netip.MustParseAddr(row.to), tcp, 80); got != row.want {
			t.Errorf("%s to %s: got %v, want %v", row.from, row.to, got, row.want)
		}
	}
	state.SetPolicy(wide("x", 20, false))
	if closed, changed := state.Closed(); len(closed) > 0 || !changed {
		t.Errorf("after the policy shrank: %v, %v", closed, changed)
	}
	if !state.Plan().allows(netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1"), tcp, 80) {
		t.Error("what the small policy allows is not allowed")
	}
	for _, p := range cluster.pods {
		state.DeletePod(p.Namespace, p.Name)
	}
	if n := state.namespaces["x"]; n.weight != 0 || len(n.loads) != 0 {
		t.Errorf("without pods the namespace weighs %d: %v", n.weight, n.loads)
	}
}

// TestSharedPoliciesCountOnce: a large policy for a whole namespace stays within the bound, however many other policies
// its pods have in addition.
func TestSharedPoliciesCountOnce(t *testing.T) {
	alone := newCluster()
	alone.policies = []*networkingv1.NetworkPolicy{wide("x", 2000, false)}
	before := alone.state().namespaces["x"].weight
	shared := newCluster()
	shared.policies = alone.policies
	for i := range 20 { // each of these pods has a chain of its own
		name := fmt.Sprint("app-", i)
		p := newPod("x", name, fmt.Sprintf("10.0.9.%d", i+1), fmt.Sprintf("fd00::9:%d", i+1))
		p.Labels = map[string]string{"pod": "a", "app": name}
		shared.pods = append(shared.pods, p)
		own := wide("x", 1, false)
		own.Name = name
		own.Spec.PodSelector.MatchLabels = map[string]string{"app": name}
		shared.policies = append(shared.policies, own)
	}
	if after := shared.state().namespaces["x"].weight; after > before+20*300 || after <= before {
		t.Errorf("the namespace weighs %d, and %d with 20 small policies: the large one counts again", before, after)
	}
}

// TestLargePoliciesInTheKernel writes the attack's policy, and one with as much as a namespace may have, into the
// kernel: as a change, and as a whole table.
func TestLargePoliciesInTheKernel(t *testing.T) {
	needRoot(t)
	many := wide("x", 900, true)
	for i := range many.Spec.Ingress { // no two rules can be joined
		many.Spec.Ingress[i].Ports = manyPorts(i + 1)[i:]
	}
	blocks := wide("x", 1, false)
	for i := range 50000 {
		block := &networkingv1.IPBlock{CIDR: fmt.Sprintf("10.%d.%d.%d/32", i>>15, i>>7&255, i<<1&255)}
		blocks.Spec.Ingress[0].From = append(blocks.Spec.Ingress[0].From, networkingv1.NetworkPolicyPeer{
			IPBlock: block,
		})
	}
	for name, policy := range map[string]*networkingv1.NetworkPolicy{
		"attack": wide("x", 4000, false, manyPorts(4000)...),
		"rules":  many,
		"blocks": blocks,
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			state := c.state()
			writer := openWriter(t, "keelson-large-pol")
			must(t, writer.Write(Table("keelson-large-pol", state.Plan())))
			state.Drain()
			state.SetPolicy(policy)
			if closed, _ := state.Closed(); len(closed) > 0 {
				t.Fatalf("closed: %v, weight %d", closed, state.namespaces["x"].weight)
			}
			must(t, writer.Change(state.Drain()))
			if !writer.Intact() {
				t.Error("the kernel does not have the change")
			}
			must(t, writer.Repair())
			if !writer.Intact() {
				t.Error("the kernel does not have the whole table")
			}
			state.DeletePolicy("x", "wide")
			must(t, writer.Change(state.Drain()))
			if !writer.Intact() {
				t.Error("the kernel still has the policy")
			}
		})
	}
}

// TestSpansWithoutCuts compares with addresses that are looked at one by one.
func TestSpansWithoutCuts(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }
	for range 500 {
		ipBlock := &networkingv1.IPBlock{CIDR: "10.0.0.64/26"}
		var cut []netip.Prefix
		for range r.IntN(6) {
			p := netip.PrefixFrom(addr(r.IntN(256)), 24+r.IntN(9)).Masked()
			cut = append(cut, p)
			ipBlock.Except = append(ipBlock.Except, p.String())
		}
		got, ok := spans(ipBlock)
		if !ok || !slices.Equal(got, union(got)) {
			t.Fatalf("%v: %v, %v: not sorted and disjoint", ipBlock, got, ok)
		}
		for i := range 256 {
			want := i >= 64 && i < 128 && !slices.ContainsFunc(cut, func(p netip.Prefix) bool {
				return p.Contains(addr(i))
			})
			if inSpans(got, addr(i)) != want {
				t.Fatalf("%v: %s is in %v: %v, want %v", ipBlock, addr(i), got, !want, want)
			}
		}
	}
}

// BenchmarkHostilePolicies compiles policies of three megabytes, whose parts were once compared with each other.
func BenchmarkHostilePolicies(b *testing.B) {
	peers := wide("x", 50000, false)
	named := wide("x", 1, false)
	except := wide("x", 1, false)
	block := &networkingv1.IPBlock{CIDR: "10.0.0.0/8"}
	for i := range 100000 {
		block.Except = append(block.Except, fmt.Sprintf("10.%d.%d.%d/32", i>>15, i>>7&255, i<<1&255))
		named.Spec.Ingress[0].Ports = append(named.Spec.Ingress[0].Ports, networkingv1.NetworkPolicyPort{
			Port: new(intstr.FromString(fmt.Sprint("p", i))),
		})
	}
	except.Spec.Ingress[0].From = []networkingv1.NetworkPolicyPeer{{IPBlock: block}}
	for name, p := range map[string]*networkingv1.NetworkPolicy{"peers": peers, "named": named, "except": except} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				compile(p)
			}
		})
	}
}
