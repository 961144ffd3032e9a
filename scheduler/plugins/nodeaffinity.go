// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// NodeAffinity filters nodes by node selector and required node affinity, and scores nodes by the preferred node
// affinity.
type NodeAffinity struct {
	// Added is the addedAffinity of the configuration: it applies to every pod besides the pod's own; nil: none.
	Added *corev1.NodeAffinity
}

const nodeAffinityName = "NodeAffinity"

// Plugin returns the descriptor.
func (p NodeAffinity) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:      nodeAffinityName,
		PreFilter: p.PreFilter,
		PreScore:  p.PreScore,
		Events:    p.events(),
	}
}

var affinityMismatch = framework.NewStatus(nodeAffinityName, framework.Unresolvable,
	"node(s) didn't match Pod's node affinity/selector")

// PreFilter returns nil for pods without node selector and required node affinity.
func (p NodeAffinity) PreFilter(
	_ *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot,
) (framework.NodeFilter, *framework.Status) {
	added, err := p.added()
	if err != nil {
		return framework.NodeFilter{}, framework.NewStatus(nodeAffinityName, framework.Unresolvable, err.Error())
	}
	if !selectsNodes(&pod.Pod.Spec) {
		if added == nil {
			return framework.NodeFilter{}, nil
		}
		return p.filter(&nodeAffinityFilter{nodeaffinity.GetRequiredNodeAffinity(pod.Pod), added}, nil), nil
	}
	names := namedNodes(&pod.Pod.Spec)
	if names != nil && len(names) == 0 {
		return framework.NodeFilter{}, framework.NewStatus(nodeAffinityName, framework.Unresolvable,
			"pod affinity terms conflict")
	}
	m := &nodeAffinityFilter{nodeaffinity.GetRequiredNodeAffinity(pod.Pod), added}
	if _, err := m.Match(&corev1.Node{}); err != nil && !anyReadable(requiredNodes(&pod.Pod.Spec)) {
		return framework.NodeFilter{}, framework.NewStatus(nodeAffinityName, framework.Unresolvable,
			"node affinity: "+err.Error())
	}
	return p.filter(m, names), nil
}

// filter describes a filter; names are the nodes that the pod selects by name, so that only these are filtered; nil:
// any.
func (p NodeAffinity) filter(m *nodeAffinityFilter, names []string) framework.NodeFilter {
	return framework.NodeFilter{Filter: m.Filter, NodeLocal: true, NodeNames: names, Explain: p.explain}
}

// anyReadable reports whether at least one term of a selector can be parsed. Terms are alternatives, so one is enough.
func anyReadable(s *corev1.NodeSelector) bool {
	return slices.ContainsFunc(s.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		_, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{t}})
		return err == nil && len(t.MatchExpressions)+len(t.MatchFields) > 0
	})
}

// added returns the required part of Added; nil: none.
func (p NodeAffinity) added() (*nodeaffinity.NodeSelector, error) {
	if p.Added == nil || p.Added.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil, nil
	}
	return nodeaffinity.NewNodeSelector(p.Added.RequiredDuringSchedulingIgnoredDuringExecution)
}

var addedAffinityMismatch = framework.NewStatus(nodeAffinityName, framework.Unresolvable,
	"node(s) didn't match scheduler-enforced node affinity")

func selectsNodes(s *corev1.PodSpec) bool { return len(s.NodeSelector) > 0 || requiredNodes(s) != nil }

func requiredNodes(s *corev1.PodSpec) *corev1.NodeSelector {
	if s.Affinity == nil || s.Affinity.NodeAffinity == nil {
		return nil
	}
	return s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// namedNodes returns the nodes that the required terms select by metadata.name, as pods of DaemonSets do; nil if a term
// does not.
func namedNodes(s *corev1.PodSpec) []string {
	required := requiredNodes(s)
	if required == nil || len(required.NodeSelectorTerms) == 0 {
		return nil
	}
	all := []string{}
	for _, term := range required.NodeSelectorTerms {
		var names []string
		for _, f := range term.MatchFields {
			if f.Key != metav1.ObjectNameField || f.Operator != corev1.NodeSelectorOpIn {
				continue
			}
			if names == nil {
				names = slices.Clone(f.Values)
			} else {
				names = slices.DeleteFunc(names, func(n string) bool { return !slices.Contains(f.Values, n) })
			}
		}
		if names == nil {
			return nil
		}
		all = append(all, names...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

type nodeAffinityFilter struct {
	nodeaffinity.RequiredNodeAffinity
	added *nodeaffinity.NodeSelector
}

func (m *nodeAffinityFilter) Filter(n *state.NodeInfo) *framework.Status {
	if m.added != nil && !m.added.Match(n.Node) {
		return addedAffinityMismatch
	}
	if ok, err := m.Match(n.Node); err != nil || !ok {
		return affinityMismatch
	}
	return nil
}

// PreScore returns nil for pods without preferred node affinity.
func (p NodeAffinity) PreScore(
	_ *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot, _ []*state.NodeInfo,
) framework.NodeScorer {
	var preferred []corev1.PreferredSchedulingTerm
	if a := pod.Pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		preferred = a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}
	if p.Added != nil {
		preferred = slices.Concat(preferred, p.Added.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if len(preferred) == 0 {
		return framework.NodeScorer{}
	}
	terms, err := nodeaffinity.NewPreferredSchedulingTerms(preferred)
	if err != nil {
		return framework.NodeScorer{} // an invalid preference is ignored
	}
	return framework.NodeScorer{
		Score:     func(n *state.NodeInfo) int64 { return terms.Score(n.Node) },
		Normalize: mostFirst,
		NodeLocal: true,
	}
}

func mostFirst(scores []int64) { framework.NormalizeByMax(scores, false) }

// events names what may help: a node that matches now.
func (NodeAffinity) events() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{{
		Kinds: framework.NodeAdd | framework.NodeLabels,
		QueueingHintFn: func(pod *state.PodInfo, e *framework.Event) bool {
			ok, err := nodeaffinity.GetRequiredNodeAffinity(pod.Pod).Match(e.NewNode)
			return err == nil && ok
		},
	}, {Kinds: framework.UnscheduledPodUpdate}}
}
