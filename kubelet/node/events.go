// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// recorded is what this run of the kubelet has recorded in events of the node.
type recorded struct {
	starting      bool
	rebooted      bool
	unschedulable bool
	conditions    map[corev1.NodeConditionType]corev1.ConditionStatus
}

// nothingRecorded is the state at start. A node that is not ready at first needs no event.
func nothingRecorded() recorded {
	return recorded{conditions: map[corev1.NodeConditionType]corev1.ConditionStatus{
		corev1.NodeReady: corev1.ConditionFalse,
	}}
}

// reasons are the event reasons for each condition that becomes true or false.
var reasons = []struct {
	kind      corev1.NodeConditionType
	so, notSo string
}{
	{kind: corev1.NodeMemoryPressure, so: "NodeHasInsufficientMemory", notSo: "NodeHasSufficientMemory"},
	{kind: corev1.NodeDiskPressure, so: "NodeHasDiskPressure", notSo: "NodeHasNoDiskPressure"},
	{kind: corev1.NodePIDPressure, so: "NodeHasInsufficientPID", notSo: "NodeHasSufficientPID"},
	{kind: corev1.NodeReady, so: "NodeReady", notSo: "NodeNotReady"},
}

// recordEvents records Kubernetes' events for what a written status changed, compared with have.
func (k *Keeper) recordEvents(have *corev1.Node, now *corev1.NodeStatus) {
	if !k.recorded.starting {
		k.recorded.starting = true
		k.cfg.Events.Event(k.Ref(), corev1.EventTypeNormal, "Starting", "Starting kubelet.")
	}
	if before := have.Status.NodeInfo.BootID; before != "" && before != k.machine.BootID && !k.recorded.rebooted {
		k.recorded.rebooted = true
		k.cfg.Events.Eventf(k.Ref(), corev1.EventTypeWarning, "Rebooted", "Node %s has been rebooted, boot id: %s",
			k.name, k.machine.BootID)
	}
	for _, r := range reasons {
		status := conditionOf(now, r.kind)
		before := conditionOf(&have.Status, r.kind)
		said := k.recorded.conditions[r.kind]
		k.recorded.conditions[r.kind] = status
		if status == said && status == before {
			continue
		}
		reason := r.notSo
		if status == corev1.ConditionTrue {
			reason = r.so
		}
		k.recordState(reason)
	}
	if have.Spec.Unschedulable != k.recorded.unschedulable {
		k.recorded.unschedulable = have.Spec.Unschedulable
		reason := "NodeSchedulable"
		if have.Spec.Unschedulable {
			reason = "NodeNotSchedulable"
		}
		k.recordState(reason)
	}
}

func (k *Keeper) recordState(reason string) {
	k.cfg.Events.Eventf(k.Ref(), corev1.EventTypeNormal, reason, "Node %s status is now: %s", k.name, reason)
}

// conditionOf returns the status of a condition; empty: the condition is missing.
func conditionOf(s *corev1.NodeStatus, kind corev1.NodeConditionType) corev1.ConditionStatus {
	i := slices.IndexFunc(s.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
	if i < 0 {
		return ""
	}
	return s.Conditions[i].Status
}
