// SPDX-License-Identifier: Apache-2.0

// Package framework is what all controllers share: their dependencies (Env), the work queue with its workers (Loop),
// expectations that prevent duplicate creations, slow-start batches, ownership, conditions, status writes, and lookups
// of pods by owner. Each package controllers/<name> uses it. It makes no decisions about any kind of object.
//
// Invariants:
//  1. A key is processed by one worker at a time.
//  2. Objects from informers are shared and never modified (P4).
//  3. An idle loop does nothing: no resync, no polling (P7).
package framework

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"keelson/client"
	"keelson/event"
)

// Key names the object of a pass; Namespace is empty for cluster-scoped kinds.
type Key = types.NamespacedName

// Env holds the dependencies of a controller.
type Env struct {
	// Name is the name of its service account, such as "replicaset-controller".
	Name string
	// Queue is its loop in the workqueue_* metrics: "replicaset".
	Queue Queue
	// Workers is the number of objects processed concurrently.
	Workers int
	// Client works as the controller's service account; all writes use it.
	Client *client.Client
	// ListClient reads what the shared informers do not; nil: Client. It has the right to list and watch everything,
	// which controllers' service accounts do not have.
	ListClient *client.Client
	// Shared holds the informers of all controllers. The manager starts it when all controllers are built.
	Shared *client.Informers
	Events record.EventRecorder
	Marks  *event.Recorder // may be nil
	Log    *slog.Logger
}

// Controller is a running controller: Run is a run.Func.
type Controller interface {
	Run(ctx context.Context, ready func()) error
}

// Reconciled sends a mark for a pass over subject that started at begin and changed something.
func (e *Env) Reconciled(subject event.Subject, begin time.Time, reconcile *event.Reconcile, err error) {
	if e.Marks == nil {
		return
	}
	const most = 10
	reconcile.Controller = subjectController(e.Name)
	reconcile.Creates = reconcile.Creates[:min(len(reconcile.Creates), most)]
	reconcile.Deletes = reconcile.Deletes[:min(len(reconcile.Deletes), most)]
	mk := event.Event{
		Step:      event.StepReconcile,
		Component: "controllers",
		At:        begin,
		Took:      time.Since(begin),
		Subject:   subject,
		Detail:    reconcile,
	}
	if err != nil {
		mk.Err = err.Error()
	}
	e.Marks.Emit(mk)
}

// subjectController shortens "replicaset-controller" to "replicaset".
func subjectController(name string) string {
	const suffix = "-controller"
	if n := len(name) - len(suffix); n > 0 && name[n:] == suffix {
		return name[:n]
	}
	return name
}

// Handlers are a controller's event handlers for objects of type T. Any may be nil. Tombstones are resolved: Delete
// always gets an object.
type Handlers[T any] struct {
	Add    func(T)
	Update func(old, cur T)
	Delete func(T)
}

// Each calls f for every change.
func Each[T any](f func(T)) Handlers[T] {
	return Handlers[T]{Add: f, Update: func(_, cur T) { f(cur) }, Delete: f}
}

// Watch registers h with the informer. The result is done when h has received the initial objects.
func Watch[T any](inf cache.SharedInformer, h Handlers[T]) (cache.DoneChecker, error) {
	reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if o, ok := obj.(T); ok && h.Add != nil {
				h.Add(o)
			}
		},
		UpdateFunc: func(old, cur any) {
			o, okOld := old.(T)
			c, ok := cur.(T)
			if ok && okOld && h.Update != nil {
				h.Update(o, c)
			}
		},
		DeleteFunc: func(obj any) {
			if o, ok := client.Delivered[T](obj); ok && h.Delete != nil {
				h.Delete(o)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return reg.HasSyncedChecker(), nil
}

// Reader is ListClient, or Client.
func (e *Env) Reader() *client.Client { return cmp.Or(e.ListClient, e.Client) }

// SelectsAll reports whether a workload's selector is empty, which is an error of its author, and emits an event.
func (e *Env) SelectsAll(workload runtime.Object, kind string, s *metav1.LabelSelector) bool {
	if s != nil && len(s.MatchLabels)+len(s.MatchExpressions) > 0 {
		return false
	}
	e.Events.Eventf(workload, corev1.EventTypeWarning, "SelectingAll",
		"This %s is selecting all pods. A non-empty selector is required.", kind)
	return true
}
