// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	features "k8s.io/component-helpers/nodedeclaredfeatures"

	"keelson/api/declared"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// NodeDeclaredFeatures keeps pods off nodes whose kubelet does not say (status.declaredFeatures) that it has what they need of it.
type NodeDeclaredFeatures struct{}

// Name is the plugin's.
func (NodeDeclaredFeatures) Name() string { return "NodeDeclaredFeatures" }

var undeclared = framework.Refuse("NodeDeclaredFeatures", framework.Unresolvable, "node(s) didn't match Pod's required features")

// PreFilter has nothing to say about pods that any kubelet can run.
func (NodeDeclaredFeatures) PreFilter(_ *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot) (framework.NodeFilter, *framework.Status) {
	needs := declared.ToRun(&pod.Pod.Spec)
	if needs.IsEmpty() {
		return nil, nil
	}
	return declares{needs}, nil
}

type declares struct{ needs features.FeatureSet }

func (d declares) Filter(n *state.NodeInfo) *framework.Status {
	if len(declared.Missing(d.needs, n.Node)) > 0 {
		return undeclared
	}
	return nil
}

// EventsToRegister names what may help: a node that declares something new, or other needs.
func (NodeDeclaredFeatures) EventsToRegister() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{{On: framework.NodeAdd | framework.NodeFeatures, Worth: func(p *state.PodInfo, e *framework.Event) bool {
		return len(declared.Missing(declared.ToRun(&p.Pod.Spec), e.NewNode)) == 0
	}}, {On: framework.Self}}
}
