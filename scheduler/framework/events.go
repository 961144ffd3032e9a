// SPDX-License-Identifier: Apache-2.0

package framework

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/scheduler/state"
)

// EventKinds is a set of kinds of cluster events.
type EventKinds uint32

// The kinds of events.
const (
	NodeAdd EventKinds = 1 << iota
	NodeAllocatable
	NodeLabels
	NodeTaints
	NodeImages
	NodeDeclaredFeatures
	AssignedPodAdd
	AssignedPodLabels
	AssignedPodScaleDown
	AssignedPodDelete
	// UnscheduledPodUpdate is a change of the waiting pod itself that may matter to any plugin.
	UnscheduledPodUpdate
	NamespaceLabels
	// Storage is a change of a PersistentVolume, a StorageClass or an object of a CSI driver.
	Storage
	PersistentVolumeClaims
	// Objects is a change of an object of another resource, which a plugin has registered
	// (ClusterEventWithHint.Resource).
	Objects
	// NodeOther is any other change of a node, except the timestamps of its heartbeats.
	NodeOther
	AnyKind EventKinds = 1<<iota - 1
)

var kindNames = map[EventKinds]string{
	NodeAdd:                "NodeAdd",
	NodeAllocatable:        "NodeAllocatableChange",
	NodeLabels:             "NodeLabelChange",
	NodeTaints:             "NodeTaintChange",
	NodeImages:             "NodeImagesChange",
	NodeDeclaredFeatures:   "NodeDeclaredFeatureChange",
	AssignedPodAdd:         "AssignedPodAdd",
	AssignedPodLabels:      "AssignedPodLabelChange",
	AssignedPodScaleDown:   "AssignedPodScaleDown",
	AssignedPodDelete:      "AssignedPodDelete",
	UnscheduledPodUpdate:   "PodUpdate",
	NamespaceLabels:        "NamespaceLabelChange",
	Storage:                "StorageChange",
	PersistentVolumeClaims: "PersistentVolumeClaimChange",
	Objects:                "ObjectChange",
	NodeOther:              "NodeChange",
}

// String names a single kind.
func (k EventKinds) String() string { return kindNames[k] }

// Event is one change in the cluster. The kind determines which Old and New fields are set: for a deleted pod only
// OldPod.
type Event struct {
	Kinds            EventKinds // an update of a node may have several
	OldNode, NewNode *corev1.Node
	OldPod, NewPod   *corev1.Pod
	Claim            *corev1.PersistentVolumeClaim
	// NodeView is the node, with its nominated pods, after a pod on it was deleted or scaled down; nil: unknown.
	NodeView *state.NodeView
	// Resource is set for Objects. OldObject and NewObject are set for Objects and Volumes: OldObject is nil for a new
	// object, NewObject for a deleted one. Custom resources are *unstructured.Unstructured.
	Resource             schema.GroupVersionResource
	OldObject, NewObject any
}

// Label returns the name of the event's first kind, for logs and metrics.
func (e *Event) Label() string {
	if e.Kinds == Objects {
		return e.Resource.Resource + "Change"
	}
	for k := EventKinds(1); k < AnyKind; k <<= 1 {
		if e.Kinds&k != 0 {
			return k.String()
		}
	}
	return "Unknown"
}

// ClusterEventWithHint registers event kinds that may make a refused pod schedulable.
type ClusterEventWithHint struct {
	Kinds EventKinds
	// Resource is the resource of the kind Objects; the scheduler watches it.
	Resource schema.GroupVersionResource
	// QueueingHintFn reports whether this event may make the pod schedulable; nil means that every such event may. It
	// must be quick and must not block.
	QueueingHintFn func(pod *state.PodInfo, e *Event) bool
	// ByClass: Worth returns the same for all pods with the same class (state.PodInfo.AppendClass), priority and
	// preemption policy, except pods that are nominated to the event's node.
	ByClass bool
}

// Match reports whether the hint is for events of e's kind.
func (h *ClusterEventWithHint) Match(e *Event) bool {
	return h.Kinds&e.Kinds&^Objects != 0 || h.Kinds&e.Kinds&Objects != 0 && h.Resource == e.Resource
}
