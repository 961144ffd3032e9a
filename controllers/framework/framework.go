// SPDX-License-Identifier: Apache-2.0

// Package framework is the little that all controllers share: what a controller
// is given (Env), the loop that works off its keys (Loop), the expectations that
// keep it from creating twice, slow-start batches, ownership, conditions, the
// writing of a status, and lookups of pods by owner.
// Each controllers/<name> uses it; it decides nothing about any kind of object.
//
// Invariants:
//  1. A key is worked on by one worker at a time.
//  2. Everything that comes out of an informer is shared and never modified (P4).
//  3. An idle loop does nothing: no resync, no polling (P7).
package framework

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"keelson/client"
	"keelson/lib/mark"
)

// Key names the object a pass is about; Namespace is empty for cluster-scoped kinds.
type Key = types.NamespacedName

// Env is what a controller is built from.
type Env struct {
	// Name is the controller's, as in its service account: "replicaset-controller".
	Name string
	// Queue is its name in the workqueue_* metrics: "replicaset".
	Queue string
	// Workers is how many objects the controller works on at once.
	Workers int
	// Client acts as the controller; all its writes go through it.
	Client *client.Client
	// Lists, nil: Client, reads what the shared informers do not: it may list and watch everything, as controllers by their own accounts
	// may not.
	Lists *client.Client
	// Shared holds the informers of all controllers. The manager starts it once all are built.
	Shared *client.Informers
	Events record.EventRecorder
	Marks  *mark.Recorder // nil ok
	Log    *slog.Logger
}

// Controller is one running loop: Run is a run.Func.
type Controller interface {
	Run(ctx context.Context, ready func()) error
}

// Reconciled leaves a mark for a pass over subject that began at begin and changed something.
func (e *Env) Reconciled(subject mark.Subject, begin time.Time, d *mark.Reconcile, err error) {
	if e.Marks == nil {
		return
	}
	const most = 10
	d.Controller = subjectController(e.Name)
	d.Creates = d.Creates[:min(len(d.Creates), most)]
	d.Deletes = d.Deletes[:min(len(d.Deletes), most)]
	m := mark.Mark{
		Step: mark.StepReconcile, Component: "controllers", At: begin, Took: time.Since(begin),
		Subject: subject, Detail: d,
	}
	if err != nil {
		m.Err = err.Error()
	}
	e.Marks.Emit(m)
}

// subjectController shortens "replicaset-controller" to "replicaset".
func subjectController(name string) string {
	const suffix = "-controller"
	if n := len(name) - len(suffix); n > 0 && name[n:] == suffix {
		return name[:n]
	}
	return name
}

// Handlers are what a controller wants to hear of objects of type T. Any may be nil.
// Tombstones are resolved: Delete always receives an object.
type Handlers[T any] struct {
	Add    func(T)
	Update func(old, cur T)
	Delete func(T)
}

// Each calls f for every change.
func Each[T any](f func(T)) Handlers[T] {
	return Handlers[T]{Add: f, Update: func(_, cur T) { f(cur) }, Delete: f}
}

// Watch registers h with the informer. What it returns is done when h has heard of all that was there at first.
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

// Lister is Lists, or Client.
func (e *Env) Lister() *client.Client { return cmp.Or(e.Lists, e.Client) }
