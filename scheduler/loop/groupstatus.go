// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"encoding/json"
	"sync"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/source"
	"keelson/scheduler/state"
)

// writeCondition writes the result of the attempt to the group's status. Once a group has been scheduled, the condition
// stays True.
func (a *groupAttempt) writeCondition(ctx context.Context, status metav1.ConditionStatus, reason, message string) {
	podGroup := a.State.Object
	if podGroup == nil {
		return
	}
	old := apimeta.FindStatusCondition(podGroup.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled)
	scheduledBefore := old != nil && old.Status == metav1.ConditionTrue ||
		a.s.conditions.wasScheduled(a.Key, podGroup.UID,
			status == metav1.ConditionTrue)
	if scheduledBefore && status != metav1.ConditionTrue {
		return
	}
	next := podGroup.DeepCopy()
	if !apimeta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
		Type:               schedulingv1beta1.PodGroupInitiallyScheduled,
		Status:             status,
		Reason:             reason,
		Message:            message,
		ObservedGeneration: podGroup.Generation,
	}) {
		return
	}
	now := apimeta.FindStatusCondition(next.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled)
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": podGroup.UID},
		"status":   map[string]any{"conditions": []metav1.Condition{*now}},
	})
	if err != nil {
		return // no value here can fail to encode
	}
	a.s.conditions.write(ctx, a.s.writers.enqueue, a.Key, func(ctx context.Context) {
		_, err := a.s.client.SchedulingV1beta1().PodGroups(podGroup.Namespace).Patch(ctx, podGroup.Name,
			types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
			a.s.log.Warn("cannot write the condition of a pod group", "podgroup", a.Key, "err", err)
		}
	})
}

// groupWrites writes the newest condition of each group, one at a time, so that an older one never overwrites it. The
// zero value is empty.
type groupWrites struct {
	mu      sync.Mutex
	pending map[state.GroupKey]func(context.Context) // nil: a write is running, and no other is pending
	done    map[state.GroupKey]types.UID             // groups that were scheduled; the informer may not know it yet
}

// wasScheduled reports whether a group was ever scheduled; now: it was scheduled just now.
func (w *groupWrites) wasScheduled(key state.GroupKey, uid types.UID, now bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now {
		if w.done == nil {
			w.done = map[state.GroupKey]types.UID{}
		}
		w.done[key] = uid
	}
	return w.done[key] == uid && uid != ""
}

// forget drops the state of a deleted group.
func (w *groupWrites) forget(key state.GroupKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.done, key)
}

func (w *groupWrites) write(ctx context.Context, later func(context.Context, func(
	context.Context,
)), key state.GroupKey, job func(context.Context),
) {
	w.mu.Lock()
	_, busy := w.pending[key]
	if w.pending == nil {
		w.pending = map[state.GroupKey]func(context.Context){}
	}
	w.pending[key] = job
	w.mu.Unlock()
	if !busy {
		later(ctx, func(ctx context.Context) {
			for job := w.next(key); job != nil; job = w.next(key) {
				job(ctx)
			}
		})
	}
}

// next returns the next write; nil: there is none and the caller is done.
func (w *groupWrites) next(key state.GroupKey) func(context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	job := w.pending[key]
	if w.pending[key] = nil; job == nil {
		delete(w.pending, key)
	}
	return job
}

func (h *handlers) setGroup(old, g *schedulingv1beta1.PodGroup) {
	h.core.Groups.SetObject(source.KeyOf(g), g)
	e := framework.Event{Kinds: framework.Objects, Resource: plugins.PodGroups, NewObject: g}
	if old != nil && old.UID == g.UID {
		e.OldObject = old
	}
	h.queue.OnEvent(e)
}

func (h *handlers) dropGroup(g *schedulingv1beta1.PodGroup) {
	h.core.Groups.SetObject(source.KeyOf(g), nil)
	h.conditions.forget(source.KeyOf(g))
	h.queue.OnEvent(framework.Event{Kinds: framework.Objects, Resource: plugins.PodGroups, OldObject: g})
}
