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

// wanted is the chain that a pod's policies ask for in one direction; name "": no policy isolates the pod.
type wanted struct {
	name      string
	direction Direction
	policies  []*compiled
	weight    int // without the sets of the policies
}

// wantedFor returns what a pod's policies ask for. It makes nothing.
func wantedFor(p *pod, direction Direction) wanted {
	w := wanted{direction: direction}
	named := false
	for c := range p.group.policies {
		if side := c.sides[direction]; side != nil {
			w.policies = append(w.policies, c)
			w.weight += side.weight
			named = named || side.named
		}
	}
	if len(w.policies) == 0 {
		return w
	}
	slices.SortFunc(w.policies, func(a, b *compiled) int { return cmp.Compare(a.key, b.key) })
	w.name = chainName(p, direction, w.policies, named)
	return w
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

// closedSuffix is at the end of the names of chains without rules, which pods of a closed namespace have.
const closedSuffix = "-closed"

// chainTable is the chains in use.
type chainTable struct {
	sets *setTable
	log  *journal
	all  map[string]*chain
}

// acquire finds or makes the chain of a direction for a pod; nil: no policy isolates it.
func (t *chainTable) acquire(p *pod, direction Direction) *chain {
	wanted := p.wants[direction]
	if wanted.name == "" {
		return nil
	}
	name := wanted.name
	closed := p.group.namespace.closed
	if closed {
		name += closedSuffix
	}
	c := t.all[name]
	if c == nil {
		c = t.addChain(name, p, direction, wanted.policies, closed)
	}
	c.users++
	return c
}

func (t *chainTable) addChain(name string, p *pod, d Direction, policies []*compiled, closed bool) *chain {
	c := &chain{Chain: Chain{Name: name, Direction: d}}
	for _, pol := range policies {
		c.Policies = append(c.Policies, pol.key)
		if closed {
			continue
		}
		for i := range pol.sides[d].rules {
			if r, ok := t.rule(c, pol, &pol.sides[d].rules[i], p); ok {
				c.Rules = append(c.Rules, r)
			}
		}
	}
	t.all[name] = c
	t.log.chains.note(name, nil)
	return c
}

// rule resolves a rule of a policy for a pod. false: the rule allows nothing.
func (t *chainTable) rule(c *chain, pol *compiled, a *allowance, p *pod) (Rule, bool) {
	r := Rule{
		Policy:  pol.key,
		AnyPeer: a.anyPeer,
		AnyPort: a.anyPort,
		Ports:   a.ports,
	}
	if c.Direction == Ingress {
		r.Ports = p.resolve(a.ports, a.named)
	} else if len(a.named) > 0 {
		r.Endpoints = t.endpoints(c, pol, a)
	}
	if !r.AnyPort && len(r.Ports) == 0 {
		return Rule{Policy: pol.key, Endpoints: r.Endpoints}, len(r.Endpoints) > 0
	}
	if len(r.Ports) > mostInline {
		for _, ports := range byProtocol(r.Ports) {
			r.PortSets = append(r.PortSets, PortSet{Proto: ports[0].Proto, Name: t.useConstant(c, portsSet(ports))})
		}
	}
	if r.AnyPeer {
		return r, true
	}
	if len(a.peers) > 0 {
		r.Peers = t.use(c, wantedSet{keys: a.peers}, pol.parsed)
	}
	if len(a.blocks) > 0 {
		r.Blocks = t.useConstant(c, blocksSet(a.blocks))
	}
	return r, r.Peers != "" || r.Blocks != "" || len(r.Endpoints) > 0
}

// mostInline is how many ranges of ports a rule has without a set for them.
const mostInline = 8

// resolve adds the numbers that a pod's named ports have to ranges.
func (p *pod) resolve(ports []PortRange, named []portName) []PortRange {
	if len(named) == 0 {
		return ports
	}
	wanted := make(map[portName]bool, len(named))
	for _, n := range named {
		wanted[n] = true
	}
	out := slices.Clone(ports)
	for _, port := range p.Ports {
		if wanted[portName{port.Proto, port.Name}] {
			out = append(out, PortRange{port.Proto, port.Port, port.Port})
		}
	}
	return joined(out)
}

// endpoints returns sets of the addresses and ports at which the peers of an egress rule serve its named ports. For
// blocks, these are the pods in them.
func (t *chainTable) endpoints(c *chain, pol *compiled, a *allowance) []string {
	if a.anyPeer {
		return []string{t.use(c, wantedSet{keys: []selectorKey{everyPod}, named: a.named}, nil)}
	}
	var out []string
	if len(a.peers) > 0 {
		out = append(out, t.use(c, wantedSet{keys: a.peers, named: a.named}, pol.parsed))
	}
	if len(a.blocks) > 0 {
		out = append(out, t.use(c, wantedSet{keys: []selectorKey{everyPod}, named: a.named, spans: a.blocks}, nil))
	}
	return out
}

// use acquires a set until the chain is released.
func (t *chainTable) use(c *chain, w wantedSet, parsed selectors) string {
	m := t.sets.acquire(w, parsed)
	c.releases = append(c.releases, func() { t.sets.releaseSet(m) })
	return m.Name
}

// useConstant acquires a set that does not depend on pods until the chain is released.
func (t *chainTable) useConstant(c *chain, set *Set) string {
	c.releases = append(c.releases, func() { t.sets.releaseConstant(set.Name) })
	return t.sets.acquireConstant(set)
}

// release releases a chain; it may be nil.
func (t *chainTable) release(c *chain) {
	if c == nil {
		return
	}
	if c.users--; c.users > 0 {
		return
	}
	delete(t.all, c.Name)
	t.log.chains.note(c.Name, &c.Chain)
	for _, y := range c.releases {
		y()
	}
}
