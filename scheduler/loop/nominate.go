// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/scheduler/framework"
	"keelson/scheduler/preempt"
	"keelson/scheduler/state"
)

// nominations are the nodes that pods wait for, and what makes the queue try a nominated pod again.
type nominations struct {
	cache     *state.Cache
	queue     *lanes
	evictions *preempt.Evictions
}

// set sets the nominated node of a pod; empty: none. It replaces an earlier nomination.
func (n *nominations) set(pod *state.PodInfo, node string) {
	if node == "" {
		n.clear(pod.Pod)
		return
	}
	before := n.cache.Nominated(pod.Pod.UID)
	n.cache.Nominate(pod, node)
	if !n.queue.Has(pod.Pod.UID) { // it was deleted during the calls of extenders
		n.clear(pod.Pod)
		return
	}
	if before != "" && before != node {
		n.resourcesFreed(pod.Pod, before)
	}
}

// clear removes a pod's nomination. Unless the pod is on that node, other pods can use the resources that
// were kept for it.
func (n *nominations) clear(pod *corev1.Pod) {
	node := n.cache.Unnominate(pod.UID)
	if node == "" {
		return
	}
	n.evictions.Forget(pod.UID) // the pod no longer waits for them
	if at, _ := n.cache.Where(pod.UID); at != node {
		n.resourcesFreed(pod, node)
	}
}

// resourcesFreed reports to the queue that a pod no longer uses resources of a node.
func (n *nominations) resourcesFreed(pod *corev1.Pod, node string) {
	n.evictions.VictimGone(pod.UID)
	view := n.cache.NodeView(node)
	n.queue.OnEvent(framework.Event{Kinds: framework.AssignedPodDelete, OldPod: pod, NodeView: view})
	if view == nil {
		return
	}
	for _, p := range view.Nominated {
		if p.Priority > state.Priority(pod) {
			n.activateIfVictimsGone(p, view)
		}
	}
}

// activateIfVictimsGone makes the queue try a nominated pod again when the last of its victims is gone, even if another
// pod has taken the resources: then the pod needs another node.
func (n *nominations) activateIfVictimsGone(p *state.PodInfo, view *state.NodeView) {
	left := func(o *state.PodInfo) bool { return o.Priority < p.Priority && o.Pod.DeletionTimestamp != nil }
	if !n.evictions.Pending(p.Pod.UID) && !slices.ContainsFunc(view.Node.Pods, left) {
		n.queue.Activate(p.Pod.UID)
	}
}

// evictionsDone is called when all victims of a pod have been deleted, or their deletion failed.
func (n *nominations) evictionsDone(pod *corev1.Pod, err error) {
	if err != nil {
		n.queue.Activate(pod.UID)
		return
	}
	view := n.cache.NodeView(n.cache.Nominated(pod.UID))
	if view == nil {
		return
	}
	for _, p := range view.Nominated {
		if p.Pod.UID == pod.UID {
			n.activateIfVictimsGone(p, view)
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
	c.Pod = c.Pod.Written(now) // if the binding fails, the report is a patch of this version
}
