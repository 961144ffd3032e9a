// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"keelson/api/networking/reach"
	"keelson/api/networking/verdict"
	"keelson/api/networking/wireguard"
	"keelson/lib/words"
	"keelson/proxy/services"
)

// TraceInput is the input of a trace.
type TraceInput struct {
	From *corev1.Pod
	// To is the destination as the user gave it.
	To       string
	Port     uint16
	Protocol corev1.Protocol
	// Address is the destination's address; invalid: none.
	Address netip.Addr
	// ToNode is the node with the address; "": none.
	ToNode string
	// Service has that address or node port; nil: none. Slices are its EndpointSlices.
	Service *corev1.Service
	Slices  []*discoveryv1.EndpointSlice
	// ServiceRange is the ServiceCIDR that contains the address if no Service has it.
	ServiceRange netip.Prefix
	// Pods are the possible endpoints' pods, Nodes their nodes by name.
	Pods  []*corev1.Pod
	Nodes map[string]*corev1.Node
	// Policies are those in the namespaces of both ends.
	Policies   []*networkingv1.NetworkPolicy
	Namespaces map[string]map[string]string
	// Answer is the probe's result; nil: NoAnswer says why there is none.
	Answer   *reach.Answer
	NoAnswer string
	// Unread lists what could not be read, and why.
	Unread []string
}

// Trace is the path of a connection, hop by hop, and the result of a test connection.
type Trace struct {
	From     string       `json:"from"`
	Node     string       `json:"node"`
	To       string       `json:"to"`
	Port     uint16       `json:"port"`
	Protocol string       `json:"protocol"`
	Names    *reach.Names `json:"names,omitempty"`
	Address  string       `json:"address,omitempty"`
	// Service is namespace/name; Front the kind of its address; Rules describes what a node does with such a
	// connection.
	Service string `json:"service,omitempty"`
	Front   string `json:"front,omitempty"`
	Rules   string `json:"rules,omitempty"`
	Hops    []Hop  `json:"hops,omitempty"`
	// Expected is the expected result.
	Expected   Expected          `json:"expected"`
	Why        string            `json:"why"`
	Connection *reach.Connection `json:"connection,omitempty"`
	NoProbe    string            `json:"noProbe,omitempty"`
	// Met is the pod behind the address that the connection reached.
	Met string `json:"met,omitempty"`
	// Verdict says whether the probe confirms the expectation.
	Verdict string   `json:"verdict"`
	Unread  []string `json:"unread,omitempty"`

	afar bool // another node's rules choose the endpoint
}

// Hop is an address to which the connection may be sent.
type Hop struct {
	Address     string  `json:"address"`
	Probability float64 `json:"probability"`
	Pod         string  `json:"pod,omitempty"`
	Node        string  `json:"node,omitempty"`
	// Way is the route to that node, as far as the API shows it.
	Way string `json:"way,omitempty"`
	// NoWay is why the nodes do not reach each other's pods.
	NoWay   string `json:"noWay,omitempty"`
	Egress  string `json:"egress"`
	Ingress string `json:"ingress"`
	Allowed bool   `json:"allowed"`
	// Fake means that the node is simulated: nothing listens there.
	Fake bool `json:"fake,omitempty"`

	deniedOut, deniedIn bool // what Egress and Ingress say
}

// Expected is the expected result of a connection, by the API objects.
type Expected string

// The possible expectations. Whether a process listens on the endpoint's port is not in the API.
const (
	Passes    Expected = "passes"
	Refuses   Expected = "refused"
	Drops     Expected = "dropped"
	Sometimes Expected = "passes to some endpoints"
	NoName    Expected = "no address"
)

const annotationFake = "keelson.dev/simulated-by"

// Follow computes the path of a connection and the expected result.
func Follow(traceInput *TraceInput) *Trace {
	trace := &Trace{
		From:     traceInput.From.Namespace + "/" + traceInput.From.Name,
		Node:     traceInput.From.Spec.NodeName,
		To:       traceInput.To,
		Port:     traceInput.Port,
		Protocol: string(traceInput.Protocol),
		NoProbe:  traceInput.NoAnswer,
		Unread:   traceInput.Unread,
	}
	if traceInput.Answer != nil {
		trace.Names = traceInput.Answer.Names
		trace.Connection = traceInput.Answer.Connection
	}
	switch {
	case !traceInput.Address.IsValid():
		trace.Expected = NoName
		trace.Why = "the name leads to no address" + nameless(traceInput, trace.Names)
	default:
		trace.Address = traceInput.Address.String()
		trace.rules(traceInput)
		trace.expect()
	}
	trace.conclude(traceInput)
	return trace
}

func nameless(j *TraceInput, n *reach.Names) string {
	if n == nil {
		return ""
	}
	if p := j.From; p.Spec.HostNetwork && p.Spec.DNSPolicy == corev1.DNSClusterFirst {
		return ": a pod with hostNetwork asks the node's DNS servers, which know no Services, unless its dnsPolicy " +
			"is ClusterFirstWithHostNet"
	}
	for _, try := range n.Tries {
		if try.Error != "" {
			return fmt.Sprintf(": DNS server %s gave no answer: %s", try.Server, try.Error) + neighbour(&try)
		}
	}
	if last := len(n.Tries) - 1; last >= 0 {
		return neighbour(&n.Tries[last])
	}
	return ""
}

// rules finds the addresses to which a connection may be sent.
func (t *Trace) rules(traceInput *TraceInput) {
	to := netip.AddrPortFrom(traceInput.Address, traceInput.Port)
	if traceInput.Service == nil && traceInput.ServiceRange.IsValid() {
		t.Expected = Drops
		t.Rules = fmt.Sprintf("no Service has this address of the Services' range %s: nothing of the cluster answers "+
			"there", traceInput.ServiceRange)
		return
	}
	if traceInput.Service == nil {
		t.Rules = "no Service has this address: it is sent there as it is"
		t.Hops = []Hop{t.hop(traceInput, to, 1)}
		return
	}
	t.Service = traceInput.Service.Namespace + "/" + traceInput.Service.Name
	if traceInput.Service.Spec.ClusterIP == corev1.ClusterIPNone {
		t.Front = "pod's address (headless)"
		t.Rules = "a headless Service has no rules: it is sent to the pod"
		t.Hops = []Hop{t.hop(traceInput, to, 1)}
		return
	}
	way, ok := services.WayOf(traceInput.Service, traceInput.Slices, t.nodeFacts(traceInput), to,
		number(traceInput.Protocol))
	if !ok {
		t.Rules = "the Service is not served at this address by this cluster's proxy: it is sent there as it is"
		if slices.Contains(traceInput.Service.Spec.ExternalIPs, to.Addr().String()) {
			t.Rules = "the address is in spec.externalIPs, which nodes serve only with the feature gate " +
				"AllowServiceExternalIPs (off by default): otherwise it is sent there as it is"
		}
		t.Hops = []Hop{t.hop(traceInput, to, 1)}
		return
	}
	t.Front = way.Front
	switch {
	case way.Unserved:
		t.Expected = Refuses
		t.Rules = fmt.Sprintf("refused: the Service has no port %d/%s; it has %s", traceInput.Port, traceInput.Protocol,
			portsOf(traceInput.Service))
	case way.Fate == services.Refused:
		t.Expected = Refuses
		t.Rules = "refused: port " + portWords(way.Port, traceInput.Port) + " has no endpoint (keelson why -n " +
			traceInput.Service.Namespace + " svc/" + traceInput.Service.Name + " says why)"
	case way.Fate == services.Dropped:
		t.Expected = Drops
		t.Rules = "dropped: port " + portWords(way.Port, traceInput.Port) + " has no endpoint on this node, and " +
			"internalTrafficPolicy is Local"
	default:
		t.Rules = fmt.Sprintf("port %s leads to %s", portWords(way.Port, traceInput.Port),
			words.Count(len(way.Endpoints), "endpoint"))
		if way.Sticky > 0 {
			t.Rules += fmt.Sprintf("; a client keeps its endpoint for %s", short(way.Sticky))
		}
		for _, e := range way.Endpoints {
			t.Hops = append(t.Hops, t.hop(traceInput, e.Addr, 1/float64(len(way.Endpoints))))
		}
		t.elsewhere(traceInput)
	}
}

// elsewhere handles a node port of another node, which treats the connection as traffic from outside.
func (t *Trace) elsewhere(traceInput *TraceInput) {
	if t.Front != "node port" || traceInput.ToNode == "" || traceInput.ToNode == t.Node {
		return
	}
	t.afar = true
	t.Rules += ", by the rules of node " + traceInput.ToNode
	if traceInput.Service.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return
	}
	t.Hops = slices.DeleteFunc(t.Hops, func(h Hop) bool { return h.Node != traceInput.ToNode })
	for i := range t.Hops {
		t.Hops[i].Probability = 1 / float64(len(t.Hops))
	}
	if t.Rules += fmt.Sprintf("; externalTrafficPolicy is Local, and %s of them there",
		words.Count(len(t.Hops), "endpoint")); len(t.Hops) == 0 {
		t.Expected = Drops
		t.Rules = "dropped: node " + traceInput.ToNode + " has no endpoint, and externalTrafficPolicy is Local"
	}
}

func short(d time.Duration) string {
	return strings.TrimSuffix(strings.TrimSuffix(d.String(), "0s"), "0m")
}

func portWords(name string, number uint16) string {
	if name == "" {
		return fmt.Sprint(number)
	}
	return fmt.Sprintf("%d (%s)", number, name)
}

func portsOf(svc *corev1.Service) string {
	var out []string
	for i := range svc.Spec.Ports {
		out = append(out, portText(&svc.Spec.Ports[i]))
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}

func number(p corev1.Protocol) uint8 {
	if p == corev1.ProtocolUDP {
		return 17
	}
	return 6
}

// nodeFacts are the facts on which the rules of the client's node depend.
func (t *Trace) nodeFacts(j *TraceInput) services.Node {
	out := services.Node{Name: t.Node}
	if n := j.Nodes[t.Node]; n != nil {
		out.Zone = n.Labels[corev1.LabelTopologyZone]
		for _, a := range n.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil {
				out.Addrs = append(out.Addrs, ip.Unmap())
			}
		}
		for _, c := range n.Spec.PodCIDRs {
			if p, err := netip.ParsePrefix(c); err == nil {
				out.PodCIDRs = append(out.PodCIDRs, p)
			}
		}
	}
	return out
}

// hop describes one address: its pod, and what policies say about a connection to it.
func (t *Trace) hop(traceInput *TraceInput, at netip.AddrPort, probability float64) Hop {
	h := Hop{Address: at.String(), Probability: probability}
	server := verdict.End{Addr: at.Addr(), Pod: podAt(traceInput.Pods, at.Addr())}
	client := verdict.End{Pod: traceInput.From}
	client.Addr = addressOf(traceInput.From, at.Addr().Is4())
	if server.Pod != nil {
		h.Pod = server.Pod.Namespace + "/" + server.Pod.Name
		h.Node = server.Pod.Spec.NodeName
		h.Way, h.NoWay = wayTo(traceInput.Nodes, t.Node, h.Node)
		n := traceInput.Nodes[h.Node]
		h.Fake = n != nil && n.Annotations[annotationFake] != ""
	}
	c := &verdict.Cluster{Policies: traceInput.Policies, Namespaces: traceInput.Namespaces}
	port := verdict.Port{Protocol: traceInput.Protocol, Number: int32(at.Port())}
	out := c.Egress(client, server, port)
	in := c.Ingress(client, server, port)
	h.Egress = verdictWords(out)
	h.Ingress = verdictWords(in)
	h.Allowed = out.Allowed() && in.Allowed()
	h.deniedOut = !out.Allowed()
	h.deniedIn = !in.Allowed()
	if traceInput.From.Spec.HostNetwork && server.Pod != nil && h.Node == t.Node {
		h.Ingress = "what comes from the pod's own node is not judged"
		h.Allowed = true
		h.deniedIn = false
	}
	return h
}

// addressOf is the pod's address of that family.
func addressOf(p *corev1.Pod, is4 bool) netip.Addr {
	for _, text := range append([]corev1.PodIP{{IP: p.Status.PodIP}}, p.Status.PodIPs...) {
		if a, err := netip.ParseAddr(text.IP); err == nil && a.Is4() == is4 {
			return a
		}
	}
	return netip.Addr{}
}

// podAt is the pod with an own address a.
func podAt(pods []*corev1.Pod, a netip.Addr) *corev1.Pod {
	i := slices.IndexFunc(pods, func(p *corev1.Pod) bool {
		return verdict.Selectable(p) && (p.Status.PodIP == a.String() ||
			slices.ContainsFunc(p.Status.PodIPs, func(ip corev1.PodIP) bool { return ip.IP == a.String() }))
	})
	if i < 0 {
		return nil
	}
	return pods[i]
}

// wayTo is the route from a node to another node's pods, and why there is none.
func wayTo(nodes map[string]*corev1.Node, from, to string) (way, why string) {
	node := nodes[to]
	if from == to {
		return "same node", ""
	}
	if node == nil {
		return "another node", ""
	}
	way = "another node, without an address"
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			way = "another node, at " + a.Address
			break
		}
	}
	if self := nodes[from]; self != nil && node.Annotations[annotationFake] == "" {
		var encrypted bool
		if encrypted, why = wireguard.Between(self, node); encrypted {
			way += ", by WireGuard"
		}
	}
	return way, why
}

func verdictWords(v verdict.Verdict) string {
	switch {
	case len(v.Isolating) == 0:
		return "no policy isolates it"
	case len(v.Allowing) == 0:
		return "denied: isolated by " + strings.Join(v.Isolating, ", ") + ", and none allows it"
	}
	return "allowed by " + strings.Join(v.Allowing, ", ")
}

// expect computes the expected result.
func (t *Trace) expect() {
	if t.Expected != "" {
		t.Why = t.Rules
		return
	}
	allowed := 0
	for _, h := range t.Hops {
		if h.Allowed && !h.Fake && h.NoWay == "" {
			allowed++
		}
	}
	switch {
	case allowed == len(t.Hops):
		t.Expected = Passes
		t.Why = "nothing stops it"
	case allowed > 0:
		t.Expected = Sometimes
		t.Why = fmt.Sprintf("%d of %s can be reached", allowed, words.Count(len(t.Hops), "endpoint"))
	default:
		t.Expected, t.Why = Drops, t.stopper()
	}
}

// stopper is the first thing that blocks the connection at one of its ends.
func (t *Trace) stopper() string {
	for _, h := range t.Hops {
		switch {
		case h.deniedOut:
			return "egress of " + t.From + " is " + h.Egress
		case h.deniedIn:
			return "ingress of " + h.Pod + " is " + h.Ingress
		case h.NoWay != "":
			return h.NoWay
		case h.Fake:
			return "node " + h.Node + " is simulated: nothing answers there"
		}
	}
	return "nothing is there"
}
