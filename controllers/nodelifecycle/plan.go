// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// startupGrace is how long a node that has never said anything may take.
const startupGrace = 60 * time.Second

// watched are the conditions that become Unknown with a silent node.
var watched = []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure}

// Taints that follow from a condition having a status.
var byCondition = []struct {
	condition corev1.NodeConditionType
	status    corev1.ConditionStatus
	taint     string
}{
	{corev1.NodeReady, corev1.ConditionFalse, corev1.TaintNodeNotReady},
	{corev1.NodeReady, corev1.ConditionUnknown, corev1.TaintNodeUnreachable},
	{corev1.NodeMemoryPressure, corev1.ConditionTrue, corev1.TaintNodeMemoryPressure},
	{corev1.NodeDiskPressure, corev1.ConditionTrue, corev1.TaintNodeDiskPressure},
	{corev1.NodePIDPressure, corev1.ConditionTrue, corev1.TaintNodePIDPressure},
	{corev1.NodeNetworkUnavailable, corev1.ConditionTrue, corev1.TaintNodeNetworkUnavailable},
}

// ours are the taints that only this controller sets and removes, by effect.
var ours = map[corev1.TaintEffect][]string{
	corev1.TaintEffectNoSchedule: {
		corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure, corev1.TaintNodePIDPressure,
		corev1.TaintNodeNetworkUnavailable, corev1.TaintNodeUnschedulable,
	},
	corev1.TaintEffectNoExecute: {corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable},
}

func condition(n *corev1.Node, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == t {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

func readiness(n *corev1.Node) corev1.ConditionStatus {
	if c := condition(n, corev1.NodeReady); c != nil {
		return c.Status
	}
	return corev1.ConditionUnknown
}

// silent decides whether a node last heard of at heard is to be given up, and if not yet, when to look again (0: it is known
// to be unknown already).
func silent(n *corev1.Node, heard, now time.Time, grace time.Duration) (giveUp bool, again time.Duration) {
	if condition(n, corev1.NodeReady) == nil {
		grace = max(grace, startupGrace)
	}
	if left := heard.Add(grace).Sub(now); left > 0 {
		return false, left
	}
	for _, t := range watched {
		if c := condition(n, t); c == nil || c.Status != corev1.ConditionUnknown {
			return true, 0
		}
	}
	return false, 0
}

// unknown returns a silent node's conditions.
func unknown(n *corev1.Node, now time.Time) []corev1.NodeCondition {
	conds := slices.Clone(n.Status.Conditions)
	at := metav1.NewTime(now)
	for _, t := range watched {
		i := slices.IndexFunc(conds, func(c corev1.NodeCondition) bool { return c.Type == t })
		if i < 0 {
			conds = append(conds, corev1.NodeCondition{
				Type: t, Status: corev1.ConditionUnknown, Reason: "NodeStatusNeverUpdated", Message: "Kubelet never posted node status.",
				LastHeartbeatTime: n.CreationTimestamp, LastTransitionTime: at,
			})
			continue
		}
		if conds[i].Status != corev1.ConditionUnknown {
			conds[i].Status, conds[i].Reason, conds[i].Message = corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status."
			conds[i].LastTransitionTime = at
		}
	}
	return conds
}

// taints returns the taints that n should have. With evict false no NoExecute taint is added; those there stay while they apply.
func taints(n *corev1.Node, evict bool, now time.Time) []corev1.Taint {
	want := map[corev1.TaintEffect]map[string]bool{corev1.TaintEffectNoSchedule: {}, corev1.TaintEffectNoExecute: {}}
	for _, r := range byCondition {
		if c := condition(n, r.condition); c != nil && c.Status == r.status {
			want[corev1.TaintEffectNoSchedule][r.taint] = true
			if r.condition == corev1.NodeReady {
				want[corev1.TaintEffectNoExecute][r.taint] = true
			}
		}
	}
	if n.Spec.Unschedulable {
		want[corev1.TaintEffectNoSchedule][corev1.TaintNodeUnschedulable] = true
	}
	var out []corev1.Taint
	for _, t := range n.Spec.Taints {
		if slices.Contains(ours[t.Effect], t.Key) {
			if !want[t.Effect][t.Key] {
				continue
			}
			delete(want[t.Effect], t.Key)
		}
		out = append(out, t)
	}
	at := metav1.NewTime(now)
	for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
		if effect == corev1.TaintEffectNoExecute && !evict {
			continue
		}
		for _, key := range ours[effect] {
			if want[effect][key] {
				out = append(out, corev1.Taint{Key: key, Effect: effect, TimeAdded: &at})
			}
		}
	}
	return out
}

// mayEvict says how many nodes of a zone, with this many ready and not, may be evicted from: none when all nodes of the
// cluster are down (then it is more likely we who are cut off) or when most of a small zone is; every ten seconds one
// otherwise, and a tenth of that when most of a large zone is down. The figures are kube-controller-manager's defaults.
func mayEvict(ready, not, readyAnywhere int) (every time.Duration, ok bool) {
	const largeZone = 50
	switch mostDown := not > 2 && not*100 >= 55*(ready+not); {
	case readyAnywhere == 0:
		return 0, false
	case ready == 0 || !mostDown:
		return 10 * time.Second, true
	case ready+not > largeZone:
		return 100 * time.Second, true
	}
	return 0, false
}

// zone is the failure domain that n is in.
func zone(n *corev1.Node) string {
	return n.Labels[corev1.LabelTopologyRegion] + "/" + n.Labels[corev1.LabelTopologyZone]
}
