// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"keelson/client"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/state"
)

// condition writes what became of the attempt into the group's status. Once a group has been scheduled that stays so.
func (a *groupAttempt) condition(ctx context.Context, status metav1.ConditionStatus, reason, message string) {
	g := a.group.Object
	if g == nil {
		return
	}
	had := apimeta.FindStatusCondition(g.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled)
	settled := had != nil && had.Status == metav1.ConditionTrue || a.s.conditions.scheduled(a.key, g.UID, status == metav1.ConditionTrue)
	if settled && status != metav1.ConditionTrue {
		return
	}
	next := g.DeepCopy()
	if !apimeta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
		Type: schedulingv1beta1.PodGroupInitiallyScheduled, Status: status, Reason: reason, Message: message, ObservedGeneration: g.Generation,
	}) {
		return
	}
	now := apimeta.FindStatusCondition(next.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": g.UID}, "status": map[string]any{"conditions": []metav1.Condition{*now}}})
	if err != nil {
		return // no value here can fail to encode
	}
	a.s.conditions.write(ctx, a.s.later, a.key, func(ctx context.Context) {
		_, err := a.s.client.SchedulingV1beta1().PodGroups(g.Namespace).Patch(ctx, g.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
			a.s.log.Warn("cannot write how a pod group stands", "podgroup", a.key, "err", err)
		}
	})
}

// groupWrites writes the last word about each group, and one at a time, so that an older one never comes after it. The zero value has none.
type groupWrites struct {
	mu   sync.Mutex
	next map[state.GroupKey]func(context.Context) // nil: one is being written, and there is no other
	done map[state.GroupKey]types.UID             // groups that have been scheduled once, which the informer may not know yet
}

// scheduled reports whether a group has ever been scheduled; now: it has been scheduled just now.
func (w *groupWrites) scheduled(key state.GroupKey, uid types.UID, now bool) bool {
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

func (w *groupWrites) write(ctx context.Context, later func(context.Context, func(context.Context)), key state.GroupKey, job func(context.Context)) {
	w.mu.Lock()
	_, busy := w.next[key]
	if w.next == nil {
		w.next = map[state.GroupKey]func(context.Context){}
	}
	w.next[key] = job
	w.mu.Unlock()
	if !busy {
		later(ctx, func(ctx context.Context) {
			for job := w.take(key); job != nil; job = w.take(key) {
				job(ctx)
			}
		})
	}
}

// take returns the next write; nil: there is none and the caller is done.
func (w *groupWrites) take(key state.GroupKey) func(context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	job := w.next[key]
	if w.next[key] = nil; job == nil {
		delete(w.next, key)
	}
	return job
}

var errNoGroups = errors.New("the server has no podgroups.scheduling.k8s.io/v1beta1: it needs the feature gate GenericWorkload, and --runtime-config=scheduling.k8s.io/v1beta1=true if it is Kubernetes'")

// watchGroups watches pod groups, where the gate is on.
func (s *Scheduler) watchGroups(f informers.SharedInformerFactory) ([]cache.DoneChecker, error) {
	if s.groups == nil {
		return nil, nil
	}
	list, err := s.client.Discovery().ServerResourcesForGroupVersion(schedulingv1beta1.SchemeGroupVersion.String())
	if apierrors.IsNotFound(err) {
		return nil, errNoGroups
	}
	if err != nil {
		return nil, fmt.Errorf("ask what the server has: %w", err)
	}
	served := false
	for _, r := range list.APIResources {
		served = served || r.Name == plugins.PodGroups.Resource
	}
	if !served {
		return nil, errNoGroups
	}
	inf := f.Scheduling().V1beta1().PodGroups().Informer()
	reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { s.setGroup(nil, o) }, UpdateFunc: s.setGroup, DeleteFunc: s.dropGroup,
	})
	if err != nil {
		return nil, fmt.Errorf("watch pod groups: %w", err)
	}
	return []cache.DoneChecker{reg.HasSyncedChecker()}, nil
}

func keyOf(g *schedulingv1beta1.PodGroup) state.GroupKey {
	return state.GroupKey{Namespace: g.Namespace, Name: g.Name}
}

func (s *Scheduler) setGroup(before, after any) {
	g, ok := client.Delivered[*schedulingv1beta1.PodGroup](after)
	if !ok {
		return
	}
	s.groups.SetObject(keyOf(g), g)
	e := framework.Event{Kinds: framework.Objects, Resource: plugins.PodGroups, NewObject: g}
	if old, ok := client.Delivered[*schedulingv1beta1.PodGroup](before); ok && old.UID == g.UID {
		e.OldObject = old
	}
	s.queue.OnEvent(e)
}

func (s *Scheduler) dropGroup(o any) {
	if g, ok := client.Delivered[*schedulingv1beta1.PodGroup](o); ok {
		s.groups.SetObject(keyOf(g), nil)
		s.conditions.forget(keyOf(g))
		s.queue.OnEvent(framework.Event{Kinds: framework.Objects, Resource: plugins.PodGroups, OldObject: g})
	}
}
