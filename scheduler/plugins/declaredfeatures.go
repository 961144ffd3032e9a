// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	features "k8s.io/component-helpers/nodedeclaredfeatures"

	"keelson/api/declared"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// NodeDeclaredFeatures filters nodes whose status.declaredFeatures lack a kubelet feature that the pod needs.
type NodeDeclaredFeatures struct{}

// Plugin returns the descriptor.
func (p NodeDeclaredFeatures) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:      "NodeDeclaredFeatures",
		PreFilter: p.PreFilter,
		Events:    p.events(),
	}
}

var undeclared = framework.NewStatus("NodeDeclaredFeatures", framework.Unresolvable,
	"node(s) didn't match Pod's required features")

// PreFilter returns nil for pods that need no declared feature.
func (NodeDeclaredFeatures) PreFilter(
	_ *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot,
) (framework.NodeFilter, *framework.Status) {
	needs := declared.ToRun(&pod.Pod.Spec)
	if needs.IsEmpty() {
		return framework.NodeFilter{}, nil
	}
	return framework.NodeFilter{Filter: featureFilter{needs}.Filter}, nil
}

type featureFilter struct{ required features.FeatureSet }

func (d featureFilter) Filter(n *state.NodeInfo) *framework.Status {
	if len(declared.Missing(d.required, n.Node)) > 0 {
		return undeclared
	}
	return nil
}

// events names what may help: a node that declares the features, or an update of the pod.
func (NodeDeclaredFeatures) events() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{{
		Kinds: framework.NodeAdd | framework.NodeDeclaredFeatures,
		QueueingHintFn: func(p *state.PodInfo, e *framework.Event) bool {
			return len(declared.Missing(declared.ToRun(&p.Pod.Spec), e.NewNode)) == 0
		},
	}, {Kinds: framework.UnscheduledPodUpdate}}
}
