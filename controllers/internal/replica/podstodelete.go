// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	podkind "keelson/api/core/pod"
)

// podsToDelete returns the n pods of active to delete first, in Kubernetes' order: see rankPod.
func podsToDelete(active, related []*corev1.Pod, n int, now time.Time) []*corev1.Pod {
	onNode := map[string]int{}
	for _, p := range related {
		if podkind.Active(p) {
			onNode[p.Spec.NodeName]++
		}
	}
	ranked := make([]rankedPod, len(active))
	for i, p := range active {
		ranked[i] = rankPod(p, onNode[p.Spec.NodeName])
	}
	slices.SortFunc(ranked, func(a, b rankedPod) int { return a.compare(b, now) })
	out := make([]*corev1.Pod, n)
	for i := range out {
		out[i] = ranked[i].pod
	}
	return out
}

// rankedPod is a pod with the values that determine its rank.
type rankedPod struct {
	pod        *corev1.Pod
	assigned   int // 0: not bound to a node
	phase      int
	ready      int
	cost       int32
	podsOnNode int // number of active related pods on its node
	since      time.Time
	restarts   int32
	sidecars   int32
}

// rankPod reads the values that order pods for deletion, lower first: unassigned before assigned; Pending before
// Unknown before Running; not ready before ready; lower pod-deletion-cost; more related pods on the same node; ready
// for a shorter time; more restarts; newer.
func rankPod(pod *corev1.Pod, podsOnNode int) rankedPod {
	c := rankedPod{pod: pod, podsOnNode: podsOnNode}
	if pod.Spec.NodeName != "" {
		c.assigned = 1
	}
	switch pod.Status.Phase {
	case corev1.PodUnknown:
		c.phase = 1
	case corev1.PodRunning:
		c.phase = 2
	}
	if podkind.Ready(pod) {
		c.ready = 1
		c.since = podkind.Condition(pod, corev1.PodReady).LastTransitionTime.Time
	}
	// The server rejects invalid costs; an invalid one counts as 0.
	if cost, err := strconv.ParseInt(pod.Annotations[corev1.PodDeletionCost], 10, 32); err == nil {
		c.cost = int32(cost)
	}
	for _, s := range pod.Status.ContainerStatuses {
		c.restarts = max(c.restarts, s.RestartCount)
	}
	c.sidecars = sidecarRestarts(pod)
	return c
}

func sidecarRestarts(p *corev1.Pod) int32 {
	var most int32
	for i := range p.Spec.InitContainers {
		ic := &p.Spec.InitContainers[i]
		if ic.RestartPolicy == nil || *ic.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue
		}
		for _, s := range p.Status.InitContainerStatuses {
			if s.Name == ic.Name {
				most = max(most, s.RestartCount)
			}
		}
	}
	return most
}

func (c rankedPod) compare(d rankedPod, now time.Time) int {
	if o := cmp.Or(
		cmp.Compare(c.assigned, d.assigned),
		cmp.Compare(c.phase, d.phase),
		cmp.Compare(c.ready, d.ready),
		cmp.Compare(c.cost, d.cost),
		cmp.Compare(d.podsOnNode, c.podsOnNode),
	); o != 0 {
		return o
	}
	if c.ready == 1 && !c.since.Equal(d.since) {
		return compareCreation(c.pod, d.pod, c.since, d.since, now)
	}
	if o := cmp.Or(cmp.Compare(d.restarts, c.restarts), cmp.Compare(d.sidecars, c.sidecars)); o != 0 {
		return o
	}
	a := c.pod.CreationTimestamp.Time
	b := d.pod.CreationTimestamp.Time
	if !a.Equal(b) {
		return compareCreation(c.pod, d.pod, a, b, now)
	}
	return strings.Compare(string(c.pod.UID), string(d.pod.UID))
}

// compareCreation sorts the later time first, but only if the ages differ by a power of two: among similar ages the
// choice is pseudo-random (by UID), so that a scale-down does not always hit the newest pods of one zone (KEP-2185).
func compareCreation(p, q *corev1.Pod, a, b, now time.Time) int {
	if a.IsZero() || b.IsZero() {
		return cmp.Compare(nonZero(a), nonZero(b))
	}
	if o := cmp.Compare(logBucket(now.Sub(a)), logBucket(now.Sub(b))); o != 0 {
		return o
	}
	return strings.Compare(string(p.UID), string(q.UID))
}

func nonZero(t time.Time) int {
	if t.IsZero() {
		return 0
	}
	return 1
}

func logBucket(age time.Duration) int {
	if age <= 0 {
		return -1
	}
	return int(math.Log2(float64(age)))
}
