// SPDX-License-Identifier: Apache-2.0

package framework

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/scheduler/state"
)

// Kinds is a set of kinds of cluster events.
type Kinds uint32

// The kinds of events. Pod events are about pods that have a node, except Self.
const (
	NodeAdd Kinds = 1 << iota
	NodeAllocatable
	NodeLabels
	NodeTaints
	NodeImages
	NodeFeatures
	PodAdd
	PodLabels
	PodShrinks
	PodDelete
	// Self is a change of the waiting pod itself that may matter to any plugin.
	Self
	NamespaceLabels
	// Volumes is a change of a PersistentVolume, a StorageClass or an object of a CSI driver; Claims of a PersistentVolumeClaim.
	Volumes
	Claims
	// Objects is a change of an object of another resource, which a plugin has registered (ClusterEventWithHint.Resource).
	Objects
	// NodeOther is any other change of a node, except the timestamps of its heartbeats.
	NodeOther
	AnyKind Kinds = 1<<iota - 1
)

var kindNames = map[Kinds]string{
	NodeAdd: "NodeAdd", NodeAllocatable: "NodeAllocatableChange", NodeLabels: "NodeLabelChange", NodeTaints: "NodeTaintChange",
	NodeImages: "NodeImagesChange", NodeFeatures: "NodeDeclaredFeatureChange", PodAdd: "AssignedPodAdd", PodLabels: "AssignedPodLabelChange", PodShrinks: "AssignedPodScaleDown",
	PodDelete: "AssignedPodDelete", Self: "PodUpdate", NamespaceLabels: "NamespaceLabelChange", Volumes: "StorageChange", Claims: "PersistentVolumeClaimChange", Objects: "ObjectChange", NodeOther: "NodeChange",
}

// String names a single kind.
func (k Kinds) String() string { return kindNames[k] }

// Event is one change in the cluster. The kind determines which Old and New fields are set: for a deleted pod only OldPod.
type Event struct {
	Kinds            Kinds // an update of a node may have several
	OldNode, NewNode *corev1.Node
	OldPod, NewPod   *corev1.Pod
	Claim            *corev1.PersistentVolumeClaim
	// NodeView is the node, with its nominated pods, after a pod on it was deleted or scaled down; nil: unknown.
	NodeView *state.NodeView
	// Resource is set for Objects. OldObject and NewObject are set for Objects and Volumes: OldObject is nil for a new object, NewObject
	// for a deleted one. Custom resources are *unstructured.Unstructured.
	Resource             schema.GroupVersionResource
	OldObject, NewObject any
}

// Label returns the name of the event's first kind, for logs and metrics.
func (e *Event) Label() string {
	if e.Kinds == Objects {
		return e.Resource.Resource + "Change"
	}
	for k := Kinds(1); k < AnyKind; k <<= 1 {
		if e.Kinds&k != 0 {
			return k.String()
		}
	}
	return "Unknown"
}

// ClusterEventWithHint registers event kinds that may make a refused pod schedulable. Worth is the QueueingHint.
type ClusterEventWithHint struct {
	On Kinds
	// Resource is the resource of the kind Objects; the scheduler watches it.
	Resource schema.GroupVersionResource
	// Worth reports whether this event may make the pod schedulable; nil means that every such event may. It must be quick and must not
	// block.
	Worth func(pod *state.PodInfo, e *Event) bool
	// ByClass: Worth returns the same for all pods with the same class (state.PodInfo.AppendClass), priority and preemption policy, except
	// pods that are nominated to the event's node.
	ByClass bool
}

// About reports whether the hint is about events of e's kind.
func (h *ClusterEventWithHint) About(e *Event) bool {
	return h.On&e.Kinds&^Objects != 0 || h.On&e.Kinds&Objects != 0 && h.Resource == e.Resource
}
