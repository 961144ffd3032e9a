// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// together is who has to leave with whom, for one attempt of a pod: the pods of a group with disruptionMode: all leave together or not at all,
// also those on other nodes. nil: there are no groups.
type together struct {
	a      *framework.Attempt
	groups *state.Groups
	where  func(types.UID) (node string, assumed bool)
	whole  map[state.GroupKey]*unit // that were looked for already; nil: its pods leave one by one
	left   int                      // of how many pods of other nodes filters may still be told
}

// mostTold bounds of how many pods that leave other nodes filters are told in one attempt. Beyond it nobody is spared, and further nodes with pods of
// groups are not considered.
const mostTold = 20_000

func (p *Plugin) together(a *framework.Attempt) *together {
	if p.cfg.Groups == nil {
		return nil
	}
	return &together{a: a, groups: p.cfg.Groups, where: p.cfg.Where, whole: map[state.GroupKey]*unit{}, left: mostTold}
}

// concerns tells whether a node has pods of groups.
func (t *together) concerns(n *state.NodeInfo) bool {
	return t != nil && slices.ContainsFunc(n.Pods, func(p *state.PodInfo) bool { return p.Pod.Spec.SchedulingGroup != nil })
}

func (t *together) groupOf(pod *corev1.Pod) state.PodGroup {
	key, _ := state.GroupOf(pod)
	return t.groups.Get(key)
}

// units are those with pods on a node that are less important than the attempt's pod.
func (t *together) units(n *state.NodeInfo) (out []*unit) {
	for _, p := range n.Pods {
		u := t.unit(p, n.Name)
		if u.priority < t.a.Pod.Priority && !slices.Contains(out, u) {
			out = append(out, u)
		}
	}
	return out
}

// unit is that of a pod and all who leave with it.
func (t *together) unit(p *state.PodInfo, node string) *unit {
	key, ok := state.GroupOf(p.Pod)
	if ok {
		u, known := t.whole[key]
		if !known {
			u = t.lookFor(key, p)
			t.whole[key] = u
		}
		if u != nil {
			u.add(p, node) // it may have come since
			return u
		}
	}
	u := unitOf(p, t.groupOf)
	u.add(p, node)
	return u
}

func (u *unit) add(p *state.PodInfo, node string) {
	if !slices.Contains(u.pods, p) {
		u.pods, u.nodes = append(u.pods, p), append(u.nodes, node)
	}
}

// lookFor finds the pods of a group in the snapshot; nil: they leave one by one.
func (t *together) lookFor(key state.GroupKey, one *state.PodInfo) *unit {
	uids, whole := t.groups.Together(key)
	if !whole {
		return nil
	}
	u := unitOf(one, t.groupOf)
	for _, uid := range uids {
		name, _ := t.where(uid)
		n := t.a.Snapshot.Node(name)
		if n == nil {
			continue
		}
		if at := slices.IndexFunc(n.Pods, func(p *state.PodInfo) bool { return p.Pod.UID == uid }); at >= 0 {
			u.pods, u.nodes = append(u.pods, n.Pods[at]), append(u.nodes, name)
		}
	}
	return u
}

var tooFarApart = framework.Refuse(Name, framework.Unresolvable, "Too many pods of other nodes would have to leave")

// victims is the function of that name for a node with pods of groups.
func (t *together) victims(n *state.NodeInfo, budgets *guards) (*framework.Preemption, *framework.Status) {
	units := t.units(n)
	if len(units) == 0 {
		return nil, noVictims
	}
	if t.left <= 0 {
		return nil, tooFarApart
	}
	at := unitTrial{together: t, n: n, gone: units, here: make(map[*unit][]*state.PodInfo, len(units))}
	for _, u := range units {
		for i, p := range u.pods {
			if u.nodes[i] == n.Name {
				at.here[u] = append(at.here[u], p)
			}
		}
	}
	if st := at.fits(); st != nil {
		return nil, st
	}
	slices.SortFunc(units, moreImportant)
	var all []*state.PodInfo
	for _, u := range units {
		all = append(all, u.pods...)
	}
	protected, _ := budgets.split(all)
	guarded, violations := make(map[*state.PodInfo]bool, len(protected)), make(map[*unit]int, len(units))
	for _, p := range protected {
		guarded[p] = true
	}
	for _, u := range units {
		for _, p := range u.pods {
			if guarded[p] {
				violations[u]++
			}
		}
	}
	c := &framework.Preemption{Node: n.Name}
	for _, first := range []bool{true, false} { // those whom a budget protects are spared first
		for _, u := range units {
			if violations[u] > 0 != first {
				continue
			}
			if !at.spare(u) {
				c.Violations += violations[u]
			}
		}
	}
	if len(at.gone) == 0 {
		return nil, noVictims
	}
	c.Spared = at.collect(c, units)
	return c, nil
}

// unitTrial is a node without some units.
type unitTrial struct {
	*together
	n    *state.NodeInfo
	gone []*unit
	here map[*unit][]*state.PodInfo // their pods on the node
}

// fits tells whether the attempt's pod fits on the node once gone have left the cluster.
func (t *unitTrial) fits() *framework.Status {
	own := *t.a
	removed := []*state.PodInfo{}
	for _, u := range t.gone {
		removed = append(removed, t.here[u]...)
	}
	if extended(own.Filters) {
		elsewhere := map[string][]*state.PodInfo{}
		for _, u := range t.gone {
			for i, p := range u.pods {
				if u.nodes[i] != t.n.Name {
					elsewhere[u.nodes[i]] = append(elsewhere[u.nodes[i]], p)
					t.left--
				}
			}
		}
		for name, pods := range elsewhere {
			own.Filters = framework.Adjusted(own.Filters, own.Snapshot.Node(name), nil, pods)
		}
	}
	alone := trial{a: &own, n: t.n, removed: removed, coming: own.Counting(own.Snapshot.NominatedTo(t.n.Name))}
	return alone.fits()
}

// extended tells whether a filter has to be told of pods that leave other nodes.
func extended(filters []framework.NamedFilter) bool {
	return slices.ContainsFunc(filters, func(f framework.NamedFilter) bool {
		_, ok := f.NodeFilter.(framework.PreFilterExtensions)
		return ok
	})
}

// spare leaves a unit where it is if the newcomer fits nevertheless.
func (t *unitTrial) spare(u *unit) bool {
	if t.left <= 0 {
		return false
	}
	all := t.gone
	t.gone = slices.DeleteFunc(slices.Clone(all), func(o *unit) bool { return o == u })
	if t.fits() == nil {
		return true
	}
	t.gone = all
	return false
}

// collect fills in the victims, and counts the pods of the node that may stay.
func (t *unitTrial) collect(c *framework.Preemption, units []*unit) (spared int) {
	for _, u := range units {
		goes := slices.Contains(t.gone, u)
		for i, p := range u.pods {
			switch {
			case goes:
				c.Victims = append(c.Victims, p)
				if u.nodes[i] != c.Node {
					if c.Elsewhere == nil {
						c.Elsewhere = map[types.UID]string{}
					}
					c.Elsewhere[p.Pod.UID] = u.nodes[i]
				}
			case u.nodes[i] == c.Node:
				spared++
			}
		}
	}
	slices.SortFunc(c.Victims, byImportance)
	return spared
}

// complete adds to the victims that extenders left those who leave with them.
func (t *together) complete(c *framework.Preemption) {
	if t == nil {
		return
	}
	c.Elsewhere = nil
	at := unitTrial{together: t, n: t.a.Snapshot.Node(c.Node)}
	for _, v := range c.Victims {
		if u := t.unit(v, c.Node); !slices.Contains(at.gone, u) {
			at.gone = append(at.gone, u)
		}
	}
	c.Victims = nil
	at.collect(c, at.gone)
}
