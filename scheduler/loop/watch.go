// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"cmp"
	"log/slog"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	podkind "keelson/api/core/pod"
	"keelson/scheduler/core"
	"keelson/scheduler/framework"
	"keelson/scheduler/source"
	"keelson/scheduler/state"
)

// handlers are what is called when something happens in the cluster: they write it into the cache of core, and notify
// the queue.
type handlers struct {
	core        *core.Core
	queue       *lanes
	nominations *nominations
	bindings    *waitingBindings
	profiles    map[string]*profile
	conditions  *groupWrites
	reports     *reporter
	log         *slog.Logger
}

func (h *handlers) changes() source.Changes {
	return source.Changes{
		Namespaces: source.Handlers[corev1.Namespace]{Set: h.setNamespace, Gone: h.dropNamespace},
		Nodes:      source.Handlers[corev1.Node]{Set: h.setNode, Gone: h.dropNode},
		Pods:       source.Handlers[corev1.Pod]{Set: h.setPod, Gone: h.dropPod},
		Groups:     source.Handlers[schedulingv1beta1.PodGroup]{Set: h.setGroup, Gone: h.dropGroup},
		Object:     h.queue.OnEvent,

		InvalidPolicy: h.policyInvalid,
	}
}

func (h *handlers) setNamespace(_, ns *corev1.Namespace) {
	h.core.Cache.SetNamespace(ns.Name, ns.Labels)
	h.queue.OnEvent(framework.Event{Kinds: framework.NamespaceLabels})
}

func (h *handlers) dropNamespace(ns *corev1.Namespace) { h.core.Cache.RemoveNamespace(ns.Name) }

func (h *handlers) setNode(old, node *corev1.Node) {
	h.core.Cache.SetNode(node)
	e := framework.Event{Kinds: framework.NodeAdd, NewNode: node}
	if old != nil {
		e.OldNode = old
		e.Kinds = nodeChange(old, node)
	}
	h.queue.OnEvent(e)
}

func (h *handlers) dropNode(node *corev1.Node) { h.core.Cache.RemoveNode(node.Name) }

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

func (h *handlers) setPod(old, pod *corev1.Pod) {
	switch {
	case podkind.Terminal(pod):
		h.dropPod(pod)
	case pod.Spec.NodeName != "":
		h.setBoundPod(old, pod)
	case h.profiles[pod.Spec.SchedulerName] != nil && pod.DeletionTimestamp == nil:
		h.core.Groups.AddPod(pod)
		if _, assumed := h.core.Cache.Where(pod.UID); assumed {
			if h.queue.Has(pod.UID) { // its binding cycle is running, and may fail
				h.queue.Set(pod)
			}
			return
		}
		if n := pod.Status.NominatedNodeName; n != "" && h.core.Cache.Nominated(pod.UID) == "" {
			h.core.Cache.Nominate(state.NewPodInfo(pod), n)
		}
		h.queue.Set(pod)
	default:
		h.bindings.cancel(pod.UID)
		h.queue.Delete(pod.UID)
		h.nominations.clear(pod)
		h.core.Groups.RemovePod(pod)
	}
}

func (h *handlers) setBoundPod(old, pod *corev1.Pod) {
	h.core.Cache.SetPod(pod)
	h.core.Groups.AddPod(pod)
	if old == nil || old.Spec.NodeName == "" {
		h.queue.Delete(pod.UID)
		h.nominations.clear(pod)
		h.queue.OnEvent(framework.Event{Kinds: framework.AssignedPodAdd, NewPod: pod})
		return
	}
	e := framework.Event{Kinds: podChange(old, pod), OldPod: old, NewPod: pod}
	if e.Kinds&framework.AssignedPodScaleDown != 0 {
		e.NodeView = h.core.Cache.NodeView(pod.Spec.NodeName)
	}
	h.queue.OnEvent(e)
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

func (h *handlers) dropPod(pod *corev1.Pod) {
	h.bindings.cancel(pod.UID)
	h.queue.Delete(pod.UID)
	h.nominations.clear(pod)
	node, _ := h.core.Cache.Where(pod.UID)
	h.core.Cache.RemovePod(pod.UID)
	h.core.Groups.RemovePod(pod)
	if node = cmp.Or(node, pod.Spec.NodeName); node != "" {
		h.nominations.resourcesFreed(pod, node)
	}
}

func (h *handlers) policyInvalid(obj *unstructured.Unstructured, message string) {
	h.log.Warn("scheduling policy cannot be compiled", "policy", obj.GetName(), "error", message)
	for _, recorder := range h.reports.recorders {
		recorder.Eventf(obj, nil, corev1.EventTypeWarning, "InvalidPolicy", "Compiling", "%s", truncateNote(message))
		return
	}
}
