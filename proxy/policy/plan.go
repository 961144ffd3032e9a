// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Plan is the desired state of this node's rules. Pods that no policy isolates are not in it.
type Plan struct {
	// Isolated maps the addresses of this node's isolated pods to their chains.
	Isolated [directions]map[netip.Addr]string
	Chains   map[string]*Chain
	Sets     map[string]*Set
}

// Chain holds the rules for pods that the same policies isolate. Packets that no rule allows are dropped.
type Chain struct {
	Name      string
	Direction Direction
	// Policies are the isolating policies, sorted.
	Policies []string
	Rules    []Rule
}

// Rule allows peers at ports. The port is always the server's.
type Rule struct {
	// Policy is the policy that the rule is from.
	Policy string
	// AnyPeer allows every peer. Otherwise Peers (a set of addresses, or "") and Blocks (a set of spans, or "") do.
	AnyPeer bool
	Peers   string
	Blocks  string
	// AnyPort allows every port and protocol, otherwise Ports do. If there are many, PortSets are sets of them.
	AnyPort  bool
	Ports    []PortRange
	PortSets []PortSet
	// Endpoints are sets of addresses with protocol and port: the named ports of the peers of an egress rule.
	Endpoints []string
}

// PortSet is a set of ports of one protocol.
type PortSet struct {
	Proto uint8
	Name  string
}

// Element is an address, in some sets with a protocol and port.
type Element struct {
	Addr  netip.Addr
	Proto uint8
	Port  uint16
}

func (e Element) String() string {
	if e.Proto == 0 {
		return e.Addr.String()
	}
	return fmt.Sprintf("%s %s %d", e.Addr, protoName(e.Proto), e.Port)
}

func (e Element) compare(o Element) int {
	return cmp.Or(e.Addr.Compare(o.Addr), cmp.Compare(e.Proto, o.Proto), cmp.Compare(e.Port, o.Port))
}

// Set is a set of peers.
type Set struct {
	Name string
	// Meaning describes the pods, blocks or ports, for people.
	Meaning string
	// Kind is the kind of its elements.
	Kind SetKind
	// Elements maps each element to the number of pods with it.
	Elements map[Element]int
	// Spans are the spans of a set of kind Blocks.
	Spans []Span
	// Ports are the ranges of a set of kind Ports, all of one protocol.
	Ports []PortRange
}

// SetKind is the kind of a set's elements.
type SetKind int

// The kinds of sets.
const (
	Addresses SetKind = iota // addresses of pods
	Endpoints                // addresses of pods with a protocol and port
	Blocks                   // spans of addresses
	Ports                    // ranges of ports
)

// String formats the plan for golden files and people.
func (p *Plan) String() string {
	var out strings.Builder
	for dir, m := range p.Isolated {
		for _, a := range slices.SortedFunc(maps.Keys(m), netip.Addr.Compare) {
			fmt.Fprintf(&out, "%s %s: %s\n", Direction(dir), a, m[a])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Chains)) {
		c := p.Chains[name]
		fmt.Fprintf(&out, "chain %s: %s\n", name, strings.Join(c.Policies, ", "))
		for _, r := range c.Rules {
			fmt.Fprintf(&out, "  %s\n", r)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Sets)) {
		s := p.Sets[name]
		fmt.Fprintf(&out, "set %s: %s\n", name, s.Meaning)
		for _, e := range slices.SortedFunc(maps.Keys(s.Elements), Element.compare) {
			fmt.Fprintf(&out, "  %s\n", e)
		}
		for _, s := range s.Spans {
			fmt.Fprintf(&out, "  %s\n", s)
		}
		for _, r := range s.Ports {
			fmt.Fprintf(&out, "  %s\n", r)
		}
	}
	return out.String()
}

func (r Rule) String() string {
	var peers, ports []string
	if r.AnyPeer {
		peers = []string{"any peer"}
	}
	if r.Peers != "" {
		peers = append(peers, "@"+r.Peers)
	}
	if r.Blocks != "" {
		peers = append(peers, "@"+r.Blocks)
	}
	if r.AnyPort {
		ports = []string{"any port"}
	}
	for _, p := range r.PortSets {
		ports = append(ports, protoName(p.Proto)+" @"+p.Name)
	}
	if len(r.PortSets) == 0 {
		for _, p := range r.Ports {
			ports = append(ports, p.String())
		}
	}
	var text strings.Builder
	text.WriteString(r.Policy + " allows")
	if len(peers) > 0 && len(ports) > 0 {
		text.WriteString(" " + strings.Join(peers, ", ") + " at " + strings.Join(ports, ", "))
	}
	for _, e := range r.Endpoints {
		text.WriteString(" @" + e)
	}
	return text.String()
}
