// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"keelson/api/decisions"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// TaintToleration filters nodes with taints that the pod does not tolerate, and prefers nodes with fewer
// PreferNoSchedule taints.
type TaintToleration struct{}

// Plugin returns the descriptor.
func (p TaintToleration) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:      "TaintToleration",
		PreFilter: p.PreFilter,
		PreScore:  p.PreScore,
		Events:    p.events(),
	}
}

var tainted = framework.NewStatus("TaintToleration", framework.Unresolvable, "node(s) had untolerated taint(s)")

// tolerates reports whether any toleration tolerates a taint.
func tolerates(ts []corev1.Toleration, taint *corev1.Taint) bool {
	for i := range ts {
		if ts[i].ToleratesTaint(klog.Logger{}, taint, true) {
			return true
		}
	}
	return false
}

// untolerated returns the first NoSchedule or NoExecute taint without a toleration; nil: none.
func untolerated(taints []corev1.Taint, ts []corev1.Toleration) *corev1.Taint {
	for i := range taints {
		if taints[i].Effect != corev1.TaintEffectPreferNoSchedule && !tolerates(ts, &taints[i]) {
			return &taints[i]
		}
	}
	return nil
}

// PreFilter returns the filter.
func (TaintToleration) PreFilter(
	_ *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot,
) (framework.NodeFilter, *framework.Status) {
	f := taintFilter{pod.Pod.Spec.Tolerations}
	return framework.NodeFilter{Filter: f.Filter, NodeLocal: true, Explain: explainTaints}, nil
}

type taintFilter struct{ tolerations []corev1.Toleration }

func (t taintFilter) Filter(n *state.NodeInfo) *framework.Status {
	if n.HardTaints && untolerated(n.Node.Spec.Taints, t.tolerations) != nil {
		return tainted
	}
	return nil
}

// explainTaints names the first taint, and suggests tolerations for all. It suggests none for taints that Kubernetes
// itself sets and removes. The taint of a cordoned node, which NodeUnschedulable reports, is named only if there is no
// other.
func explainTaints(
	pod *state.PodInfo, n *state.NodeInfo, _ *framework.Status,
) (short, hint string, distance float64) {
	own := true
	cordoned := ""
	for i := range n.Node.Spec.Taints {
		taint := &n.Node.Spec.Taints[i]
		if taint.Effect == corev1.TaintEffectPreferNoSchedule || tolerates(pod.Pod.Spec.Tolerations, taint) {
			continue
		}
		if n.Node.Spec.Unschedulable && taint.Key == corev1.TaintNodeUnschedulable {
			cordoned = fmt.Sprintf("taint %s not tolerated", TaintText(taint))
			continue
		}
		if hint += " and " + TaintText(taint); short == "" {
			short = fmt.Sprintf("taint %s not tolerated", TaintText(taint))
		}
		own = own && !strings.HasPrefix(taint.Key, "node.kubernetes.io/") &&
			!strings.HasPrefix(taint.Key, "node.cloudprovider.kubernetes.io/")
	}
	if short == "" || !own {
		return cmp.Or(short, cordoned), "", 2
	}
	return short, "add toleration " + strings.TrimPrefix(hint, " and "), 2
}

// Untolerated returns the taint that explainTaints names; nil: there is none.
func Untolerated(pod *state.PodInfo, n *state.NodeInfo) *decisions.Taint {
	var found *corev1.Taint
	for i := range n.Node.Spec.Taints {
		taint := &n.Node.Spec.Taints[i]
		if taint.Effect == corev1.TaintEffectPreferNoSchedule || tolerates(pod.Pod.Spec.Tolerations, taint) {
			continue
		}
		if found = taint; !n.Node.Spec.Unschedulable || taint.Key != corev1.TaintNodeUnschedulable {
			break
		}
	}
	if found == nil {
		return nil
	}
	return &decisions.Taint{Key: found.Key, Value: found.Value, Effect: string(found.Effect)}
}

// TaintText formats a taint as kubectl does: key=value:effect.
func TaintText(t *corev1.Taint) string {
	if t.Value == "" {
		return fmt.Sprintf("%s:%s", t.Key, t.Effect)
	}
	return fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect)
}

// PreScore returns nil when no node has a PreferNoSchedule taint.
func (TaintToleration) PreScore(
	_ *framework.CycleState, pod *state.PodInfo, s *state.Snapshot, _ []*state.NodeInfo,
) framework.NodeScorer {
	if !s.SoftTaints() {
		return framework.NodeScorer{}
	}
	var ts []corev1.Toleration
	for _, t := range pod.Pod.Spec.Tolerations {
		if t.Effect == "" || t.Effect == corev1.TaintEffectPreferNoSchedule {
			ts = append(ts, t)
		}
	}
	return framework.NodeScorer{Score: softTaintScorer{ts}.Score, Normalize: fewestFirst, NodeLocal: true}
}

type softTaintScorer struct{ tolerated []corev1.Toleration }

func (t softTaintScorer) Score(n *state.NodeInfo) int64 {
	var count int64
	if !n.SoftTaints {
		return 0
	}
	for i := range n.Node.Spec.Taints {
		if taint := &n.Node.Spec.Taints[i]; taint.Effect == corev1.TaintEffectPreferNoSchedule &&
			!tolerates(t.tolerated, taint) {
			count++
		}
	}
	return count
}

func fewestFirst(scores []int64) { framework.NormalizeByMax(scores, true) }

// events names what may help: a node whose taints the pod tolerates.
func (TaintToleration) events() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{{
		Kinds: framework.NodeAdd | framework.NodeTaints,
		QueueingHintFn: func(pod *state.PodInfo, e *framework.Event) bool {
			return untolerated(e.NewNode.Spec.Taints, pod.Pod.Spec.Tolerations) == nil
		},
	}, {Kinds: framework.UnscheduledPodUpdate}}
}
