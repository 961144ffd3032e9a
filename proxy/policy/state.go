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
	namespaces namespaces
	pods       map[string]*pod // by namespace/name
	sets       *setTable
	chains     *chainTable
	isolated   [directions]map[netip.Addr]string
	// claims are the local pods with an address, in the order of arrival.
	claims map[netip.Addr][]*pod
	log    *journal // of sets and chains too
	// most is namespaceBound; flipped: a namespace was closed or opened since the last call of Closed.
	most    int
	flipped bool
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
	// loads are the policies and chains that its local pods ask for, by name, and weight is their sum. closed: it is
	// above the bound.
	loads  map[string]*load
	weight int
	closed bool
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
	wants  [directions]wanted
	chains [directions]*chain
}

// NewState returns an empty State.
func NewState() *State {
	log := newJournal()
	known := namespaces{}
	sets := newSetTable(known, log)
	state := &State{
		namespaces: known,
		pods:       map[string]*pod{},
		sets:       sets,
		chains:     &chainTable{sets: sets, log: log, all: map[string]*chain{}},
		claims:     map[netip.Addr][]*pod{},
		log:        log,
		most:       namespaceBound,
	}
	for d := range state.isolated {
		state.isolated[d] = map[netip.Addr]string{}
	}
	return state
}

// Plan returns a copy of the plan.
func (s *State) Plan() *Plan {
	plan := &Plan{Chains: map[string]*Chain{}, Sets: map[string]*Set{}}
	for d := range s.isolated {
		plan.Isolated[d] = maps.Clone(s.isolated[d])
	}
	for name, c := range s.chains.all {
		plan.Chains[name] = &c.Chain
	}
	for name, set := range s.sets.all {
		c := *set
		c.Elements = maps.Clone(set.Elements)
		plan.Sets[name] = &c
	}
	return plan
}

// namespaces are the namespaces by name, those that others only name among them.
type namespaces map[string]*namespace

// of finds a namespace, or adds an unknown one.
func (all namespaces) of(name string) *namespace {
	n := all[name]
	if n == nil {
		n = &namespace{
			name:      name,
			groups:    map[string]*group{},
			policies:  map[string]*compiled{},
			selectors: map[*selector]bool{},
			loads:     map[string]*load{},
		}
		all[name] = n
	}
	return n
}

// forget removes an unknown namespace without pods, policies and selectors.
func (all namespaces) forget(n *namespace) {
	if !n.known && len(n.groups)+len(n.policies)+len(n.selectors) == 0 {
		delete(all, n.name)
	}
}

// SetNamespace sets a namespace's labels.
func (s *State) SetNamespace(name string, labels map[string]string) {
	n := s.namespaces.of(name)
	if n.known && maps.Equal(n.labels, labels) {
		return
	}
	n.known = true
	n.labels = labels
	s.sets.matchAgain(n)
}

// DeleteNamespace deletes a namespace. Its pods and policies stay until they are deleted.
func (s *State) DeleteNamespace(name string) {
	n := s.namespaces.of(name)
	n.known = false
	n.labels = nil
	s.sets.matchAgain(n)
	s.namespaces.forget(n)
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
	namespace := s.namespaces.of(p.Namespace)
	lk := labelsKey(p.Labels)
	group := namespace.groups[lk]
	if group == nil {
		group = namespace.addGroup(lk, p.Labels)
		s.sets.join(group)
	}
	born := &pod{Pod: p, group: group}
	s.pods[key] = born
	group.pods[born] = true
	for sel := range group.selectors {
		s.sets.count(sel, born, 1)
	}
	if !p.Local {
		return
	}
	for _, a := range p.Addrs {
		s.claims[a] = append(s.claims[a], born)
	}
	if group.local++; group.local == 1 {
		group.policies = map[*compiled]bool{}
		for _, c := range namespace.policies {
			if c.selects(group) {
				group.policies[c] = true
			}
		}
	}
	s.weigh(born)
	s.bound(namespace)
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
	group := p.group
	delete(s.pods, p.Namespace+"/"+p.Name)
	delete(group.pods, p)
	for sel := range group.selectors {
		s.sets.count(sel, p, -1)
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
			s.chains.release(p.chains[d])
		}
		s.unweigh(p)
		s.bound(group.namespace)
		if group.local--; group.local == 0 {
			group.policies = nil
		}
	}
	if len(group.pods) == 0 {
		for sel := range group.selectors {
			delete(sel.groups, group)
		}
		delete(group.namespace.groups, group.key)
		s.namespaces.forget(group.namespace)
	}
}

// addGroup adds a group to a namespace.
func (n *namespace) addGroup(key string, labels map[string]string) *group {
	g := &group{
		namespace: n,
		labels:    labels,
		key:       key,
		pods:      map[*pod]bool{},
		selectors: map[*selector]bool{},
	}
	n.groups[key] = g
	return g
}

// SetPolicy adds or updates a policy.
func (s *State) SetPolicy(p *networkingv1.NetworkPolicy) {
	n := s.namespaces.of(p.Namespace)
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
	s.namespaces.forget(n)
}

// reassign updates the chains of the local pods that the old or the new policy selects.
func (s *State) reassign(n *namespace, old, now *compiled) {
	var affected []*pod
	for _, group := range n.groups {
		if group.local == 0 {
			continue
		}
		had := old != nil && group.policies[old]
		has := now != nil && now.selects(group)
		if had {
			delete(group.policies, old)
		}
		if has {
			group.policies[now] = true
		}
		if !had && !has {
			continue
		}
		for p := range group.pods {
			if p.Local {
				affected = append(affected, p)
			}
		}
	}
	for _, p := range affected {
		s.weigh(p)
	}
	s.bound(n) // before chains are made
	for _, p := range affected {
		s.assign(p)
	}
}

func (c *compiled) selects(g *group) bool { return c.pods.Matches(labelSet(g.labels)) }

// assign sets the chains of a local pod from its policies.
func (s *State) assign(p *pod) {
	for d := range directions {
		old := p.chains[d]
		p.chains[d] = s.chains.acquire(p, d)
		s.chains.release(old) // after the new one is acquired, because they may share sets
	}
	for _, a := range p.Addrs {
		s.updateAddress(a)
	}
}

// updateAddress maps an address to the chains of its pod.
func (s *State) updateAddress(addr netip.Addr) {
	p := s.owner(addr)
	for direction := range directions {
		to := ""
		if p != nil && p.chains[direction] != nil {
			to = p.chains[direction].Name
		}
		was := s.isolated[direction][addr]
		if was == to {
			continue
		}
		s.log.isolated[direction].note(addr, was)
		if to == "" {
			delete(s.isolated[direction], addr)
		} else {
			s.isolated[direction][addr] = to
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
