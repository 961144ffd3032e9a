// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// chain is a Chain in use.
type chain struct {
	Chain
	users int
	// releases release the sets that its rules use.
	releases []func()
}

// chainFor finds or makes the chain of a direction for a pod; nil: no policy isolates it.
func (s *State) chainFor(p *pod, direction Direction) *chain {
	var policies []*compiled
	named := false
	for c := range p.group.policies {
		if c.sides[direction] != nil {
			policies = append(policies, c)
			named = named || c.sides[direction].named
		}
	}
	if len(policies) == 0 {
		return nil
	}
	slices.SortFunc(policies, func(a, b *compiled) int { return cmp.Compare(a.key, b.key) })
	name := chainName(p, direction, policies, named)
	c := s.chains[name]
	if c == nil {
		c = s.addChain(name, p, direction, policies)
	}
	c.users++
	return c
}

// chainName is a digest of everything that the rules depend on. If an ingress rule has named ports, that includes the
// pod's ports.
func chainName(p *pod, direction Direction, policies []*compiled, named bool) string {
	var out strings.Builder
	for _, c := range policies {
		fmt.Fprintf(&out, "%s %s\n", c.key, c.digest)
	}
	if named && direction == Ingress {
		for _, port := range p.Ports {
			fmt.Fprintf(&out, "%s %d %d\n", port.Name, port.Proto, port.Port)
		}
	}
	prefix := "in-"
	if direction == Egress {
		prefix = "out-"
	}
	return prefix + digest(out.String())
}

func (s *State) addChain(name string, p *pod, d Direction, policies []*compiled) *chain {
	c := &chain{Chain: Chain{Name: name, Direction: d}}
	for _, pol := range policies {
		c.Policies = append(c.Policies, pol.key)
		for i := range pol.sides[d].rules {
			if r, ok := s.rule(c, pol, &pol.sides[d].rules[i], p); ok {
				c.Rules = append(c.Rules, r)
			}
		}
	}
	s.chains[name] = c
	s.log.chains.note(name, nil)
	return c
}

// rule resolves a rule of a policy for a pod. false: the rule allows nothing.
func (s *State) rule(c *chain, pol *compiled, a *allowance, p *pod) (Rule, bool) {
	r := Rule{
		Policy:  pol.key,
		AnyPeer: a.anyPeer,
		AnyPort: a.anyPort,
		Ports:   a.ports,
	}
	if c.Direction == Ingress {
		for _, n := range a.named {
			for _, port := range p.Ports {
				if port.Name == n.name && port.Proto == n.proto {
					r.Ports = append(slices.Clip(r.Ports), PortRange{n.proto, port.Port, port.Port})
				}
			}
		}
		r.Ports = joined(r.Ports)
	} else {
		for _, n := range a.named {
			r.Endpoints = append(r.Endpoints, s.endpoints(c, pol, a, n)...)
		}
	}
	if !r.AnyPort && len(r.Ports) == 0 {
		return Rule{Policy: pol.key, Endpoints: r.Endpoints}, len(r.Endpoints) > 0
	}
	if r.AnyPeer {
		return r, true
	}
	for _, k := range a.peers {
		r.Peers = append(r.Peers, s.use(c, k, pol.parsed[k], memberKey{}, nil))
	}
	if len(a.blocks) > 0 {
		r.Blocks = s.acquireBlocks(a.blocks)
		c.releases = append(c.releases, func() { s.releaseBlocks(r.Blocks) })
	}
	return r, len(r.Peers) > 0 || r.Blocks != "" || len(r.Endpoints) > 0
}

// endpoints returns sets of the addresses and ports at which the peers of an egress rule serve a named port. For
// blocks, these are the pods in them.
func (s *State) endpoints(c *chain, pol *compiled, a *allowance, n portName) []string {
	if a.anyPeer {
		return []string{s.use(c, everyPod, parsedSelector{}, memberKey{port: n}, nil)}
	}
	var out []string
	for _, k := range a.peers {
		out = append(out, s.use(c, k, pol.parsed[k], memberKey{port: n}, nil))
	}
	if len(a.blocks) > 0 {
		out = append(out, s.use(c, everyPod, parsedSelector{}, memberKey{port: n, blocks: digest(spansText(a.blocks))},
			a.blocks))
	}
	return out
}

// use acquires a set until the chain is released.
func (s *State) use(c *chain, key selectorKey, parsed parsedSelector, mk memberKey, spans []Span) string {
	c.releases = append(c.releases, func() { s.releaseSet(key, mk) })
	return s.acquire(key, parsed, mk, spans)
}

// release releases a chain; it may be nil.
func (s *State) release(c *chain) {
	if c == nil {
		return
	}
	if c.users--; c.users > 0 {
		return
	}
	delete(s.chains, c.Name)
	s.log.chains.note(c.Name, &c.Chain)
	for _, y := range c.releases {
		y()
	}
}
