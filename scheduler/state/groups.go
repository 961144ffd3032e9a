// SPDX-License-Identifier: Apache-2.0

package state

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/types"

	podkind "keelson/api/core/pod"
)

// GroupKey names a pod group.
type GroupKey = types.NamespacedName

// GroupOf returns the pod group of a pod; false: none.
func GroupOf(pod *corev1.Pod) (GroupKey, bool) {
	if pod.Spec.SchedulingGroup == nil { // nearly always
		return GroupKey{}, false
	}
	name := podkind.Group(pod)
	return GroupKey{Namespace: pod.Namespace, Name: name}, name != ""
}

// Groups holds the PodGroup objects and counts the pods of each group. Safe for several goroutines.
type Groups struct {
	mu  sync.Mutex
	all map[GroupKey]*groupEntry
}

type groupEntry struct {
	object    *schedulingv1beta1.PodGroup
	pods      map[types.UID]bool // true: the pod has a node or is assumed
	scheduled int
}

// PodGroup is a group's current state.
type PodGroup struct {
	Object *schedulingv1beta1.PodGroup // shared; nil: there is none
	// Pods counts the pods that have not finished, Scheduled those of them that have a node or are assumed.
	Pods, Scheduled int
}

// NewGroups returns an empty Groups.
func NewGroups() *Groups { return &Groups{all: map[GroupKey]*groupEntry{}} }

// MinCount is the number of pods that must have nodes before any is bound: 1 unless the group is a gang.
func (g *PodGroup) MinCount() int {
	if g.Object == nil || g.Object.Spec.SchedulingPolicy.Gang == nil {
		return 1
	}
	return int(g.Object.Spec.SchedulingPolicy.Gang.MinCount)
}

// Priority returns spec.priority of the PodGroup object.
func (g *PodGroup) Priority() int32 {
	if g.Object == nil || g.Object.Spec.Priority == nil {
		return 0
	}
	return *g.Object.Spec.Priority
}

// DisruptionModeAll reports whether the group's pods leave together or not at all.
func (g *PodGroup) DisruptionModeAll() bool {
	return g.Object != nil && g.Object.Spec.DisruptionMode != nil && g.Object.Spec.DisruptionMode.All != nil
}

// Get returns a group's current state.
func (g *Groups) Get(key GroupKey) PodGroup {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, ok := g.all[key]
	if !ok {
		return PodGroup{}
	}
	return PodGroup{Object: e.object, Pods: len(e.pods), Scheduled: e.scheduled}
}

// PodsDisruptedTogether are the pods with nodes of a group whose pods leave together or not at all (disruptionMode:
// all); false: the group says no such thing.
func (g *Groups) PodsDisruptedTogether(key GroupKey) ([]types.UID, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, ok := g.all[key]
	if !ok || !(&PodGroup{Object: e.object}).DisruptionModeAll() {
		return nil, false
	}
	var out []types.UID
	for uid, scheduled := range e.pods {
		if scheduled {
			out = append(out, uid)
		}
	}
	return out, true
}

// SetObject adds or replaces the PodGroup object; nil removes it.
func (g *Groups) SetObject(key GroupKey, o *schedulingv1beta1.PodGroup) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.entryLocked(key).object = o
	g.dropIfEmptyLocked(key)
}

// AddPod adds a pod; it counts as scheduled if spec.nodeName is set. Like all methods with a pod it ignores pods
// without a group, and does nothing when g is nil.
func (g *Groups) AddPod(pod *corev1.Pod) {
	g.update(pod, func(e *groupEntry) {
		if _, known := e.pods[pod.UID]; !known {
			e.pods[pod.UID] = false
		}
		if pod.Spec.NodeName != "" {
			e.setScheduledLocked(pod.UID, true)
		}
	})
}

// Assume counts a pod as scheduled. It ignores pods that were not added or have been removed.
func (g *Groups) Assume(pod *corev1.Pod) {
	g.update(pod, func(e *groupEntry) { e.setScheduledLocked(pod.UID, true) })
}

// Forget undoes Assume.
func (g *Groups) Forget(pod *corev1.Pod) {
	g.update(pod, func(e *groupEntry) { e.setScheduledLocked(pod.UID, false) })
}

func (g *Groups) update(pod *corev1.Pod, f func(*groupEntry)) {
	key, ok := GroupOf(pod)
	if !ok || g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	f(g.entryLocked(key))
	g.dropIfEmptyLocked(key)
}

// RemovePod removes a pod that was deleted or has finished.
func (g *Groups) RemovePod(pod *corev1.Pod) {
	g.update(pod, func(e *groupEntry) {
		e.setScheduledLocked(pod.UID, false)
		delete(e.pods, pod.UID)
	})
}

func (g *Groups) entryLocked(key GroupKey) *groupEntry {
	e, ok := g.all[key]
	if !ok {
		e = &groupEntry{pods: map[types.UID]bool{}}
		g.all[key] = e
	}
	return e
}

func (g *Groups) dropIfEmptyLocked(key GroupKey) {
	if e := g.all[key]; e.object == nil && len(e.pods) == 0 {
		delete(g.all, key)
	}
}

func (e *groupEntry) setScheduledLocked(uid types.UID, scheduled bool) {
	was, known := e.pods[uid]
	if !known || was == scheduled {
		return
	}
	e.pods[uid] = scheduled
	if scheduled {
		e.scheduled++
	} else {
		e.scheduled--
	}
}

// Len counts the groups that have an object or pods.
func (g *Groups) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.all)
}
