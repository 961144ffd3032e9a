// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
)

// simulatedBy is the annotation of fake nodes, fakeTaint their taint.
const (
	simulatedBy = "keelson.dev/simulated-by"
	fakeTaint   = "keelson.dev/fake"
)

// Node explains why a node is not Ready, or accepts no pods. lease is its kubelet's; nil: none, or it may not be read.
func Node(node *corev1.Node, lease *coordinationv1.Lease, now time.Time) *Answer {
	answer := of("node", node)
	answer.State = "NotReady"
	var ready *corev1.NodeCondition
	for i := range node.Status.Conditions {
		c := &node.Status.Conditions[i]
		switch {
		case c.Type == corev1.NodeReady:
			ready = c
		case c.Status == corev1.ConditionTrue:
			answer.because("%s since %s: %s", c.Type, clock(c.LastTransitionTime.Time),
				answer.quote(c.Reason, c.Message))
			relief(answer, c.Type)
		}
	}
	switch {
	case ready == nil:
		answer.because("its kubelet has not written a condition Ready yet")
		answer.do("on that machine, look at the kubelet's log (`keelson logs kubelet`)")
	case ready.Status == corev1.ConditionTrue:
		answer.State = "Ready"
	case ready.Status == corev1.ConditionFalse:
		answer.because("its kubelet says, since %s: %s", clock(ready.LastTransitionTime.Time),
			answer.quote(ready.Reason, ready.Message))
		answer.do("on that machine, repair what the kubelet names; its log says more (`keelson logs kubelet`)")
	default:
		silent(answer, node, ready, lease, now)
	}
	if node.Spec.Unschedulable {
		answer.because("it is cordoned: no new pods are scheduled to it")
		answer.do("`kubectl uncordon %s` lets pods in again", node.Name)
	}
	if node.Annotations[simulatedBy] != "" {
		answer.because("it is a fake node: nothing runs on it, and its pods are Running in name only, without logs, " +
			"exec and packets")
	}
	for _, t := range node.Spec.Taints {
		switch {
		case t.Key == fakeTaint:
			answer.do("a pod may go there in name only with spec.tolerations: [{key: %s, operator: Exists}]", fakeTaint)
		case !strings.HasPrefix(t.Key, "node."): // controllers remove those: node.kubernetes.io/not-ready and the like
			answer.do("`kubectl taint node %s %s:%s-` removes the taint, or give the pods a toleration", node.Name, t.Key,
				t.Effect)
		}
		if t.Key != corev1.TaintNodeUnschedulable {
			answer.because("it has the taint %s: pods that do not tolerate it %s", t.ToString(), effect(t.Effect))
		}
	}
	if node.DeletionTimestamp != nil {
		answer.because("it is being deleted; finalizers: %s", or(some(node.Finalizers), "none"))
	}
	if len(answer.Why) == 0 {
		answer.because("its kubelet reports no problem")
	}
	return answer
}

// InTrouble reports whether a node has a taint that Kubernetes sets for a condition of the node, and not for a cordon.
func InTrouble(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return strings.HasPrefix(t.Key, "node.kubernetes.io/") && t.Key != corev1.TaintNodeUnschedulable
	})
}

// relief says what ends a pressure that the kubelet reports.
func relief(answer *Answer, pressure corev1.NodeConditionType) {
	switch pressure {
	case corev1.NodeDiskPressure:
		answer.do("free space on that machine (`df -h`, `keelson image ls`), or lower the kubelet's thresholds: " +
			"`keelson up --eviction-hard 'nodefs.available<5%%,imagefs.available<5%%'`")
	case corev1.NodeMemoryPressure:
		answer.do("find what uses the memory: `kubectl top pods -A --sort-by=memory`")
	case corev1.NodePIDPressure:
		answer.do("find what has so many processes on that machine: `ps -eo ppid= | sort | uniq -c | sort -n`")
	}
}

func silent(
	answer *Answer, node *corev1.Node, ready *corev1.NodeCondition, lease *coordinationv1.Lease, now time.Time,
) {
	since := ready.LastTransitionTime.Time
	if lease != nil && lease.Spec.RenewTime != nil && lease.Spec.RenewTime.After(since) {
		answer.because("its kubelet was silent until %s: %s", clock(since), answer.quote(ready.Reason, ready.Message))
		answer.because("its kubelet is back: it renewed its lease %s ago, and writes the node's conditions next",
			now.Sub(lease.Spec.RenewTime.Time).Round(time.Second))
		answer.do("wait a few seconds; if it stays so, look at the kubelet's log on that machine (`keelson logs kubelet`)")
		return
	}
	answer.because("its kubelet is silent: %s, since %s", answer.quote(ready.Reason, ready.Message), clock(since))
	if lease != nil && lease.Spec.RenewTime != nil {
		answer.because("it last renewed its lease %s ago", now.Sub(lease.Spec.RenewTime.Time).Round(time.Second))
	}
	if node.Annotations[simulatedBy] != "" {
		answer.do("it is simulated: `keelson node start %s`", node.Name)
		return
	}
	answer.do("see whether the machine runs, reaches the API server and runs its kubelet; `keelson node rm %s` if it "+
		"never comes back", node.Name)
	answer.cannot("whether the machine is down or the way to it is: both look alike from here")
}

func effect(e corev1.TaintEffect) string {
	switch e {
	case corev1.TaintEffectNoExecute:
		return "are evicted and not scheduled to it"
	case corev1.TaintEffectPreferNoSchedule:
		return "go elsewhere where they can"
	default:
		return "are not scheduled to it"
	}
}

// clock formats a time.
func clock(t time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return t.UTC().Format("2006-01-02 15:04:05") + " UTC"
}
