// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// NodeAffinity keeps a pod to nodes that match its node selector and required node affinity, and ranks by the preferred one.
type NodeAffinity struct{}

const nodeAffinityName = "NodeAffinity"

// Name is the plugin's.
func (NodeAffinity) Name() string { return nodeAffinityName }

var unmatched = framework.Refuse(nodeAffinityName, framework.Unresolvable, "node(s) didn't match Pod's node affinity/selector")

// Prepare has nothing to say about pods that ask for nothing.
func (NodeAffinity) Prepare(pod *state.PodInfo, _ *state.Snapshot) (framework.NodeFilter, *framework.Status) {
	if !asksForNodes(&pod.Pod.Spec) {
		return nil, nil
	}
	names := namedNodes(&pod.Pod.Spec)
	if names != nil && len(names) == 0 {
		return nil, framework.Refuse(nodeAffinityName, framework.Unresolvable, "pod affinity terms conflict")
	}
	return &matchesNode{nodeaffinity.GetRequiredNodeAffinity(pod.Pod), names}, nil
}

func asksForNodes(s *corev1.PodSpec) bool { return len(s.NodeSelector) > 0 || requiredNodes(s) != nil }

func requiredNodes(s *corev1.PodSpec) *corev1.NodeSelector {
	if s.Affinity == nil || s.Affinity.NodeAffinity == nil {
		return nil
	}
	return s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// namedNodes returns the nodes that required terms name by metadata.name, as daemon pods do; nil when some term names none.
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

type matchesNode struct {
	nodeaffinity.RequiredNodeAffinity
	names []string
}

func (m *matchesNode) Filter(n *state.NodeInfo) *framework.Status {
	if ok, err := m.Match(n.Node); err != nil || !ok {
		return unmatched
	}
	return nil
}

// Lasting: only the node itself and what the pod asks of it count.
func (*matchesNode) Lasting() {}

// Narrow returns the nodes the pod names.
func (m *matchesNode) Narrow() []string { return m.names }

// Explain names the first label of the node selector that differs.
func (NodeAffinity) Explain(pod *state.PodInfo, n *state.NodeInfo, _ *framework.Status) (short, hint string, distance float64) {
	for _, key := range slices.Sorted(maps.Keys(pod.Pod.Spec.NodeSelector)) {
		want := pod.Pod.Spec.NodeSelector[key]
		switch got, ok := n.Node.Labels[key]; {
		case !ok:
			return fmt.Sprintf("label %s: asks %s, has none", key, want), "", 1
		case got != want:
			return fmt.Sprintf("label %s: asks %s, has %s", key, want, got), "", 1
		}
	}
	return "required node affinity does not match its labels", "", 1
}

// PrepareScore has nothing to say about pods without preferences.
func (NodeAffinity) PrepareScore(pod *state.PodInfo, _ *state.Snapshot, _ []*state.NodeInfo) framework.NodeScorer {
	a := pod.Pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) == 0 {
		return nil
	}
	terms, err := nodeaffinity.NewPreferredSchedulingTerms(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	if err != nil {
		return nil // a preference that cannot be read cannot be met
	}
	return prefersNode{terms}
}

type prefersNode struct {
	terms *nodeaffinity.PreferredSchedulingTerms
}

func (p prefersNode) Score(n *state.NodeInfo) int64 { return p.terms.Score(n.Node) }

func (prefersNode) Normalize(scores []int64) { framework.NormalizeByMax(scores, false) }

// Hints names what may help: a node that matches now.
func (NodeAffinity) Hints() []framework.Hint {
	return []framework.Hint{{On: framework.NodeAdd | framework.NodeLabels, Worth: func(pod *state.PodInfo, e *framework.Event) bool {
		ok, err := nodeaffinity.GetRequiredNodeAffinity(pod.Pod).Match(e.NewNode)
		return err == nil && ok
	}}, {On: framework.Self}}
}
