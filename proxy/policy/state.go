// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

// State is what is known of the cluster, and the plan that follows. A change costs what it concerns: a pod, the sets that it is in; a
// policy, the pods of this node that it selects. It is not safe for concurrent use.
type State struct {
	namespaces map[string]*namespace
	pods       map[string]*pod // by namespace/name
	// selectors are those that chains need; wide are those of them that select namespaces.
	selectors map[selectorKey]*selector
	wide      map[*selector]bool
	chains    map[string]*chain
	blocks    map[string]*blocks
	sets      map[string]*Set
	isolated  [directions]map[netip.Addr]string
	// claims are the local pods that have an address, the last one that came last.
	claims map[netip.Addr][]*pod
	log    journal
}

// namespace holds what is in it. It may be unknown: selectors of namespaces do not find it then.
type namespace struct {
	name   string
	known  bool
	labels map[string]string
	// groups are its pods by labels.
	groups   map[string]*group
	policies map[string]*compiled
	// selectors are those that look at this namespace only.
	selectors map[*selector]bool
}

// group are the pods of a namespace that have the same labels: to selectors they are one.
type group struct {
	namespace *namespace
	labels    map[string]string
	key       string
	pods      map[*pod]bool
	selectors map[*selector]bool
	// local counts its pods of this node; while there are any, policies are those that select it.
	local    int
	policies map[*compiled]bool
}

// pod is a Pod in its group.
type pod struct {
	Pod
	group  *group
	chains [directions]*chain
}

// NewState knows nothing.
func NewState() *State {
	s := &State{
		namespaces: map[string]*namespace{}, pods: map[string]*pod{}, selectors: map[selectorKey]*selector{}, wide: map[*selector]bool{},
		chains: map[string]*chain{}, blocks: map[string]*blocks{}, sets: map[string]*Set{}, claims: map[netip.Addr][]*pod{},
		log: newJournal(),
	}
	for d := range s.isolated {
		s.isolated[d] = map[netip.Addr]string{}
	}
	return s
}

// Plan is a copy of the plan.
func (s *State) Plan() *Plan {
	p := &Plan{Chains: map[string]*Chain{}, Sets: map[string]*Set{}}
	for d := range s.isolated {
		p.Isolated[d] = maps.Clone(s.isolated[d])
	}
	for name, c := range s.chains {
		p.Chains[name] = &c.Chain
	}
	for name, set := range s.sets {
		c := *set
		c.Elements = maps.Clone(set.Elements)
		p.Sets[name] = &c
	}
	return p
}

// namespaceOf finds a namespace, or notes that it is spoken of.
func (s *State) namespaceOf(name string) *namespace {
	n := s.namespaces[name]
	if n == nil {
		n = &namespace{name: name, groups: map[string]*group{}, policies: map[string]*compiled{}, selectors: map[*selector]bool{}}
		s.namespaces[name] = n
	}
	return n
}

// forget drops a namespace that nothing speaks of any more.
func (s *State) forget(n *namespace) {
	if !n.known && len(n.groups)+len(n.policies)+len(n.selectors) == 0 {
		delete(s.namespaces, n.name)
	}
}

// SetNamespace notes a namespace's labels.
func (s *State) SetNamespace(name string, labels map[string]string) {
	n := s.namespaceOf(name)
	if n.known && maps.Equal(n.labels, labels) {
		return
	}
	n.known, n.labels = true, labels
	s.matchAgain(n)
}

// DeleteNamespace notes that a namespace is gone. What is still in it stays.
func (s *State) DeleteNamespace(name string) {
	n := s.namespaceOf(name)
	n.known, n.labels = false, nil
	s.matchAgain(n)
	s.forget(n)
}

// matchAgain finds out which groups of a namespace the selectors of namespaces now mean.
func (s *State) matchAgain(n *namespace) {
	for sel := range s.wide {
		for _, g := range n.groups {
			s.match(sel, g)
		}
	}
}

// SetPod notes a pod as it is now.
func (s *State) SetPod(p Pod) {
	key := p.Namespace + "/" + p.Name
	if old := s.pods[key]; old != nil {
		if old.same(&p) {
			return
		}
		s.remove(old)
	}
	n := s.namespaceOf(p.Namespace)
	lk := labelsKey(p.Labels)
	g := n.groups[lk]
	if g == nil {
		g = s.addGroup(n, lk, p.Labels)
	}
	born := &pod{Pod: p, group: g}
	s.pods[key] = born
	g.pods[born] = true
	for sel := range g.selectors {
		s.count(sel, born, 1)
	}
	if !p.Local {
		return
	}
	for _, a := range p.Addrs {
		s.claims[a] = append(s.claims[a], born)
	}
	if g.local++; g.local == 1 {
		g.policies = map[*compiled]bool{}
		for _, c := range n.policies {
			if c.selects(g) {
				g.policies[c] = true
			}
		}
	}
	s.assign(born)
}

func (p *pod) same(o *Pod) bool {
	return p.UID == o.UID && p.Local == o.Local && slices.Equal(p.Addrs, o.Addrs) && slices.Equal(p.Ports, o.Ports) && maps.Equal(p.Labels, o.Labels)
}

// DeletePod notes that a pod is gone, or has no address any more.
func (s *State) DeletePod(namespace, name string) {
	if p := s.pods[namespace+"/"+name]; p != nil {
		s.remove(p)
	}
}

func (s *State) remove(p *pod) {
	g := p.group
	delete(s.pods, p.Namespace+"/"+p.Name)
	delete(g.pods, p)
	for sel := range g.selectors {
		s.count(sel, p, -1)
	}
	if p.Local {
		for _, a := range p.Addrs {
			left := slices.DeleteFunc(s.claims[a], func(o *pod) bool { return o == p })
			if s.claims[a] = left; len(left) == 0 {
				delete(s.claims, a)
			}
			s.point(a)
		}
		for d := range p.chains {
			s.release(p.chains[d])
		}
		if g.local--; g.local == 0 {
			g.policies = nil
		}
	}
	if len(g.pods) == 0 {
		for sel := range g.selectors {
			delete(sel.groups, g)
		}
		delete(g.namespace.groups, g.key)
		s.forget(g.namespace)
	}
}

func (s *State) addGroup(n *namespace, key string, labels map[string]string) *group {
	g := &group{namespace: n, labels: labels, key: key, pods: map[*pod]bool{}, selectors: map[*selector]bool{}}
	n.groups[key] = g
	for sel := range n.selectors {
		s.match(sel, g)
	}
	for sel := range s.wide {
		s.match(sel, g)
	}
	return g
}

// SetPolicy notes a policy as it is now.
func (s *State) SetPolicy(p *networkingv1.NetworkPolicy) {
	n := s.namespaceOf(p.Namespace)
	c := compile(p)
	old := n.policies[p.Name]
	if old != nil && old.digest == c.digest && old.pods.String() == c.pods.String() {
		return
	}
	n.policies[p.Name] = c
	s.reassign(n, old, c)
}

// DeletePolicy notes that a policy is gone.
func (s *State) DeletePolicy(namespace, name string) {
	n := s.namespaces[namespace]
	if n == nil || n.policies[name] == nil {
		return
	}
	old := n.policies[name]
	delete(n.policies, name)
	s.reassign(n, old, nil)
	s.forget(n)
}

// reassign gives the local pods that the old or the new policy selects their chains.
func (s *State) reassign(n *namespace, old, now *compiled) {
	for _, g := range n.groups {
		if g.local == 0 {
			continue
		}
		had, has := old != nil && g.policies[old], now != nil && now.selects(g)
		if had {
			delete(g.policies, old)
		}
		if has {
			g.policies[now] = true
		}
		if !had && !has {
			continue
		}
		for p := range g.pods {
			if p.Local {
				s.assign(p)
			}
		}
	}
}

func (c *compiled) selects(g *group) bool { return c.pods.Matches(labelSet(g.labels)) }

// assign gives a local pod the chains that its policies make.
func (s *State) assign(p *pod) {
	for d := range directions {
		old := p.chains[d]
		p.chains[d] = s.chainFor(p, d)
		s.release(old) // after the new one, which may share its sets
	}
	for _, a := range p.Addrs {
		s.point(a)
	}
}

// point leads an address to the chains of the pod that has it.
func (s *State) point(a netip.Addr) {
	p := s.owner(a)
	for d := range directions {
		to := ""
		if p != nil && p.chains[d] != nil {
			to = p.chains[d].Name
		}
		was := s.isolated[d][a]
		if was == to {
			continue
		}
		s.log.isolated[d].note(a, was)
		if to == "" {
			delete(s.isolated[d], a)
		} else {
			s.isolated[d][a] = to
		}
	}
}

// owner is the local pod that has an address; nil: none.
func (s *State) owner(a netip.Addr) *pod {
	claims := s.claims[a]
	if len(claims) == 0 {
		return nil
	}
	return claims[len(claims)-1]
}

func (p *pod) policies(d Direction) []string {
	if p.chains[d] == nil {
		return nil
	}
	return p.chains[d].Policies
}

// Moved are the addresses that lead to other chains than at the last Drain.
func (s *State) Moved() []netip.Addr {
	var out []netip.Addr
	for d := range s.log.isolated {
		for a := range s.log.isolated[d] {
			out = append(out, a)
		}
	}
	return out
}
