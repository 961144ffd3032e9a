// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// nominate notes on which node preemption makes room for a pod; empty: on none. An earlier nomination is given up.
func (s *Scheduler) nominate(pod *state.PodInfo, node string) {
	if node == "" {
		s.denominate(pod.Pod)
		return
	}
	before := s.cache.Nominated(pod.Pod.UID)
	s.cache.Nominate(pod, node)
	if !s.known(pod) { // it was deleted while extenders were asked
		s.denominate(pod.Pod)
		return
	}
	if before != "" && before != node {
		s.freed(pod.Pod, before)
	}
}

// denominate takes a pod's nomination back. Unless the pod has come to that node, this frees the room that was kept for it.
func (s *Scheduler) denominate(pod *corev1.Pod) {
	node := s.cache.Unnominate(pod.UID)
	if node == "" {
		return
	}
	s.evictions.Forget(pod.UID) // the pod no longer waits for them
	if at, _ := s.cache.Where(pod.UID); at != node {
		s.freed(pod, node)
	}
}

// freed reports to the queue that a node has more room, because a pod no longer uses it.
func (s *Scheduler) freed(pod *corev1.Pod, node string) {
	s.evictions.Gone(pod.UID)
	view := s.cache.NodeView(node)
	s.queue.OnEvent(framework.Event{Kinds: framework.PodDelete, OldPod: pod, NodeView: view})
	if view == nil {
		return
	}
	for _, p := range view.Nominated {
		if p.Priority > state.Priority(pod) {
			s.victimGone(p, view)
		}
	}
}

// victimGone has a nominated pod tried again when the last of its victims is gone, even if its room is another's by now: then it has to
// look elsewhere.
func (s *Scheduler) victimGone(p *state.PodInfo, view *state.NodeView) {
	left := func(o *state.PodInfo) bool { return o.Priority < p.Priority && o.Pod.DeletionTimestamp != nil }
	if !s.evictions.Of(p.Pod.UID) && !slices.ContainsFunc(view.Node.Pods, left) {
		s.queue.Activate(p.Pod.UID)
	}
}

// evicted is called when all victims of a pod have been deleted, or their deletion failed.
func (s *Scheduler) evicted(pod *corev1.Pod, err error) {
	if err != nil {
		s.queue.Activate(pod.UID)
		return
	}
	view := s.cache.NodeView(s.cache.Nominated(pod.UID))
	if view == nil {
		return
	}
	for _, p := range view.Nominated {
		if p.Pod.UID == pod.UID {
			s.victimGone(p, view)
		}
	}
}
