// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

// State holds the cluster's policies, namespaces and pods, and the plan for them. The cost of a change depends on what
// it affects: for a pod, the sets that it is in; for a policy, the pods of this node that it selects. It is not safe
// for concurrent use.
type State struct {
	namespaces map[string]*namespace
	pods       map[string]*pod // by namespace/name
	// selectors are the selectors that chains use; wide are those with a namespace selector.
	selectors map[selectorKey]*selector
	wide      map[*selector]bool
	chains    map[string]*chain
	blocks    map[string]*blocks
	sets      map[string]*Set
	isolated  [directions]map[netip.Addr]string
	// claims are the local pods with an address, in the order of arrival.
	claims map[netip.Addr][]*pod
	log    journal
}

// namespace holds the pods and policies of a namespace. While it is not known, namespace selectors do not match it.
type namespace struct {
	name   string
	known  bool
	labels map[string]string
	// groups are its pods, by labels.
	groups   map[string]*group
	policies map[string]*compiled
	// selectors are the selectors for this namespace only.
	selectors map[*selector]bool
}

// group holds the pods of a namespace with the same labels, which the same selectors match.
type group struct {
	namespace *namespace
	labels    map[string]string
	key       string
	pods      map[*pod]bool
	selectors map[*selector]bool
	// local is the number of its pods on this node; if it is not 0, policies are the policies that select the group.
	local    int
	policies map[*compiled]bool
}

// pod is a Pod with its group and chains.
type pod struct {
	Pod
	group  *group
	chains [directions]*chain
}

// NewState returns an empty State.
func NewState() *State {
	s := &State{
		namespaces: map[string]*namespace{},
		pods:       map[string]*pod{},
		selectors:  map[selectorKey]*selector{},
		wide:       map[*selector]bool{},
		chains:     map[string]*chain{},
		blocks:     map[string]*blocks{},
		sets:       map[string]*Set{},
		claims:     map[netip.Addr][]*pod{},
		log:        newJournal(),
	}
	for d := range s.isolated {
		s.isolated[d] = map[netip.Addr]string{}
	}
	return s
}

// Plan returns a copy of the plan.
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

// namespaceOf finds a namespace, or adds an unknown one.
func (s *State) namespaceOf(name string) *namespace {
	n := s.namespaces[name]
	if n == nil {
		n = &namespace{
			name:      name,
			groups:    map[string]*group{},
			policies:  map[string]*compiled{},
			selectors: map[*selector]bool{},
		}
		s.namespaces[name] = n
	}
	return n
}

// forget removes an unknown namespace without pods, policies and selectors.
func (s *State) forget(n *namespace) {
	if !n.known && len(n.groups)+len(n.policies)+len(n.selectors) == 0 {
		delete(s.namespaces, n.name)
	}
}

// SetNamespace sets a namespace's labels.
func (s *State) SetNamespace(name string, labels map[string]string) {
	n := s.namespaceOf(name)
	if n.known && maps.Equal(n.labels, labels) {
		return
	}
	n.known = true
	n.labels = labels
	s.matchAgain(n)
}

// DeleteNamespace deletes a namespace. Its pods and policies stay until they are deleted.
func (s *State) DeleteNamespace(name string) {
	n := s.namespaceOf(name)
	n.known = false
	n.labels = nil
	s.matchAgain(n)
	s.forget(n)
}

// matchAgain updates the matches of namespace selectors with the groups of a namespace.
func (s *State) matchAgain(n *namespace) {
	for sel := range s.wide {
		for _, g := range n.groups {
			s.match(sel, g)
		}
	}
}

// SetPod adds or updates a pod.
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
	return p.UID == o.UID && p.Local == o.Local && slices.Equal(p.Addrs, o.Addrs) && slices.Equal(p.Ports, o.Ports) &&
		maps.Equal(p.Labels, o.Labels)
}

// DeletePod deletes a pod.
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
			s.updateAddress(a)
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
	g := &group{
		namespace: n,
		labels:    labels,
		key:       key,
		pods:      map[*pod]bool{},
		selectors: map[*selector]bool{},
	}
	n.groups[key] = g
	for sel := range n.selectors {
		s.match(sel, g)
	}
	for sel := range s.wide {
		s.match(sel, g)
	}
	return g
}

// SetPolicy adds or updates a policy.
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

// DeletePolicy deletes a policy.
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

// reassign updates the chains of the local pods that the old or the new policy selects.
func (s *State) reassign(n *namespace, old, now *compiled) {
	for _, g := range n.groups {
		if g.local == 0 {
			continue
		}
		had := old != nil && g.policies[old]
		has := now != nil && now.selects(g)
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

// assign sets the chains of a local pod from its policies.
func (s *State) assign(p *pod) {
	for d := range directions {
		old := p.chains[d]
		p.chains[d] = s.chainFor(p, d)
		s.release(old) // after the new one is acquired, because they may share sets
	}
	for _, a := range p.Addrs {
		s.updateAddress(a)
	}
}

// updateAddress maps an address to the chains of its pod.
func (s *State) updateAddress(a netip.Addr) {
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

// owner returns the local pod with an address; nil: none.
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

// Moved returns the addresses whose chains have changed since the last Drain.
func (s *State) Moved() []netip.Addr {
	var out []netip.Addr
	for d := range s.log.isolated {
		for a := range s.log.isolated[d] {
			out = append(out, a)
		}
	}
	return out
}
