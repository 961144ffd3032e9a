// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// groupUnits finds the pods that must be evicted together, for one attempt of a pod: all pods of a group with
// disruptionMode: all, also those on other nodes. nil: there are no groups.
type groupUnits struct {
	a       *framework.Attempt
	groups  *state.Groups
	nodeOf  func(types.UID) (node string, assumed bool)
	byGroup map[state.GroupKey]*preemptionUnit // nil: its pods are evicted one by one
	budget  int                                // number of pods on other nodes that may still be removed in dry runs
}

// maxOtherPods is the maximum number of pods on other nodes that the dry runs of one attempt remove. Beyond it no unit
// is reprieved, and further nodes with pods of groups are not considered.
const maxOtherPods = 20_000

func (p *Plugin) groupUnits(a *framework.Attempt) *groupUnits {
	if p.cfg.Groups == nil {
		return nil
	}
	return &groupUnits{
		a:       a,
		groups:  p.cfg.Groups,
		nodeOf:  p.cfg.NodeOf,
		byGroup: map[state.GroupKey]*preemptionUnit{},
		budget:  maxOtherPods,
	}
}

// hasGroupPods reports whether a node has pods of groups.
func (t *groupUnits) hasGroupPods(n *state.NodeInfo) bool {
	return t != nil && slices.ContainsFunc(n.Pods, func(p *state.PodInfo) bool {
		return p.Pod.Spec.SchedulingGroup != nil
	})
}

func (t *groupUnits) groupOf(pod *corev1.Pod) state.PodGroup {
	key, _ := state.GroupOf(pod)
	return t.groups.Get(key)
}

// units returns the units with pods on a node that have a lower priority than the attempt's pod.
func (t *groupUnits) units(n *state.NodeInfo) (out []*preemptionUnit) {
	for _, p := range n.Pods {
		u := t.unit(p, n.Name)
		if u.priority < t.a.Pod.Priority && !slices.Contains(out, u) {
			out = append(out, u)
		}
	}
	return out
}

// unit returns the unit of a pod.
func (t *groupUnits) unit(info *state.PodInfo, node string) *preemptionUnit {
	key, ok := state.GroupOf(info.Pod)
	if ok {
		u, known := t.byGroup[key]
		if !known {
			u = t.findUnit(key, info)
			t.byGroup[key] = u
		}
		if u != nil {
			u.add(info, node) // it may be new on the node
			return u
		}
	}
	u := newUnit(info, t.groupOf)
	u.add(info, node)
	return u
}

func (u *preemptionUnit) add(p *state.PodInfo, node string) {
	if !slices.Contains(u.pods, p) {
		u.pods = append(u.pods, p)
		u.nodes = append(u.nodes, node)
	}
}

// findUnit finds the pods of a group in the snapshot; nil: they are evicted one by one.
func (t *groupUnits) findUnit(key state.GroupKey, one *state.PodInfo) *preemptionUnit {
	uids, disruptedTogether := t.groups.PodsDisruptedTogether(key)
	if !disruptedTogether {
		return nil
	}
	u := newUnit(one, t.groupOf)
	for _, uid := range uids {
		name, _ := t.nodeOf(uid)
		n := t.a.Snapshot.Node(name)
		if n == nil {
			continue
		}
		if at := slices.IndexFunc(n.Pods, func(p *state.PodInfo) bool { return p.Pod.UID == uid }); at >= 0 {
			u.pods = append(u.pods, n.Pods[at])
			u.nodes = append(u.nodes, name)
		}
	}
	return u
}

var tooManyOtherPods = framework.NewStatus(Name, framework.Unresolvable,
	"Too many pods of other nodes would have to leave")

// selectVictims is the function of that name for a node with pods of groups.
func (t *groupUnits) selectVictims(info *state.NodeInfo, budgets *pdbs) (*framework.Preemption, *framework.Status) {
	units := t.units(info)
	if len(units) == 0 {
		return nil, noVictims
	}
	if t.budget <= 0 {
		return nil, tooManyOtherPods
	}
	at := unitDryRun{
		groupUnits: t,
		n:          info,
		removed:    units,
		onNode:     make(map[*preemptionUnit][]*state.PodInfo, len(units)),
	}
	for _, u := range units {
		for i, p := range u.pods {
			if u.nodes[i] == info.Name {
				at.onNode[u] = append(at.onNode[u], p)
			}
		}
	}
	if st := at.fits(); st != nil {
		return nil, st
	}
	slices.SortFunc(units, compareUnits)
	var all []*state.PodInfo
	for _, u := range units {
		all = append(all, u.pods...)
	}
	violating, _ := budgets.splitByViolation(all)
	violatesPDB := make(map[*state.PodInfo]bool, len(violating))
	violations := make(map[*preemptionUnit]int, len(units))
	for _, p := range violating {
		violatesPDB[p] = true
	}
	for _, u := range units {
		for _, p := range u.pods {
			if violatesPDB[p] {
				violations[u]++
			}
		}
	}
	preemption := &framework.Preemption{Node: info.Name}
	for _, first := range []bool{true, false} { // units whose eviction violates a budget are reprieved first
		for _, u := range units {
			if violations[u] > 0 != first {
				continue
			}
			if !at.reprieve(u) {
				preemption.PDBViolations += violations[u]
			}
		}
	}
	if len(at.removed) == 0 {
		return nil, noVictims
	}
	preemption.Reprieved = at.setVictims(preemption, units)
	return preemption, nil
}

// unitDryRun is a node without some units.
type unitDryRun struct {
	*groupUnits
	n       *state.NodeInfo
	removed []*preemptionUnit
	onNode  map[*preemptionUnit][]*state.PodInfo // their pods on the node
}

// fits returns why the attempt's pod does not fit on the node without the removed units; nil: it fits.
func (t *unitDryRun) fits() *framework.Status {
	own := *t.a
	removed := []*state.PodInfo{}
	for _, u := range t.removed {
		removed = append(removed, t.onNode[u]...)
	}
	if needAdjusting(own.Filters) {
		elsewhere := map[string][]*state.PodInfo{}
		for _, u := range t.removed {
			for i, p := range u.pods {
				if u.nodes[i] != t.n.Name {
					elsewhere[u.nodes[i]] = append(elsewhere[u.nodes[i]], p)
					t.budget--
				}
			}
		}
		for name, pods := range elsewhere {
			own.Filters = framework.AdjustedFilters(own.Filters, own.Snapshot.Node(name), nil, pods)
		}
	}
	alone := dryRun{
		a:         &own,
		n:         t.n,
		removed:   removed,
		nominated: own.RelevantNominatedPods(own.Snapshot.NominatedTo(t.n.Name)),
	}
	return alone.fits()
}

// needAdjusting reports whether the result of a filter depends on pods on other nodes.
func needAdjusting(filters []framework.NamedFilter) bool {
	return slices.ContainsFunc(filters, func(f framework.NamedFilter) bool { return f.Adjust != nil })
}

// reprieve keeps a unit if the attempt's pod fits nevertheless.
func (t *unitDryRun) reprieve(u *preemptionUnit) bool {
	if t.budget <= 0 {
		return false
	}
	all := t.removed
	t.removed = slices.DeleteFunc(slices.Clone(all), func(o *preemptionUnit) bool { return o == u })
	if t.fits() == nil {
		return true
	}
	t.removed = all
	return false
}

// setVictims sets the victims, and counts the pods of the node that need not be evicted.
func (t *unitDryRun) setVictims(preemption *framework.Preemption, units []*preemptionUnit) (reprieved int) {
	for _, u := range units {
		isVictim := slices.Contains(t.removed, u)
		for i, p := range u.pods {
			switch {
			case isVictim:
				preemption.Victims = append(preemption.Victims, p)
				if u.nodes[i] != preemption.Node {
					if preemption.OtherNodes == nil {
						preemption.OtherNodes = map[types.UID]string{}
					}
					preemption.OtherNodes[p.Pod.UID] = u.nodes[i]
				}
			case u.nodes[i] == preemption.Node:
				reprieved++
			}
		}
	}
	slices.SortFunc(preemption.Victims, compareImportance)
	return reprieved
}

// addGroupPods adds to the victims that extenders left the pods that must be evicted with them.
func (t *groupUnits) addGroupPods(preemption *framework.Preemption) {
	if t == nil {
		return
	}
	preemption.OtherNodes = nil
	at := unitDryRun{groupUnits: t, n: t.a.Snapshot.Node(preemption.Node)}
	for _, v := range preemption.Victims {
		if u := t.unit(v, preemption.Node); !slices.Contains(at.removed, u) {
			at.removed = append(at.removed, u)
		}
	}
	preemption.Victims = nil
	at.setVictims(preemption, at.removed)
}
