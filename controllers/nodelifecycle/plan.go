// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"cmp"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	topology "k8s.io/component-helpers/node/topology"
)

// Config holds flags of kube-controller-manager; zero values have the defaults stated.
type Config struct {
	// Grace is how long a node may be silent before it is Unknown, StartupGrace the same for a node without a status
	// yet. Defaults: 50 s and a minute.
	Grace, StartupGrace time.Duration
	// Rate is the number of nodes per second and zone that get NoExecute taints, SecondaryRate the rate when most of a
	// large zone is unhealthy. Defaults: 0.1 and 0.01; negative: none.
	Rate, SecondaryRate float64
	// UnhealthyThreshold is the share of nodes that are not ready from which a zone counts as mostly unhealthy. Default
	// 0.55.
	UnhealthyThreshold float64
	// LargeClusterThreshold is the maximum number of nodes of a small zone: no nodes of a mostly unhealthy small zone
	// are evicted from. Default 50; negative: 0.
	LargeClusterThreshold int
	// LeasesSince is when the process began that alone writes long leases; zero: unknown. A lease that is found at the
	// start and was last renewed before counts for 40 s at most: its holder may not exist any more.
	LeasesSince time.Time
}

// Default returns c with the defaults set.
func (c Config) Default() Config {
	c.Grace = cmp.Or(c.Grace, 50*time.Second)
	c.StartupGrace = cmp.Or(c.StartupGrace, time.Minute)
	c.Rate = cmp.Or(c.Rate, 0.1)
	c.SecondaryRate = cmp.Or(c.SecondaryRate, 0.01)
	c.UnhealthyThreshold = cmp.Or(c.UnhealthyThreshold, 0.55)
	c.LargeClusterThreshold = cmp.Or(c.LargeClusterThreshold, 50)
	return c
}

// noEvictions is the pause when there are no evictions.
const noEvictions = time.Duration(math.MaxInt64)

// evictionInterval is the time between two evicted nodes of a zone with these numbers of nodes ready and not ready. If
// all of a zone is unhealthy, its pods are needed elsewhere: the rate is the normal one.
func (c Config) evictionInterval(ready, notReady int) time.Duration {
	rate := c.Rate
	if ready > 0 && notReady > 2 && float64(notReady)/float64(ready+notReady) >= c.UnhealthyThreshold {
		rate = c.SecondaryRate
		if ready+notReady <= c.LargeClusterThreshold {
			rate = 0
		}
	}
	if rate <= 0 {
		return noEvictions
	}
	return time.Duration(float64(time.Second) / max(rate, 1e-6))
}

// monitoredConditions are the conditions that become Unknown on a silent node.
var monitoredConditions = []corev1.NodeConditionType{
	corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
}

// Taints that follow from a condition's status.
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

// managedTaints are the taints that only this controller manages, by effect.
var managedTaints = map[corev1.TaintEffect][]string{
	corev1.TaintEffectNoSchedule: {
		corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeMemoryPressure,
		corev1.TaintNodeDiskPressure, corev1.TaintNodePIDPressure,
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

// heartbeatExpired decides whether a node whose last heartbeat was at renewed is given up, and if not yet, when to
// check again (0: its status is Unknown already).
func heartbeatExpired(
	n *corev1.Node, renewed, now time.Time, grace time.Duration,
) (expired bool, requeueAfter time.Duration) {
	if left := renewed.Add(grace).Sub(now); left > 0 {
		return false, left
	}
	for _, t := range monitoredConditions {
		if c := condition(n, t); c == nil || c.Status != corev1.ConditionUnknown {
			return true, 0
		}
	}
	return false, 0
}

// unknownConditions returns a silent node's conditions.
func unknownConditions(node *corev1.Node, now time.Time) []corev1.NodeCondition {
	conds := slices.Clone(node.Status.Conditions)
	at := metav1.NewTime(now)
	for _, t := range monitoredConditions {
		i := slices.IndexFunc(conds, func(c corev1.NodeCondition) bool { return c.Type == t })
		if i < 0 {
			conds = append(conds, corev1.NodeCondition{
				Type:               t,
				Status:             corev1.ConditionUnknown,
				Reason:             "NodeStatusNeverUpdated",
				Message:            "Kubelet never posted node status.",
				LastHeartbeatTime:  node.CreationTimestamp,
				LastTransitionTime: at,
			})
			continue
		}
		if conds[i].Status != corev1.ConditionUnknown {
			conds[i].Status = corev1.ConditionUnknown
			conds[i].Reason = "NodeStatusUnknown"
			conds[i].Message = "Kubelet stopped posting node status."
			conds[i].LastTransitionTime = at
		}
	}
	return conds
}

// taints returns the wanted taints of node. With evict false no NoExecute taint is added; existing ones stay while they
// apply.
func taints(node *corev1.Node, evict bool, now time.Time) []corev1.Taint {
	want := map[corev1.TaintEffect]map[string]bool{corev1.TaintEffectNoSchedule: {}, corev1.TaintEffectNoExecute: {}}
	for _, r := range byCondition {
		if c := condition(node, r.condition); c != nil && c.Status == r.status {
			want[corev1.TaintEffectNoSchedule][r.taint] = true
			if r.condition == corev1.NodeReady {
				want[corev1.TaintEffectNoExecute][r.taint] = true
			}
		}
	}
	if node.Spec.Unschedulable {
		want[corev1.TaintEffectNoSchedule][corev1.TaintNodeUnschedulable] = true
	}
	var out []corev1.Taint
	for _, t := range node.Spec.Taints {
		if slices.Contains(managedTaints[t.Effect], t.Key) {
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
		for _, key := range managedTaints[effect] {
			if want[effect][key] {
				out = append(out, corev1.Taint{Key: key, Effect: effect, TimeAdded: &at})
			}
		}
	}
	return out
}

// zone is the failure domain of n, as named in metrics; empty: unknown.
func zone(n *corev1.Node) string { return topology.GetZoneKey(n) }

// oldLabels are the deprecated labels of a node's operating system and architecture, which selectors may still use.
var oldLabels = map[string]string{
	corev1.LabelOSStable:   "beta.kubernetes.io/os",
	corev1.LabelArchStable: "beta.kubernetes.io/arch",
}

// missingLabels are those of oldLabels that n lacks or has with another value.
func missingLabels(n *corev1.Node) map[string]string {
	var out map[string]string
	for label, old := range oldLabels {
		v, ok := n.Labels[label]
		if have, there := n.Labels[old]; !ok || there && have == v {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[old] = v
	}
	return out
}
