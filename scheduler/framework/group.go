// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/state"
)

// PodGroupPostFilterer tries to make room for a pod group that cannot be placed.
type PodGroupPostFilterer interface {
	Plugin
	// PodGroupPostFilter returns the nodes where room is being made, by pod, and what users are told. Empty: no room is made.
	PodGroupPostFilter(ctx context.Context, a *GroupAttempt) (nominated map[types.UID]string, message string)
}

// GroupAttempt is a pod group that was not placed.
type GroupAttempt struct {
	Group state.PodGroup
	// Pods are those that have no node, in the order in which they were tried.
	Pods []*state.PodInfo
	// NominatedBefore is where room is being made for a pod already; "": nowhere.
	NominatedBefore func(types.UID) string
	// GroupOf is how the group of another pod stands.
	GroupOf func(*corev1.Pod) state.PodGroup
	// Without tries to place the group in a copy of the cluster without the pods for which gone holds. why: it cannot be placed there.
	Without func(gone func(*state.PodInfo) bool) (t GroupTrial, why *Status)
	// Nodes are those of the cluster.
	Nodes []*state.NodeInfo
}

// GroupTrial is a cluster in which the group has been placed. It belongs to one goroutine.
type GroupTrial interface {
	// Nodes tells where the pods went.
	Nodes() map[types.UID]string
	// Return puts pods back onto their nodes on, if the group stays placed nevertheless, and tells whether it does. It may say no where
	// finding out would cost too much.
	Return(p []*state.PodInfo, on []string) bool
}

// Judge asks the filters about one node for a pod; nil: it fits.
func (e *Engine) Judge(pod *state.PodInfo, s *state.Snapshot, node string) *Status {
	a := &Attempt{Pod: pod, Cycle: &CycleState{}, Snapshot: s}
	e.prepare(a)
	n := s.Node(node)
	switch {
	case a.Failed != nil:
		return a.Failed
	case a.All != nil:
		return a.All
	case n == nil:
		return Refuse("NodeName", Unresolvable, "node(s) have gone")
	}
	return Check(a.Filters, n)
}
