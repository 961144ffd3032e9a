// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Direction is the direction of connections, seen from the pod that a policy selects.
type Direction int

// The directions.
const (
	Ingress Direction = iota
	Egress
	directions
)

func (d Direction) String() string {
	if d == Egress {
		return "egress"
	}
	return "ingress"
}

// compiled is a parsed policy.
type compiled struct {
	key, namespace string
	pods           labels.Selector
	// sides are its rules by direction; nil: it does not isolate that direction.
	sides [directions]*side
	// parsed are the selectors of its peers, by key.
	parsed selectors
	// digest identifies the content of sides.
	digest string
}

// side holds the rules of a direction. Without rules nothing is allowed.
type side struct {
	rules []allowance
	named bool // a rule has a named port
	// sets is the weight of its sets in the kernel and in the State, and weight that of its rules in each chain, in the
	// unit of namespaceBound.
	sets, weight int
}

// allowance is one rule: allowed peers and ports. Its lists are sorted and have no duplicates.
type allowance struct {
	anyPeer bool
	peers   []selectorKey
	blocks  []Span
	anyPort bool
	ports   []PortRange
	named   []portName
}

// portName is a named port, which has a number for each pod.
type portName struct {
	proto uint8
	name  string
}

// PortRange is a range of ports of a protocol, both ends included. 0 to 65535 means all.
type PortRange struct {
	Proto    uint8
	From, To uint16
}

func (r PortRange) String() string {
	switch {
	case r.From == 0 && r.To == maxPort:
		return protoName(r.Proto)
	case r.From == r.To:
		return fmt.Sprintf("%s %d", protoName(r.Proto), r.From)
	}
	return fmt.Sprintf("%s %d-%d", protoName(r.Proto), r.From, r.To)
}

// selectorKey identifies a set of pods by the canonical text of its selectors. Namespace is "" if there is a namespace
// selector.
type selectorKey struct {
	namespace, namespaces, pods string
}

func (k selectorKey) String() string {
	if k == everyPod {
		return "all pods"
	}
	if k.namespace != "" {
		return fmt.Sprintf("namespace %s, pods %q", k.namespace, k.pods)
	}
	return fmt.Sprintf("namespaces %q, pods %q", k.namespaces, k.pods)
}

func (k selectorKey) compare(o selectorKey) int {
	return cmp.Or(cmp.Compare(k.namespace, o.namespace), cmp.Compare(k.namespaces, o.namespaces),
		cmp.Compare(k.pods, o.pods))
}

// everyPod selects all pods of the cluster, also those of unknown namespaces. No selector has the text "*".
var everyPod = selectorKey{namespaces: "*"}

// compile parses a policy. It does not fail: a selector or block that does not parse selects and allows nothing.
func compile(policy *networkingv1.NetworkPolicy) *compiled {
	parsed := selectors{}
	c := &compiled{
		key:       policy.Namespace + "/" + policy.Name,
		namespace: policy.Namespace,
		pods:      labels.Nothing(),
		parsed:    parsed,
	}
	if s, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector); err == nil {
		c.pods = s
	}
	in, out := sidesOf(&policy.Spec)
	if in {
		rules := make([]allowance, len(policy.Spec.Ingress))
		for i, r := range policy.Spec.Ingress {
			rules[i] = allowanceOf(r.From, r.Ports, policy.Namespace, parsed)
		}
		c.sides[Ingress] = sideOf(rules)
	}
	if out {
		rules := make([]allowance, len(policy.Spec.Egress))
		for i, r := range policy.Spec.Egress {
			rules[i] = allowanceOf(r.To, r.Ports, policy.Namespace, parsed)
		}
		c.sides[Egress] = sideOf(rules)
	}
	c.digest = digest(c.sides[Ingress].text() + c.sides[Egress].text())
	return c
}

// text returns the whole content of a side.
func (s *side) text() string {
	if s == nil {
		return "not isolated\n"
	}
	var b strings.Builder
	b.WriteString("isolated\n")
	for _, a := range s.rules {
		fmt.Fprintf(&b, "%t %q %s %s\n", a.anyPeer, a.peers, spansText(a.blocks), a.portsText())
	}
	return b.String()
}

// sidesOf returns the directions that a policy isolates. Without policyTypes: ingress, and egress if it has egress
// rules.
func sidesOf(s *networkingv1.NetworkPolicySpec) (in, out bool) {
	if len(s.PolicyTypes) == 0 {
		return true, len(s.Egress) > 0
	}
	return slices.Contains(s.PolicyTypes, networkingv1.PolicyTypeIngress),
		slices.Contains(s.PolicyTypes, networkingv1.PolicyTypeEgress)
}

// sideOf makes a side of rules. Rules with the same ports become one: its peers are those of all, so it needs one set.
func sideOf(rules []allowance) *side {
	at := make(map[string]int, len(rules))
	s := &side{}
	for _, a := range rules {
		key := a.portsText()
		i, ok := at[key]
		if !ok {
			at[key] = len(s.rules)
			s.rules = append(s.rules, a)
			continue
		}
		s.rules[i].anyPeer = s.rules[i].anyPeer || a.anyPeer
		s.rules[i].peers = append(s.rules[i].peers, a.peers...)
		s.rules[i].blocks = append(s.rules[i].blocks, a.blocks...)
	}
	for i := range s.rules {
		s.rules[i].settlePeers()
		s.named = s.named || len(s.rules[i].named) > 0
		s.sets += setsWeight + len(s.rules[i].peers) + len(s.rules[i].blocks)
		s.weight += ruleWeight + len(s.rules[i].ports) + len(s.rules[i].named)
	}
	return s
}

// settlePeers sorts the peers and removes those without effect.
func (a *allowance) settlePeers() {
	if a.anyPeer {
		a.peers = nil
		a.blocks = nil
		return
	}
	slices.SortFunc(a.peers, selectorKey.compare)
	a.peers = slices.Compact(a.peers)
	a.blocks = union(a.blocks)
}

// portsText returns the whole content of a rule's ports.
func (a *allowance) portsText() string {
	return fmt.Sprintf("%t %v %q", a.anyPort, a.ports, a.named)
}

func allowanceOf(
	peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort, namespace string, parsed selectors,
) allowance {
	a := allowance{anyPeer: len(peers) == 0, anyPort: len(ports) == 0}
	for i := range peers {
		a.addPeer(&peers[i], namespace, parsed)
	}
	for i := range ports {
		a.addPort(&ports[i])
	}
	a.ports = joined(a.ports)
	slices.SortFunc(a.named, func(x, y portName) int {
		return cmp.Or(cmp.Compare(x.proto, y.proto), cmp.Compare(x.name, y.name))
	})
	a.named = slices.Compact(a.named)
	return a
}

func (a *allowance) addPeer(peer *networkingv1.NetworkPolicyPeer, namespace string, parsed selectors) {
	if peer.IPBlock != nil {
		if more, ok := spans(peer.IPBlock); ok {
			a.blocks = append(a.blocks, more...)
		}
		return
	}
	if peer.PodSelector == nil && peer.NamespaceSelector == nil {
		return // validation forbids it
	}
	pods := labels.Everything()
	nss := labels.Everything()
	var err error
	if peer.PodSelector != nil {
		if pods, err = metav1.LabelSelectorAsSelector(peer.PodSelector); err != nil {
			return
		}
	}
	k := selectorKey{namespace: namespace, pods: pods.String()}
	if peer.NamespaceSelector != nil {
		if nss, err = metav1.LabelSelectorAsSelector(peer.NamespaceSelector); err != nil {
			return
		}
		k = selectorKey{namespaces: nss.String(), pods: pods.String()}
	}
	parsed[k] = parsedSelector{nss, pods}
	a.peers = append(a.peers, k)
}

func (a *allowance) addPort(port *networkingv1.NetworkPolicyPort) {
	var proto uint8 = tcp
	if port.Protocol != nil {
		n, ok := protoNumber(*port.Protocol)
		if !ok {
			return
		}
		proto = n
	}
	switch {
	case port.Port == nil:
		a.ports = append(a.ports, PortRange{proto, 0, maxPort})
	case port.Port.Type == intstr.String:
		a.named = append(a.named, portName{proto, port.Port.StrVal})
	default:
		from := port.Port.IntVal
		to := port.Port.IntVal
		if port.EndPort != nil {
			to = *port.EndPort
		}
		if from < 1 || to > maxPort || to < from {
			return
		}
		a.ports = append(a.ports, PortRange{proto, uint16(from), uint16(to)})
	}
}

// joined sorts ranges and joins those that overlap or touch.
func joined(in []PortRange) []PortRange {
	in = slices.Clone(in)
	slices.SortFunc(in, func(a, b PortRange) int {
		return cmp.Or(cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.From, b.From))
	})
	var out []PortRange
	for _, r := range in {
		if n := len(out); n > 0 && out[n-1].Proto == r.Proto && int(r.From) <= int(out[n-1].To)+1 {
			out[n-1].To = max(out[n-1].To, r.To)
			continue
		}
		out = append(out, r)
	}
	return out
}

// selectors holds the parsed selectors of keys.
type selectors map[selectorKey]parsedSelector

type parsedSelector struct{ namespaces, pods labels.Selector }

// digest returns a short hash of a text.
func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}
