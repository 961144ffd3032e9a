// SPDX-License-Identifier: Apache-2.0

package framework

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/scheduler/state"
)

// Kinds is a set of kinds of cluster events.
type Kinds uint32

// What can happen. Pod events are about pods on nodes, except Self.
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
	// Volumes is a change of a PersistentVolume, StorageClass or of what CSI drivers say; Claims of a PersistentVolumeClaim.
	Volumes
	Claims
	// Objects is a change of an object of a resource that a plugin asked for.
	Objects
	// NodeOther is any other change of a node than those above, but for the times of its heartbeats.
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

// Event is one change in the cluster. Old and New are set as the kind needs: of a deleted pod only Old.
type Event struct {
	Kinds            Kinds // of a node update several at once
	OldNode, NewNode *corev1.Node
	OldPod, NewPod   *corev1.Pod
	Claim            *corev1.PersistentVolumeClaim
	// NodeView is the node after a pod has left it or shrunk, with its nominated pods. nil: not known.
	NodeView *state.NodeView
	// Of Objects: what they are, and their versions; nil before the first and after the last. Of custom resources *unstructured.Unstructured. Of
	// Volumes: the versions.
	Resource             schema.GroupVersionResource
	OldObject, NewObject any
}

// Label names the event's first kind, for people.
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

// ClusterEventWithHint says that events of some kinds may make a refused pod fit.
type ClusterEventWithHint struct {
	On Kinds
	// Resource is what the plugin asks for with Objects; the scheduler watches it.
	Resource schema.GroupVersionResource
	// Worth looks closer; nil means that every such event is worth a try. It must be quick and must not block.
	Worth func(pod *state.PodInfo, e *Event) bool
	// ByClass says that Worth's answer is the same for all pods of a class (state.PodInfo.AppendClass), priority and preemption policy that are
	// not nominated to the event's node.
	ByClass bool
}

// About reports whether the hint is about events of e's kind.
func (h *ClusterEventWithHint) About(e *Event) bool {
	return h.On&e.Kinds&^Objects != 0 || h.On&e.Kinds&Objects != 0 && h.Resource == e.Resource
}
