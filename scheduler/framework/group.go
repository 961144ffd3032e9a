// SPDX-License-Identifier: Apache-2.0

package framework

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/state"
)

// GroupAttempt is the failed attempt to schedule a pod group.
type GroupAttempt struct {
	Group state.PodGroup
	// Pods are the pods of the group without a node, in the order in which they were tried.
	Pods []*state.PodInfo
	// NominatedBefore returns a pod's nominated node from an earlier attempt; "": none.
	NominatedBefore func(types.UID) string
	// GroupOf returns the state of another pod's group.
	GroupOf func(*corev1.Pod) state.PodGroup
	// DryRunWithout tries to place the group in a copy of the cluster without the pods for which removed returns true.
	// If the group does not fit, why is the reason.
	DryRunWithout func(removed func(*state.PodInfo) bool) (t GroupDryRun, why *Status)
	// Nodes are all nodes of the cluster.
	Nodes []*state.NodeInfo
}

// GroupDryRun is a copy of the cluster in which the group has been placed. It is not safe for concurrent use.
type GroupDryRun interface {
	// Nodes returns the nodes of the group's pods, by the pods' UIDs.
	Nodes() map[types.UID]string
	// Reprieve puts the removed pods back onto their nodes: pods[i] onto nodes[i]. It returns false, and puts none
	// back, if the group then no longer fits, or if that is too expensive to determine.
	Reprieve(pods []*state.PodInfo, nodes []string) bool
}
