// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
)

// namespaceBound limits what the policies of one namespace make this node keep: the sum of the weights of the policies
// that isolate its pods on this node, and of the chains that these pods ask for. Chains share the sets of a policy, so
// a rule weighs setsWeight, and each selector and block in it one, once for its policy; and ruleWeight, and each range
// of ports and named port in it one, in each chain. So a namespace has 1,000 different rules or 100,000 blocks at most,
// which the kernel takes in about a second.
const (
	namespaceBound = 100000
	setsWeight     = 80
	ruleWeight     = 20
)

// load is the share of one policy or chain in its namespace's weight.
type load struct {
	weight int
	users  int
}

// weigh computes which chains a local pod's policies ask for, and counts them in its namespace. It makes no chain.
func (s *State) weigh(p *pod) {
	for d := range directions {
		w := wantedFor(p, d)
		p.group.namespace.count(w, 1)
		p.group.namespace.count(p.wants[d], -1)
		p.wants[d] = w
	}
}

// unweigh undoes weigh.
func (s *State) unweigh(p *pod) {
	for d := range directions {
		p.group.namespace.count(p.wants[d], -1)
		p.wants[d] = wanted{}
	}
}

func (n *namespace) count(w wanted, by int) {
	if w.name == "" {
		return
	}
	n.add(w.name, w.weight, by)
	for _, c := range w.policies {
		n.add(fmt.Sprint(w.direction, " ", c.key, " ", c.digest), c.sides[w.direction].sets, by)
	}
}

// add changes the number of users of a policy or chain.
func (n *namespace) add(name string, weight, by int) {
	l := n.loads[name]
	if l == nil {
		l = &load{weight: weight}
		n.loads[name] = l
		n.weight += l.weight
	}
	if l.users += by; l.users == 0 {
		delete(n.loads, name)
		n.weight -= l.weight
	}
}

// bound closes a namespace whose weight is above the bound, or opens it again. Policies isolate the pods of a closed
// namespace and allow them nothing; other namespaces are as before. So what the namespace gets does not depend on the
// order in which its policies came.
func (s *State) bound(n *namespace) {
	over := n.weight > s.most
	if over == n.closed {
		return
	}
	n.closed = over
	s.flipped = true
	for _, g := range n.groups {
		for p := range g.pods {
			if p.Local {
				s.assign(p)
			}
		}
	}
}

// Closed returns the closed namespaces, sorted, if they have changed since the last call. false: they have not.
func (s *State) Closed() ([]string, bool) {
	if !s.flipped {
		return nil, false
	}
	s.flipped = false
	var out []string
	for _, n := range s.namespaces {
		if n.closed {
			out = append(out, n.name)
		}
	}
	return slices.Sorted(slices.Values(out)), true
}
