// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	podkind "keelson/api/core/pod"
	"keelson/scheduler/framework"
	"keelson/scheduler/source"
	"keelson/scheduler/state"
)

// changes are the handlers of what happens in the cluster: they write it into the cache, and notify the queue.
func (s *Scheduler) changes() source.Changes {
	return source.Changes{
		Namespaces: source.Handlers[corev1.Namespace]{Set: s.setNamespace, Gone: s.dropNamespace},
		Nodes:      source.Handlers[corev1.Node]{Set: s.setNode, Gone: s.dropNode},
		Pods:       source.Handlers[corev1.Pod]{Set: s.setPod, Gone: s.dropPod},
		Groups:     source.Handlers[schedulingv1beta1.PodGroup]{Set: s.setGroup, Gone: s.dropGroup},
		Object:     s.queue.OnEvent,

		InvalidPolicy: s.policyInvalid,
	}
}

func (s *Scheduler) setNamespace(_, ns *corev1.Namespace) {
	s.core.Cache.SetNamespace(ns.Name, ns.Labels)
	s.queue.OnEvent(framework.Event{Kinds: framework.NamespaceLabels})
}

func (s *Scheduler) dropNamespace(ns *corev1.Namespace) { s.core.Cache.RemoveNamespace(ns.Name) }

func (s *Scheduler) setNode(old, node *corev1.Node) {
	s.core.Cache.SetNode(node)
	e := framework.Event{Kinds: framework.NodeAdd, NewNode: node}
	if old != nil {
		e.OldNode = old
		e.Kinds = nodeChange(old, node)
	}
	s.queue.OnEvent(e)
}

func (s *Scheduler) dropNode(node *corev1.Node) { s.core.Cache.RemoveNode(node.Name) }

// nodeChange returns the event kinds of an update of a node.
func nodeChange(old, node *corev1.Node) framework.EventKinds {
	var eventKinds framework.EventKinds
	if !reflect.DeepEqual(old.Status.Allocatable, node.Status.Allocatable) {
		eventKinds |= framework.NodeAllocatable
	}
	if !maps.Equal(old.Labels, node.Labels) {
		eventKinds |= framework.NodeLabels
	}
	if old.Spec.Unschedulable != node.Spec.Unschedulable || !reflect.DeepEqual(old.Spec.Taints, node.Spec.Taints) {
		eventKinds |= framework.NodeTaints
	}
	if !slices.Equal(old.Status.DeclaredFeatures, node.Status.DeclaredFeatures) {
		eventKinds |= framework.NodeDeclaredFeatures
	}
	if otherNodeChange(old, node) {
		eventKinds |= framework.NodeOther
	}
	return eventKinds
}

// otherNodeChange reports whether anything else of a node changed, except the timestamps of its heartbeats.
func otherNodeChange(old, node *corev1.Node) bool {
	if !maps.Equal(old.Annotations, node.Annotations) || !reflect.DeepEqual(&old.Spec, &node.Spec) {
		return true
	}
	nodeStatus := old.Status
	b := node.Status
	if !slices.EqualFunc(nodeStatus.Conditions, b.Conditions, func(x, y corev1.NodeCondition) bool {
		x.LastHeartbeatTime = metav1.Time{}
		y.LastHeartbeatTime = metav1.Time{}
		return reflect.DeepEqual(x, y)
	}) {
		return true
	}
	nodeStatus.Conditions = nil
	b.Conditions = nil
	return !reflect.DeepEqual(&nodeStatus, &b)
}

func (s *Scheduler) setPod(old, pod *corev1.Pod) {
	switch {
	case podkind.Terminal(pod):
		s.dropPod(pod)
	case pod.Spec.NodeName != "":
		s.setBoundPod(old, pod)
	case s.profile(pod) != nil && pod.DeletionTimestamp == nil:
		s.core.Groups.AddPod(pod)
		if _, assumed := s.core.Cache.Where(pod.UID); assumed {
			if s.queue.Has(pod.UID) { // its binding cycle is running, and may fail
				s.queue.Set(pod)
			}
			return
		}
		if n := pod.Status.NominatedNodeName; n != "" && s.core.Cache.Nominated(pod.UID) == "" {
			s.core.Cache.Nominate(state.NewPodInfo(pod), n)
		}
		s.queue.Set(pod)
	default:
		s.waitingBindings.cancel(pod.UID)
		s.queue.Delete(pod.UID)
		s.clearNomination(pod)
		s.core.Groups.RemovePod(pod)
	}
}

func (s *Scheduler) setBoundPod(old, pod *corev1.Pod) {
	s.core.Cache.SetPod(pod)
	s.core.Groups.AddPod(pod)
	if old == nil || old.Spec.NodeName == "" {
		s.queue.Delete(pod.UID)
		s.clearNomination(pod)
		s.queue.OnEvent(framework.Event{Kinds: framework.AssignedPodAdd, NewPod: pod})
		return
	}
	e := framework.Event{Kinds: podChange(old, pod), OldPod: old, NewPod: pod}
	if e.Kinds&framework.AssignedPodScaleDown != 0 {
		e.NodeView = s.core.Cache.NodeView(pod.Spec.NodeName)
	}
	s.queue.OnEvent(e)
}

// podChange returns the event kinds of an update of a bound pod.
func podChange(old, pod *corev1.Pod) framework.EventKinds {
	var k framework.EventKinds
	if !maps.Equal(old.Labels, pod.Labels) || (old.DeletionTimestamp == nil) != (pod.DeletionTimestamp == nil) {
		k |= framework.AssignedPodLabels
	}
	if old.Generation != pod.Generation || !reflect.DeepEqual(old.Spec.Containers, pod.Spec.Containers) ||
		!state.SameAllocation(old, pod) {
		k |= framework.AssignedPodScaleDown
	}
	return k
}

func (s *Scheduler) dropPod(pod *corev1.Pod) {
	s.waitingBindings.cancel(pod.UID)
	s.queue.Delete(pod.UID)
	s.clearNomination(pod)
	node, _ := s.core.Cache.Where(pod.UID)
	s.core.Cache.RemovePod(pod.UID)
	s.core.Groups.RemovePod(pod)
	if node = cmp.Or(node, pod.Spec.NodeName); node != "" {
		s.resourcesFreed(pod, node)
	}
}

func (s *Scheduler) policyInvalid(obj *unstructured.Unstructured, message string) {
	s.log.Warn("scheduling policy cannot be compiled", "policy", obj.GetName(), "error", message)
	for _, recorder := range s.reports.recorders {
		recorder.Eventf(obj, nil, corev1.EventTypeWarning, "InvalidPolicy", "Compiling", "%s", truncateNote(message))
		return
	}
}

// known reports whether a pod may still exist.
func (s *Scheduler) known(pod *state.PodInfo) bool { return s.queue.Has(pod.Pod.UID) }
