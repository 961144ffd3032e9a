// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// nominate sets the nominated node of a pod; empty: none. It replaces an earlier nomination.
func (s *Scheduler) nominate(pod *state.PodInfo, node string) {
	if node == "" {
		s.clearNomination(pod.Pod)
		return
	}
	before := s.core.Cache.Nominated(pod.Pod.UID)
	s.core.Cache.Nominate(pod, node)
	if !s.known(pod) { // it was deleted during the calls of extenders
		s.clearNomination(pod.Pod)
		return
	}
	if before != "" && before != node {
		s.resourcesFreed(pod.Pod, before)
	}
}

// clearNomination removes a pod's nomination. Unless the pod is on that node, other pods can use the resources that
// were kept for it.
func (s *Scheduler) clearNomination(pod *corev1.Pod) {
	node := s.core.Cache.Unnominate(pod.UID)
	if node == "" {
		return
	}
	s.evictions.Forget(pod.UID) // the pod no longer waits for them
	if at, _ := s.core.Cache.Where(pod.UID); at != node {
		s.resourcesFreed(pod, node)
	}
}

// resourcesFreed reports to the queue that a pod no longer uses resources of a node.
func (s *Scheduler) resourcesFreed(pod *corev1.Pod, node string) {
	s.evictions.VictimGone(pod.UID)
	view := s.core.Cache.NodeView(node)
	s.queue.OnEvent(framework.Event{Kinds: framework.AssignedPodDelete, OldPod: pod, NodeView: view})
	if view == nil {
		return
	}
	for _, p := range view.Nominated {
		if p.Priority > state.Priority(pod) {
			s.activateIfVictimsGone(p, view)
		}
	}
}

// activateIfVictimsGone makes the queue try a nominated pod again when the last of its victims is gone, even if another
// pod has taken the resources: then the pod needs another node.
func (s *Scheduler) activateIfVictimsGone(p *state.PodInfo, view *state.NodeView) {
	left := func(o *state.PodInfo) bool { return o.Priority < p.Priority && o.Pod.DeletionTimestamp != nil }
	if !s.evictions.Pending(p.Pod.UID) && !slices.ContainsFunc(view.Node.Pods, left) {
		s.queue.Activate(p.Pod.UID)
	}
}

// evictionsDone is called when all victims of a pod have been deleted, or their deletion failed.
func (s *Scheduler) evictionsDone(pod *corev1.Pod, err error) {
	if err != nil {
		s.queue.Activate(pod.UID)
		return
	}
	view := s.core.Cache.NodeView(s.core.Cache.Nominated(pod.UID))
	if view == nil {
		return
	}
	for _, p := range view.Nominated {
		if p.Pod.UID == pod.UID {
			s.activateIfVictimsGone(p, view)
		}
	}
}

// writeExpectedNode writes the node of a pod whose binding may take long to status.nominatedNodeName, as kube-scheduler
// does: for other programs, and for a scheduler that takes over meanwhile. The API server clears it with the binding.
func (s *Scheduler) writeExpectedNode(ctx context.Context, c *bindingCycle) {
	pod := c.Pod.Pod
	if pod.Status.NominatedNodeName == c.Node {
		return
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status":   map[string]any{"nominatedNodeName": c.Node},
	})
	if err != nil {
		return // no value here can fail to encode
	}
	now, err := s.client.PodWrites(pod.Namespace).PatchStatus(ctx, pod.Name, patch)
	if err != nil {
		if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
			s.log.Warn("cannot write the expected node of a pod", "pod", pod.Namespace+"/"+pod.Name, "node", c.Node,
				"err", err)
		}
		return
	}
	written := *c.Pod
	written.Pod = now // if the binding fails, the report is a patch of this version
	c.Pod = &written
}
