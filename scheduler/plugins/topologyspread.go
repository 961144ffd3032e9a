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

// PodTopologySpread keeps pods spread over the values of a node label, as the pod's constraints say; pods without constraints
// are spread softly over zones and nodes together with the pods of the same service or controller.
type PodTopologySpread struct {
	// DefaultSelector returns which pods a pod without constraints belongs to; nil, or a nil answer: to none.
	DefaultSelector func(pod *corev1.Pod) labels.Selector
	// Defaults are the constraints of pods without any; nil: Kubernetes' own, which break rather than keep a pod off.
	Defaults []corev1.TopologySpreadConstraint
}

// defaults are the constraints of a pod that has none, with what they select; the selector is nil when it belongs to none.
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
	return kinSpread, s
}

const spreadName = "PodTopologySpread"

// Name is the plugin's.
func (PodTopologySpread) Name() string { return spreadName }

var (
	tooMany   = framework.Refuse(spreadName, framework.Unschedulable, "node(s) didn't match pod topology spread constraints")
	noSpread  = framework.Refuse(spreadName, framework.Unresolvable, "node(s) didn't match pod topology spread constraints (missing required label)")
	kinSpread = []corev1.TopologySpreadConstraint{
		{TopologyKey: corev1.LabelHostname, MaxSkew: 3, WhenUnsatisfiable: corev1.ScheduleAnyway},
		{TopologyKey: corev1.LabelTopologyZone, MaxSkew: 5, WhenUnsatisfiable: corev1.ScheduleAnyway},
	}
)

// constraint is one of the pod's, parsed.
type constraint struct {
	key        string
	maxSkew    int64
	minDomains int64
	term       *state.Term
	self       int64 // 1 if the pod itself counts
	// onlyMatching leaves nodes out that the pod's node affinity excludes; onlyTolerated those whose taints it does not tolerate.
	onlyMatching, onlyTolerated bool
}

func parseConstraints(pod *corev1.Pod, in []corev1.TopologySpreadConstraint, action corev1.UnsatisfiableConstraintAction, byDefault labels.Selector) ([]constraint, error) {
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
		counted := selector
		if selector.Empty() { // it matches the pod itself, but no pod counts: so it is in Kubernetes
			counted = labels.Nothing()
		}
		p := constraint{
			key: c.TopologyKey, maxSkew: int64(c.MaxSkew), minDomains: 1,
			term:          state.NewTerm(c.TopologyKey, []string{pod.Namespace}, nil, counted),
			onlyMatching:  asksForNodes(&pod.Spec) && (c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor),
			onlyTolerated: c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor,
		}
		if c.MinDomains != nil {
			p.minDomains = int64(*c.MinDomains)
		}
		if selector.Matches(labels.Set(pod.Labels)) {
			p.self = 1
		}
		out = append(out, p)
	}
	return out, nil
}

func (c *constraint) query() state.Query {
	return state.Query{Terms: []*state.Term{c.term}, Live: true}
}

// inclusion decides which nodes count for a constraint.
type inclusion struct {
	affinity nodeaffinity.RequiredNodeAffinity
	spec     *corev1.PodSpec
}

func newInclusion(pod *corev1.Pod) inclusion {
	return inclusion{nodeaffinity.GetRequiredNodeAffinity(pod), &pod.Spec}
}

func (in *inclusion) counts(c *constraint, n *state.NodeInfo) bool {
	if c.onlyMatching {
		if ok, err := in.affinity.Match(n.Node); err != nil || !ok {
			return false
		}
	}
	return !c.onlyTolerated || !n.Blocked || untolerated(n.Node.Spec.Taints, in.spec.Tolerations) == nil
}

// domain is a constraint with the number of pods by value, over all values that nodes which count have.
type domain struct {
	constraint
	tally
	nodes []int32 // that count, by value
	some  int     // values that such nodes have
	least int64
}

// PreFilter has something to say about pods with constraints that must hold.
func (p PodTopologySpread) PreFilter(_ *framework.CycleState, pod *state.PodInfo, s *state.Snapshot) (framework.NodeFilter, *framework.Status) {
	in := pod.Pod.Spec.TopologySpreadConstraints
	var byDefault labels.Selector
	if len(in) == 0 && p.Defaults != nil { // Kubernetes' own keep no pod off
		in, byDefault = p.defaults(pod.Pod)
	}
	if len(in) == 0 {
		return nil, nil
	}
	cs, err := parseConstraints(pod.Pod, in, corev1.DoNotSchedule, byDefault)
	if err != nil {
		return nil, framework.Refuse(spreadName, framework.Unresolvable, err.Error())
	}
	if len(cs) == 0 {
		return nil, nil
	}
	f := &spread{ns: s.Namespaces, domains: make([]domain, len(cs))}
	quick := everyNodeCounts(cs, s)
	included := newInclusion(pod.Pod)
	for i := range cs {
		d := &f.domains[i]
		d.constraint = cs[i]
		counter := s.Count(d.query())
		if quick {
			d.tally = tally{Sums: counter.Sums(d.key)}
			d.nodes, d.some = d.Nodes, len(d.Values)
		} else {
			d.nodes, d.some, d.tally = countDomain(&cs[i], cs, &included, counter, s)
		}
		d.least = d.minimum()
	}
	return f, nil
}

// everyNodeCounts reports whether sums over all nodes are right: no policy leaves a node out, and with several keys every
// node has all of them.
func everyNodeCounts(cs []constraint, s *state.Snapshot) bool {
	for i := range cs {
		if cs[i].onlyMatching || cs[i].onlyTolerated {
			return false
		}
		if len(cs) > 1 && s.Column(cs[i].key).Labelled != len(s.Nodes) {
			return false
		}
	}
	return true
}

// countDomain counts over the nodes that have the keys of all constraints and that no policy leaves out: these nodes by value, for how many
// values there is one, and the pods on them.
func countDomain(c *constraint, all []constraint, in *inclusion, counter *state.Counter, s *state.Snapshot) (nodes []int32, some int, t tally) {
	chosen := s.Choose(in.rule(c, all), c.key, func(n *state.NodeInfo) bool { return hasKeys(n, all) && in.counts(c, n) })
	return chosen.In, chosen.Some, tally{Sums: counter.Sums(c.key), less: counter.Among(chosen)}
}

// rule says in words which nodes have the keys of all constraints and count for c.
func (in *inclusion) rule(c *constraint, all []constraint) string {
	var b strings.Builder
	for i := range all {
		fmt.Fprintf(&b, "%q ", all[i].key)
	}
	say := json.NewEncoder(&b) // to memory, and what was read from JSON before
	if c.onlyMatching {
		b.WriteString("matching ")
		_ = say.Encode(in.spec.NodeSelector)
		if a := in.spec.Affinity; a != nil && a.NodeAffinity != nil {
			_ = say.Encode(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
		}
	}
	if c.onlyTolerated {
		b.WriteString("tolerated ")
		_ = say.Encode(in.spec.Tolerations)
	}
	return b.String()
}

func hasKeys(n *state.NodeInfo, cs []constraint) bool {
	for i := range cs {
		if _, ok := n.Node.Labels[cs[i].key]; !ok {
			return false
		}
	}
	return true
}

// minimum is the least number of pods over all values, 0 when there are fewer values than the constraint wants.
func (d *domain) minimum() int64 {
	if int64(d.some) < d.minDomains {
		return 0
	}
	if d.delta == nil && d.Some < d.some {
		return 0 // some value has no pod at all
	}
	least := int64(-1)
	for id, nodes := range d.nodes {
		if nodes == 0 {
			continue
		}
		if n := d.at(int32(id)); least < 0 || n < least { //nolint:gosec // there are fewer nodes
			least = n
		}
		if least == 0 {
			return 0
		}
	}
	return max(least, 0)
}

type spread struct {
	ns      map[string]labels.Set
	domains []domain
}

func (f *spread) Filter(n *state.NodeInfo) *framework.Status {
	for i := range f.domains {
		d := &f.domains[i]
		id := d.On(n)
		if id < 0 {
			return noSpread
		}
		if d.full(id) {
			return tooMany
		}
	}
	return nil
}

// full reports whether one more pod is too many for a value.
func (d *domain) full(id int32) bool { return d.at(id)+d.self-d.least > d.maxSkew }

// FilterAll judges all nodes.
func (f *spread) FilterAll(out []*framework.Status) {
	for i := range f.domains {
		d := &f.domains[i]
		for place, id := range d.Of {
			switch {
			case out[place] != nil:
			case id < 0:
				out[place] = noSpread
			case d.full(id):
				out[place] = tooMany
			}
		}
	}
}

// Adjust recounts for pods that come to and leave one node.
func (f *spread) Adjust(n *state.NodeInfo, added, removed []*state.PodInfo) framework.NodeFilter {
	c := *f
	c.domains = slices.Clone(f.domains)
	for i := range c.domains {
		d := &c.domains[i]
		if id := d.On(n); id < 0 || d.nodes[id] == 0 {
			continue
		}
		q := d.query()
		d.tally = d.plus(n, difference(added, removed, func(p *state.PodInfo) bool { return q.Matches(p.Pod, f.ns[p.Pod.Namespace]) }))
		d.least = d.minimum()
	}
	return &c
}

// Explain says how many there are, and how many there may be.
func (f *spread) Explain(_ *state.PodInfo, n *state.NodeInfo, _ *framework.Status) (short, hint string, distance float64) {
	for i := range f.domains {
		d := &f.domains[i]
		id := d.On(n)
		if id < 0 {
			return "node has no label " + d.key, "", 2
		}
		if d.full(id) {
			return fmt.Sprintf("%s=%s has %d of them, the least is %d, maxSkew %d", d.key, d.Values[id], d.at(id), d.least, d.maxSkew), "", 1
		}
	}
	return "", "", 1
}

// EventsToRegister names what may help: nodes that come or move, and pods of the same kind that come, go or change.
func (p PodTopologySpread) EventsToRegister() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{
		{On: framework.NodeAdd | framework.NodeLabels | framework.NodeTaints | framework.Self},
		{On: framework.PodAdd | framework.PodLabels | framework.PodDelete, Worth: func(pod *state.PodInfo, e *framework.Event) bool {
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
				return p != nil && p.Namespace == pod.Pod.Namespace && slices.ContainsFunc(cs, func(c constraint) bool {
					return c.term.Selector.Matches(labels.Set(p.Labels))
				})
			}
			return touches(e.OldPod) || touches(e.NewPod)
		}},
	}
}
