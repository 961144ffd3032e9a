// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"keelson/api/networking/verdict"
)

// TestRandom changes a cluster at random. After each step the plan must agree with the API's definition and with the
// plan of a state made from scratch, and the rules must be those that the changes made of the first ones.
func TestRandom(t *testing.T) {
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		cluster := newCluster()
		if seed%3 == 0 {
			cluster.most = 3 * (setsWeight + ruleWeight) // some namespaces are closed
		}
		state := cluster.state()
		table := Table("t", state.Plan())
		state.Drain()
		for step := range 40 {
			what := cluster.change(rnd, state)
			if rnd.IntN(3) == 0 {
				continue // several changes drained at once
			}
			state.Drain().Apply(table)
			where := fmt.Sprintf("seed %d step %d: %s", seed, step, what)
			fresh := cluster.state().Plan()
			if diff := cmp.Diff(fresh.String(), state.Plan().String()); diff != "" {
				t.Fatalf("%s: a new state's plan and this one's (-new +old):\n%s", where, diff)
			}
			if diff := cmp.Diff(Table("t", fresh).String(), table.String()); diff != "" {
				t.Fatalf("%s: rules of a new state and these (-new +changed):\n%s", where, diff)
			}
			cluster.compare(t, where, rnd, fresh)
		}
	}
}

// compare asks the plan and the reference about connections at random.
func (c *cluster) compare(t *testing.T, where string, rnd *rand.Rand, plan *Plan) {
	t.Helper()
	v := c.verdicts()
	ends := []verdict.End{{Addr: netip.MustParseAddr("192.0.2.7")}, {Addr: netip.MustParseAddr("fd99::7")}}
	for _, pod := range c.pods {
		for _, ip := range pod.Status.PodIPs {
			e := verdict.End{Addr: netip.MustParseAddr(ip.IP), Pod: pod}
			if pod.Status.Phase == corev1.PodFailed {
				e.Pod = nil
			}
			ends = append(ends, e)
		}
	}
	for range 60 {
		client := ends[rnd.IntN(len(ends))]
		server := ends[rnd.IntN(len(ends))]
		if client.Addr.BitLen() != server.Addr.BitLen() {
			continue
		}
		port := verdict.Port{
			Protocol: pick(rnd, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP),
			Number:   pick[int32](rnd, 80, 81, 82, 8080),
		}
		want := true
		if local(client) {
			want = v.Egress(client, server, port).Allowed() && !plan.closed(Egress, client.Addr)
		}
		if local(server) {
			want = want && v.Ingress(client, server, port).Allowed() && !plan.closed(Ingress, server.Addr)
		}
		want = want || client.Addr == server.Addr
		proto, _ := protoNumber(port.Protocol)
		if got := plan.allows(client.Addr, server.Addr, proto, uint16(port.Number)); got != want {
			for _, pol := range c.policies {
				t.Logf("%+v", pol.Spec)
			}
			t.Fatalf("%s: %s to %s %v: got %v, want %v\n%s", where, client.Addr, server.Addr, port, got, want, plan)
		}
	}
}

// closed reports whether the namespace of an isolated pod is closed.
func (p *Plan) closed(d Direction, at netip.Addr) bool {
	return strings.HasSuffix(p.Isolated[d][at], closedSuffix)
}

func local(e verdict.End) bool { return e.Pod != nil && e.Pod.Spec.NodeName == node }

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// change makes one change to c and passes it to state.
func (c *cluster) change(rnd *rand.Rand, state *State) string {
	switch rnd.IntN(8) {
	case 0:
		name := pick(rnd, "x", "y", "z")
		if c.namespaces[name] != nil && rnd.IntN(3) == 0 {
			delete(c.namespaces, name)
			state.DeleteNamespace(name)
			return "delete namespace " + name
		}
		l := map[string]string{"ns": pick(rnd, "x", "y", "z")}
		c.namespaces[name] = l
		state.SetNamespace(name, l)
		return fmt.Sprint("namespace ", name, l)
	case 1, 2, 3:
		i := rnd.IntN(len(c.pods))
		pod := c.pods[i].DeepCopy()
		c.pods[i] = pod
		switch rnd.IntN(5) {
		case 0:
			pod.Labels = map[string]string{"pod": pick(rnd, "a", "b", "c"), "tier": pick(rnd, "front", "back")}
		case 1:
			pod.Status.Phase = pick(rnd, corev1.PodRunning, corev1.PodFailed)
		case 2:
			pod.Spec.NodeName = pick(rnd, node, "there")
		case 3:
			pod.Spec.Containers[0].Ports[0].ContainerPort = pick[int32](rnd, 80, 82, 8080)
		case 4:
			a := netip.MustParseAddr(pod.Status.PodIP).As4()
			a[3] ^= 0x10
			pod.Status.PodIP = netip.AddrFrom4(a).String()
			pod.Status.PodIPs[0].IP = pod.Status.PodIP
		}
		note(state, pod)
		return fmt.Sprint("pod ", pod.Namespace, "/", pod.Name, pod.Labels, pod.Status, pod.Spec.NodeName)
	case 4:
		if len(c.policies) > 0 {
			i := rnd.IntN(len(c.policies))
			p := c.policies[i]
			c.policies = append(c.policies[:i:i], c.policies[i+1:]...)
			state.DeletePolicy(p.Namespace, p.Name)
			return "delete policy " + p.Name
		}
	}
	p := randomPolicy(rnd)
	for i, old := range c.policies {
		if old.Namespace == p.Namespace && old.Name == p.Name {
			c.policies = append(c.policies[:i:i], c.policies[i+1:]...)
			break
		}
	}
	c.policies = append(c.policies, p)
	state.SetPolicy(p)
	return fmt.Sprintf("policy %+v", p)
}

func randomPolicy(rnd *rand.Rand) *networkingv1.NetworkPolicy {
	policy := &networkingv1.NetworkPolicy{}
	policy.Namespace = pick(rnd, "x", "y", "z")
	policy.Name = pick(rnd, "p", "q", "r")
	policy.Spec.PodSelector = *randomSelector(rnd, "pod")
	types := [][]networkingv1.PolicyType{
		nil,
		{networkingv1.PolicyTypeIngress},
		{networkingv1.PolicyTypeEgress},
		{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
	}
	policy.Spec.PolicyTypes = pick(rnd, types...)
	for range rnd.IntN(3) {
		policy.Spec.Ingress = append(policy.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{
			From:  randomPeers(rnd),
			Ports: randomPorts(rnd),
		})
	}
	for range rnd.IntN(3) {
		policy.Spec.Egress = append(policy.Spec.Egress, networkingv1.NetworkPolicyEgressRule{
			To:    randomPeers(rnd),
			Ports: randomPorts(rnd),
		})
	}
	return policy
}

func randomSelector(rnd *rand.Rand, key string) *metav1.LabelSelector {
	values := []string{"a", "b", "c"}
	if key == "ns" {
		values = []string{"x", "y", "z"}
	}
	switch rnd.IntN(5) {
	case 0:
		return &metav1.LabelSelector{}
	case 1:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: key, Operator: metav1.LabelSelectorOpNotIn, Values: values[:1+rnd.IntN(2)]},
		}}
	case 2:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "tier", Operator: metav1.LabelSelectorOpDoesNotExist},
		}}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: pick(rnd, values...)}}
}

func randomPeers(rnd *rand.Rand) []networkingv1.NetworkPolicyPeer {
	var out []networkingv1.NetworkPolicyPeer
	for range rnd.IntN(4) {
		var peer networkingv1.NetworkPolicyPeer
		switch rnd.IntN(4) {
		case 0:
			peer.PodSelector = randomSelector(rnd, "pod")
		case 1:
			peer.NamespaceSelector = randomSelector(rnd, "ns")
		case 2:
			peer.PodSelector = randomSelector(rnd, "pod")
			peer.NamespaceSelector = randomSelector(rnd, "ns")
		case 3:
			peer.IPBlock = pick(rnd,
				&networkingv1.IPBlock{CIDR: "0.0.0.0/0"},
				&networkingv1.IPBlock{CIDR: "10.0.0.0/22", Except: []string{"10.0.1.0/24", "10.0.2.2/32"}},
				&networkingv1.IPBlock{CIDR: "10.0.2.0/28"},
				&networkingv1.IPBlock{CIDR: "fd00::/16", Except: []string{"fd00::1:0/112"}},
				&networkingv1.IPBlock{CIDR: "192.0.2.7/32"})
		}
		out = append(out, peer)
	}
	return out
}

func randomPorts(rnd *rand.Rand) []networkingv1.NetworkPolicyPort {
	var out []networkingv1.NetworkPolicyPort
	for range rnd.IntN(4) {
		port := networkingv1.NetworkPolicyPort{
			Protocol: new(pick(rnd, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)),
		}
		switch rnd.IntN(5) {
		case 0:
			port.Protocol = nil
		case 1, 2:
			port.Port = new(intstr.FromString(pick(rnd, "serve-80", "serve-81", "none")))
		case 3:
			port.Port = new(intstr.FromInt32(80))
			port.EndPort = new(pick[int32](rnd, 80, 81, 9000))
		case 4:
			port.Port = new(intstr.FromInt32(pick[int32](rnd, 80, 81, 82)))
		}
		out = append(out, port)
	}
	return out
}

// TestNothingStays: a state whose pods and policies have gone holds nothing of them.
func TestNothingStays(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	cluster := newCluster()
	state := cluster.state()
	for range 500 {
		cluster.change(r, state)
	}
	for _, p := range cluster.pods {
		state.DeletePod(p.Namespace, p.Name)
	}
	if p := state.Plan(); len(p.Chains)+len(p.Sets)+len(p.Isolated[Ingress])+len(p.Isolated[Egress]) > 0 {
		t.Errorf("left without pods:\n%s", p)
	}
	for _, p := range cluster.policies {
		state.DeletePolicy(p.Namespace, p.Name)
	}
	for name := range cluster.namespaces {
		state.DeleteNamespace(name)
	}
	sets := state.sets
	left := len(state.namespaces) + len(state.pods) + len(state.chains.all) + len(state.claims) +
		len(sets.selectors) + len(sets.wide) + len(sets.members) + len(sets.constants)
	if left > 0 {
		t.Errorf("%d things are left: namespaces %v, selectors %v", left, maps.Keys(state.namespaces), sets.selectors)
	}
}
