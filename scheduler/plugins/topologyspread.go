// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// PodTopologySpread filters and scores nodes by the pod's topologySpreadConstraints. Pods without constraints get the
// default constraints: their score spreads the pods of a service or controller over zones and nodes.
type PodTopologySpread struct {
	// DefaultSelector returns the selector of the service or controller of a pod without constraints. A nil function or
	// result: it has none.
	DefaultSelector func(pod *corev1.Pod) labels.Selector
	// Defaults are the constraints of pods without any; nil: kube-scheduler's system defaults, which only score
	// (ScheduleAnyway).
	Defaults []corev1.TopologySpreadConstraint
}

// defaults returns the default constraints for a pod, and their selector; nil: the pod has no service or controller.
func (p PodTopologySpread) defaults(pod *corev1.Pod) ([]corev1.TopologySpreadConstraint, labels.Selector) {
	if p.DefaultSelector == nil {
		return nil, nil
	}
	s := p.DefaultSelector(pod)
	if s == nil || s.Empty() {
		return nil, nil
	}
	if p.Defaults != nil {
		return p.Defaults, s
	}
	return systemDefaults, s
}

const spreadName = "PodTopologySpread"

// Plugin returns the descriptor.
func (p PodTopologySpread) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:      spreadName,
		PreFilter: p.PreFilter,
		PreScore:  p.PreScore,
		Events:    p.events(),
	}
}

var (
	skewExceeded = framework.NewStatus(spreadName, framework.Unschedulable,
		"node(s) didn't match pod topology spread constraints")
	missingTopologyLabel = framework.NewStatus(spreadName, framework.Unresolvable,
		"node(s) didn't match pod topology spread constraints (missing required label)")
	systemDefaults = []corev1.TopologySpreadConstraint{
		{TopologyKey: corev1.LabelHostname, MaxSkew: 3, WhenUnsatisfiable: corev1.ScheduleAnyway},
		{TopologyKey: corev1.LabelTopologyZone, MaxSkew: 5, WhenUnsatisfiable: corev1.ScheduleAnyway},
	}
)

// constraint is a parsed topology spread constraint.
type constraint struct {
	key        string
	maxSkew    int64
	minDomains int64
	term       *state.Term
	selfMatch  int64 // 1 if the pod matches its own selector
	// honorAffinity excludes nodes that the pod's node affinity excludes (nodeAffinityPolicy: Honor). honorTaints
	// excludes nodes whose taints it does not tolerate (nodeTaintsPolicy: Honor).
	honorAffinity, honorTaints bool
}

func parseConstraints(
	pod *corev1.Pod, in []corev1.TopologySpreadConstraint, action corev1.UnsatisfiableConstraintAction,
	byDefault labels.Selector,
) ([]constraint, error) {
	var out []constraint
	for i := range in {
		c := &in[i]
		if c.WhenUnsatisfiable != action {
			continue
		}
		selector := byDefault
		if selector == nil {
			var err error
			if selector, err = metav1.LabelSelectorAsSelector(c.LabelSelector); err != nil {
				return nil, fmt.Errorf("topology spread constraint %d: label selector: %w", i, err)
			}
			selector = state.WithLabelKeys(selector, pod, c.MatchLabelKeys, selection.In)
		}
		p := constraint{
			key:        c.TopologyKey,
			maxSkew:    int64(c.MaxSkew),
			minDomains: 1,
			term:       state.NewTerm(c.TopologyKey, []string{pod.Namespace}, nil, selector),
			honorAffinity: selectsNodes(&pod.Spec) &&
				(c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor),
			honorTaints: c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor,
		}
		if c.MinDomains != nil {
			p.minDomains = int64(*c.MinDomains)
		}
		if selector.Matches(labels.Set(pod.Labels)) {
			p.selfMatch = 1
		}
		out = append(out, p)
	}
	return out, nil
}

func (c *constraint) query() state.Query {
	return state.Query{Terms: []*state.Term{c.term}, Live: true}
}

// inclusion decides which nodes count for a constraint (node inclusion policies).
type inclusion struct {
	affinity nodeaffinity.RequiredNodeAffinity
	spec     *corev1.PodSpec
}

func newInclusion(pod *corev1.Pod) inclusion {
	return inclusion{nodeaffinity.GetRequiredNodeAffinity(pod), &pod.Spec}
}

func (in *inclusion) counts(c *constraint, n *state.NodeInfo) bool {
	if c.honorAffinity {
		if ok, err := in.affinity.Match(n.Node); err != nil || !ok {
			return false
		}
	}
	return !c.honorTaints || !n.HardTaints || untolerated(n.Node.Spec.Taints, in.spec.Tolerations) == nil
}

// domain is a constraint with the number of matching pods by value of the topology key. Only nodes that count are
// included.
type domain struct {
	constraint
	topologyCounts
	nodes    []int32 // number of nodes that count, by value ID
	values   int     // number of values with such a node
	minMatch int64
}

// PreFilter returns nil for pods without a DoNotSchedule constraint.
func (p PodTopologySpread) PreFilter(
	_ *framework.CycleState, pod *state.PodInfo, snapshot *state.Snapshot,
) (framework.NodeFilter, *framework.Status) {
	in := pod.Pod.Spec.TopologySpreadConstraints
	var byDefault labels.Selector
	if len(in) == 0 && p.Defaults != nil { // the system defaults only score
		in, byDefault = p.defaults(pod.Pod)
	}
	if len(in) == 0 {
		return framework.NodeFilter{}, nil
	}
	cs, err := parseConstraints(pod.Pod, in, corev1.DoNotSchedule, byDefault)
	if err != nil {
		return framework.NodeFilter{}, framework.NewStatus(spreadName, framework.Unresolvable, err.Error())
	}
	if len(cs) == 0 {
		return framework.NodeFilter{}, nil
	}
	f := &spreadFilter{ns: snapshot.Namespaces, domains: make([]domain, len(cs))}
	quick := allNodesCount(cs, snapshot)
	included := newInclusion(pod.Pod)
	for i := range cs {
		d := &f.domains[i]
		d.constraint = cs[i]
		counter := snapshot.Count(d.query())
		if quick {
			d.topologyCounts = topologyCounts{Sums: counter.Sums(d.key)}
			d.nodes = d.NodeCounts
			d.values = len(d.Values)
		} else {
			d.nodes, d.values, d.topologyCounts = countIncluded(&cs[i], cs, &included, counter, snapshot)
		}
		d.minMatch = d.minMatchNum()
	}
	return f.described(), nil
}

func (f *spreadFilter) described() framework.NodeFilter {
	return framework.NodeFilter{
		Filter:     f.Filter,
		FilterAll:  f.FilterAll,
		Adjust:     f.Adjust,
		Explain:    f.Explain,
		CountsMore: f.CountsMore,
	}
}

// allNodesCount reports whether the sums over all nodes can be used: no policy excludes a node, and with several
// topology keys every node has all of them.
func allNodesCount(cs []constraint, s *state.Snapshot) bool {
	for i := range cs {
		if cs[i].honorAffinity || cs[i].honorTaints {
			return false
		}
		if len(cs) > 1 && s.Column(cs[i].key).Labelled != len(s.Nodes) {
			return false
		}
	}
	return true
}

// countIncluded counts only nodes that have the keys of all constraints and that no policy excludes. It returns the
// number of these nodes by value ID, the number of values with such a node, and the pods on them.
func countIncluded(
	c *constraint, all []constraint, in *inclusion, counter *state.Counter, s *state.Snapshot,
) (nodes []int32, some int, t topologyCounts) {
	chosen := s.SelectNodes(in.key(c, all), c.key, func(n *state.NodeInfo) bool {
		return hasKeys(n, all) && in.counts(c, n)
	})
	return chosen.Included, chosen.IncludedValues, topologyCounts{
		Sums:     counter.Sums(c.key),
		excluded: counter.SumsOfExcluded(chosen),
	}
}

// key is the cache key of Snapshot.SelectNodes: equal keys select the same nodes.
func (in *inclusion) key(c *constraint, all []constraint) string {
	var out strings.Builder
	for i := range all {
		fmt.Fprintf(&out, "%q ", all[i].key)
	}
	enc := json.NewEncoder(&out) // cannot fail: API types, written to memory
	if c.honorAffinity {
		out.WriteString("matching ")
		_ = enc.Encode(in.spec.NodeSelector)
		if a := in.spec.Affinity; a != nil && a.NodeAffinity != nil {
			_ = enc.Encode(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
		}
	}
	if c.honorTaints {
		out.WriteString("tolerated ")
		_ = enc.Encode(in.spec.Tolerations)
	}
	return out.String()
}

func hasKeys(n *state.NodeInfo, cs []constraint) bool {
	for i := range cs {
		if _, ok := n.Node.Labels[cs[i].key]; !ok {
			return false
		}
	}
	return true
}

// minMatchNum returns the global minimum: the least number of pods over all values, 0 when there are fewer values than
// minDomains.
func (d *domain) minMatchNum() int64 {
	if int64(d.values) < d.minDomains {
		return 0
	}
	if d.adjusted == nil && d.NonZero < d.values {
		return 0 // some value has no pod at all
	}
	least := int64(-1)
	for id, nodes := range d.nodes {
		if nodes == 0 {
			continue
		}
		if n := d.count(int32(id)); least < 0 || n < least { // there are fewer nodes
			least = n
		}
		if least == 0 {
			return 0
		}
	}
	return max(least, 0)
}

type spreadFilter struct {
	ns      map[string]labels.Set
	domains []domain
}

func (f *spreadFilter) Filter(n *state.NodeInfo) *framework.Status {
	for i := range f.domains {
		d := &f.domains[i]
		id := d.ValueID(n)
		if id < 0 {
			return missingTopologyLabel
		}
		if d.exceedsSkew(id) {
			return skewExceeded
		}
	}
	return nil
}

// exceedsSkew reports whether the pod would exceed maxSkew in the domain of a value.
func (d *domain) exceedsSkew(id int32) bool { return d.count(id)+d.selfMatch-d.minMatch > d.maxSkew }

// FilterAll is Filter for all nodes.
func (f *spreadFilter) FilterAll(out []*framework.Status) {
	for i := range f.domains {
		d := &f.domains[i]
		for place, id := range d.ValueIDs {
			switch {
			case out[place] != nil:
			case id < 0:
				out[place] = missingTopologyLabel
			case d.exceedsSkew(id):
				out[place] = skewExceeded
			}
		}
	}
}

// Adjust returns the filter after pods were added to and removed from one node.
func (f *spreadFilter) Adjust(n *state.NodeInfo, added, removed []*state.PodInfo) framework.NodeFilter {
	c := *f
	c.domains = slices.Clone(f.domains)
	for i := range c.domains {
		d := &c.domains[i]
		if id := d.ValueID(n); id < 0 || d.nodes[id] == 0 {
			continue
		}
		q := d.query()
		d.topologyCounts = d.with(n, countDifference(added, removed, func(p *state.PodInfo) bool {
			return q.Matches(p.Pod, f.ns[p.Pod.Namespace])
		}))
		d.minMatch = d.minMatchNum()
	}
	return c.described()
}

// events names what may help: nodes that are added or change, and pods that a constraint selects.
func (p PodTopologySpread) events() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{
		{Kinds: framework.NodeAdd | framework.NodeLabels | framework.NodeTaints | framework.UnscheduledPodUpdate},
		{
			Kinds: framework.AssignedPodAdd | framework.AssignedPodLabels | framework.AssignedPodDelete,
			QueueingHintFn: func(pod *state.PodInfo, event *framework.Event) bool {
				in := pod.Pod.Spec.TopologySpreadConstraints
				var byDefault labels.Selector
				if len(in) == 0 {
					in, byDefault = p.defaults(pod.Pod)
				}
				cs, err := parseConstraints(pod.Pod, in, corev1.DoNotSchedule, byDefault)
				if err != nil {
					return false
				}
				touches := func(p *corev1.Pod) bool {
					return p != nil && p.Namespace == pod.Pod.Namespace && slices.ContainsFunc(cs, func(
						c constraint,
					) bool {
						return c.term.Selector.Matches(labels.Set(p.Labels))
					})
				}
				return touches(event.OldPod) || touches(event.NewPod)
			},
		},
	}
}
