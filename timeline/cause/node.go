// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
)

// simulatedBy is the annotation of fake nodes.
const simulatedBy = "keelson.dev/simulated-by"

// Node explains why a node is not Ready, or accepts no pods. lease is its kubelet's; nil: none, or it may not be read.
func Node(n *corev1.Node, lease *coordinationv1.Lease, now time.Time) *Answer {
	a := of("node", n)
	a.State = "NotReady"
	var ready *corev1.NodeCondition
	for i := range n.Status.Conditions {
		c := &n.Status.Conditions[i]
		switch {
		case c.Type == corev1.NodeReady:
			ready = c
		case c.Status == corev1.ConditionTrue:
			a.because("%s since %s: %s", c.Type, clock(c.LastTransitionTime.Time), said(c.Reason, c.Message))
		}
	}
	switch {
	case ready == nil:
		a.because("its kubelet has not written a condition Ready yet")
		a.do("on that machine, look at the kubelet's log (`keelson logs kubelet`)")
	case ready.Status == corev1.ConditionTrue:
		a.State = "Ready"
	case ready.Status == corev1.ConditionFalse:
		a.because("its kubelet says, since %s: %s", clock(ready.LastTransitionTime.Time),
			said(ready.Reason, ready.Message))
		a.do("on that machine, mend what the kubelet names; its log says more (`keelson logs kubelet`)")
	default:
		silent(a, n, ready, lease, now)
	}
	if n.Spec.Unschedulable {
		a.because("it is cordoned: no new pods are scheduled to it")
		a.do("`kubectl uncordon %s` lets pods in again", n.Name)
	}
	for _, t := range n.Spec.Taints {
		if t.Key != corev1.TaintNodeUnschedulable {
			a.because("it has the taint %s: pods that do not tolerate it %s", t.ToString(), effect(t.Effect))
		}
	}
	if n.DeletionTimestamp != nil {
		a.because("it is being deleted; finalizers: %s", or(some(n.Finalizers), "none"))
	}
	if len(a.Why) == 0 {
		a.because("nothing is wrong that its kubelet tells")
	}
	return a
}

func silent(a *Answer, n *corev1.Node, ready *corev1.NodeCondition, lease *coordinationv1.Lease, now time.Time) {
	a.because("its kubelet is silent: %s, since %s", said(ready.Reason, ready.Message),
		clock(ready.LastTransitionTime.Time))
	if lease != nil && lease.Spec.RenewTime != nil {
		a.because("it last renewed its lease %s ago", now.Sub(lease.Spec.RenewTime.Time).Round(time.Second))
	}
	if n.Annotations[simulatedBy] != "" {
		a.do("it is simulated: `keelson node start %s`", n.Name)
		return
	}
	a.do("see whether the machine runs, reaches the API server and runs its kubelet; `keelson node rm %s` if it "+
		"never comes back", n.Name)
	a.cannot("whether the machine is down or the way to it is: both look alike from here")
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
