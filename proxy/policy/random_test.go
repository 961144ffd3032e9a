// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"keelson/api/networking/verdict"
)

// TestRandom changes a cluster at random. After each step the plan must judge as the API's words do, be that of a state
// made anew, and its rules those that the changes made of the first ones.
func TestRandom(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 7))
		c := newCluster()
		s := c.state()
		table := Table("t", s.Plan())
		s.Drain()
		for step := range 40 {
			what := c.change(r, s)
			if r.IntN(3) == 0 {
				continue // several changes drained at once
			}
			s.Drain().Apply(table)
			where := fmt.Sprintf("seed %d step %d: %s", seed, step, what)
			fresh := c.state().Plan()
			if diff := cmp.Diff(fresh.String(), s.Plan().String()); diff != "" {
				t.Fatalf("%s: a new state's plan and this one's (-new +old):\n%s", where, diff)
			}
			if diff := cmp.Diff(Table("t", fresh).String(), table.String()); diff != "" {
				t.Fatalf("%s: rules of a new state and these (-new +changed):\n%s", where, diff)
			}
			c.compare(t, where, r, fresh)
		}
	}
}

// compare asks the plan and the reference about connections at random.
func (c *cluster) compare(t *testing.T, where string, r *rand.Rand, p *Plan) {
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
		client := ends[r.IntN(len(ends))]
		server := ends[r.IntN(len(ends))]
		if client.Addr.BitLen() != server.Addr.BitLen() {
			continue
		}
		port := verdict.Port{
			Protocol: pick(r, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP),
			Number:   pick[int32](r, 80, 81, 82, 8080),
		}
		want := true
		if local(client) {
			want = v.Egress(client, server, port).Allowed()
		}
		if local(server) {
			want = want && v.Ingress(client, server, port).Allowed()
		}
		proto, _ := protoNumber(port.Protocol)
		if got := p.allows(client.Addr, server.Addr, proto, uint16(port.Number)); got != want {
			for _, pol := range c.policies {
				t.Logf("%+v", pol.Spec)
			}
			t.Fatalf("%s: %s to %s %v: got %v, want %v\n%s", where, client.Addr, server.Addr, port, got, want, p)
		}
	}
}

func local(e verdict.End) bool { return e.Pod != nil && e.Pod.Spec.NodeName == node }

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// change makes one change to c and tells s.
func (c *cluster) change(r *rand.Rand, s *State) string {
	switch r.IntN(8) {
	case 0:
		name := pick(r, "x", "y", "z")
		if c.namespaces[name] != nil && r.IntN(3) == 0 {
			delete(c.namespaces, name)
			s.DeleteNamespace(name)
			return "delete namespace " + name
		}
		l := map[string]string{"ns": pick(r, "x", "y", "z")}
		c.namespaces[name] = l
		s.SetNamespace(name, l)
		return fmt.Sprint("namespace ", name, l)
	case 1, 2, 3:
		i := r.IntN(len(c.pods))
		p := c.pods[i].DeepCopy()
		c.pods[i] = p
		switch r.IntN(5) {
		case 0:
			p.Labels = map[string]string{"pod": pick(r, "a", "b", "c"), "tier": pick(r, "front", "back")}
		case 1:
			p.Status.Phase = pick(r, corev1.PodRunning, corev1.PodFailed)
		case 2:
			p.Spec.NodeName = pick(r, node, "there")
		case 3:
			p.Spec.Containers[0].Ports[0].ContainerPort = pick[int32](r, 80, 82, 8080)
		case 4:
			a := netip.MustParseAddr(p.Status.PodIP).As4()
			a[3] ^= 0x10
			p.Status.PodIP = netip.AddrFrom4(a).String()
			p.Status.PodIPs[0].IP = p.Status.PodIP
		}
		note(s, p)
		return fmt.Sprint("pod ", p.Namespace, "/", p.Name, p.Labels, p.Status, p.Spec.NodeName)
	case 4:
		if len(c.policies) > 0 {
			i := r.IntN(len(c.policies))
			p := c.policies[i]
			c.policies = append(c.policies[:i:i], c.policies[i+1:]...)
			s.DeletePolicy(p.Namespace, p.Name)
			return "delete policy " + p.Name
		}
	}
	p := randomPolicy(r)
	for i, old := range c.policies {
		if old.Namespace == p.Namespace && old.Name == p.Name {
			c.policies = append(c.policies[:i:i], c.policies[i+1:]...)
			break
		}
	}
	c.policies = append(c.policies, p)
	s.SetPolicy(p)
	return fmt.Sprintf("policy %+v", p)
}

func randomPolicy(r *rand.Rand) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{}
	p.Namespace = pick(r, "x", "y", "z")
	p.Name = pick(r, "p", "q", "r")
	p.Spec.PodSelector = *randomSelector(r, "pod")
	types := [][]networkingv1.PolicyType{
		nil,
		{networkingv1.PolicyTypeIngress},
		{networkingv1.PolicyTypeEgress},
		{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
	}
	p.Spec.PolicyTypes = pick(r, types...)
	for range r.IntN(3) {
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{
			From:  randomPeers(r),
			Ports: randomPorts(r),
		})
	}
	for range r.IntN(3) {
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{
			To:    randomPeers(r),
			Ports: randomPorts(r),
		})
	}
	return p
}

func randomSelector(r *rand.Rand, key string) *metav1.LabelSelector {
	values := []string{"a", "b", "c"}
	if key == "ns" {
		values = []string{"x", "y", "z"}
	}
	switch r.IntN(5) {
	case 0:
		return &metav1.LabelSelector{}
	case 1:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: key, Operator: metav1.LabelSelectorOpNotIn, Values: values[:1+r.IntN(2)]},
		}}
	case 2:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "tier", Operator: metav1.LabelSelectorOpDoesNotExist},
		}}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: pick(r, values...)}}
}

func randomPeers(r *rand.Rand) []networkingv1.NetworkPolicyPeer {
	var out []networkingv1.NetworkPolicyPeer
	for range r.IntN(4) {
		var p networkingv1.NetworkPolicyPeer
		switch r.IntN(4) {
		case 0:
			p.PodSelector = randomSelector(r, "pod")
		case 1:
			p.NamespaceSelector = randomSelector(r, "ns")
		case 2:
			p.PodSelector = randomSelector(r, "pod")
			p.NamespaceSelector = randomSelector(r, "ns")
		case 3:
			p.IPBlock = pick(r,
				&networkingv1.IPBlock{CIDR: "0.0.0.0/0"},
				&networkingv1.IPBlock{CIDR: "10.0.0.0/22", Except: []string{"10.0.1.0/24", "10.0.2.2/32"}},
				&networkingv1.IPBlock{CIDR: "10.0.2.0/28"},
				&networkingv1.IPBlock{CIDR: "fd00::/16", Except: []string{"fd00::1:0/112"}},
				&networkingv1.IPBlock{CIDR: "192.0.2.7/32"})
		}
		out = append(out, p)
	}
	return out
}

func randomPorts(r *rand.Rand) []networkingv1.NetworkPolicyPort {
	var out []networkingv1.NetworkPolicyPort
	for range r.IntN(4) {
		p := networkingv1.NetworkPolicyPort{
			Protocol: new(pick(r, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)),
		}
		switch r.IntN(5) {
		case 0:
			p.Protocol = nil
		case 1, 2:
			p.Port = new(intstr.FromString(pick(r, "serve-80", "serve-81", "none")))
		case 3:
			p.Port = new(intstr.FromInt32(80))
			p.EndPort = new(pick[int32](r, 80, 81, 9000))
		case 4:
			p.Port = new(intstr.FromInt32(pick[int32](r, 80, 81, 82)))
		}
		out = append(out, p)
	}
	return out
}

// TestNothingStays: a state whose pods and policies have gone holds nothing of them.
func TestNothingStays(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	c := newCluster()
	s := c.state()
	for range 500 {
		c.change(r, s)
	}
	for _, p := range c.pods {
		s.DeletePod(p.Namespace, p.Name)
	}
	if p := s.Plan(); len(p.Chains)+len(p.Sets)+len(p.Isolated[Ingress])+len(p.Isolated[Egress]) > 0 {
		t.Errorf("left without pods:\n%s", p)
	}
	for _, p := range c.policies {
		s.DeletePolicy(p.Namespace, p.Name)
	}
	for name := range c.namespaces {
		s.DeleteNamespace(name)
	}
	if n := len(s.namespaces) + len(s.pods) + len(s.selectors) + len(s.wide) + len(s.chains) + len(s.blocks) +
		len(s.claims); n > 0 {
		t.Errorf("%d things are left: namespaces %v, selectors %v", n, maps.Keys(s.namespaces), s.selectors)
	}
}
