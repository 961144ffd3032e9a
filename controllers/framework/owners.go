// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"errors"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
)

// Owners queues owners of type O when they, or the objects of type T that they control, change. It updates their expectations from the
// informers' events.
type Owners[O, T metav1.Object] struct {
	// Kind of the owners in owner references.
	Kind string
	// Get reads an owner from the cache.
	Get func(namespace, name string) (O, bool)
	// All lists the owners of a namespace in the cache.
	All func(namespace string) []O
	// Selector is the owner's selector for adoption; nil: no adoption.
	Selector func(O) *metav1.LabelSelector
	// Expect holds the expectations; may be nil.
	Expect *Expectations
	// Later is the delay of a pass that only updates counts, to combine events; nil: none.
	Later func(O) time.Duration
	// Ended reports whether an object is finished; its owner is then queued without delay. nil: never.
	Ended func(T) bool
	// Stranger is called for an object in deletion, or deleted, without an owner in the cache; may be nil.
	Stranger func(T)

	loop *Loop[Key]
}

// WatchOwners registers w with the informers of the owners and of the owned objects. The loop's keys are owners.
func WatchOwners[O, T metav1.Object](l *Loop[Key], owners, owned cache.SharedInformer, w Owners[O, T]) (*Owners[O, T], error) {
	w.loop = l
	if w.Expect == nil {
		w.Expect = NewExpectations()
	}
	return &w, errors.Join(
		On(l, owners, Handlers[metav1.Object]{Add: w.changed, Update: w.ownerUpdated, Delete: w.ownerGone}),
		On(l, owned, Handlers[T]{Add: w.added, Update: w.updated, Delete: w.gone}),
	)
}

func (w *Owners[O, T]) changed(owner metav1.Object) { w.loop.Add(KeyOf(owner)) }

func (w *Owners[O, T]) ownerUpdated(old, cur metav1.Object) {
	if old.GetUID() != cur.GetUID() {
		w.ownerGone(old)
	}
	w.changed(cur)
}

func (w *Owners[O, T]) ownerGone(owner metav1.Object) {
	w.Expect.Forget(owner.GetUID())
	w.changed(owner)
}

// Done is called at the end of a pass over owner: if it was deleted meanwhile, its expectations are removed; else another pass is scheduled
// for when the expectations expire.
func (w *Owners[O, T]) Done(owner O) {
	if cur, ok := w.Get(owner.GetNamespace(), owner.GetName()); !ok || cur.GetUID() != owner.GetUID() {
		w.Expect.Forget(owner.GetUID())
		return
	}
	if left := w.Expect.Left(owner.GetUID()); left > 0 {
		w.loop.AddAfter(KeyOf(owner), left)
	}
}

// Of resolves o's controller reference. ok is false if it is none of these owners or not in the cache.
func (w *Owners[O, T]) Of(o metav1.Object) (owner O, ok bool) {
	ref := metav1.GetControllerOfNoCopy(o)
	if ref == nil || ref.Kind != w.Kind {
		return owner, false
	}
	if owner, ok = w.Get(o.GetNamespace(), ref.Name); !ok || owner.GetUID() != ref.UID {
		return owner, false
	}
	return owner, true
}

// Soon queues owner after its Later.
func (w *Owners[O, T]) Soon(owner O) {
	var wait time.Duration
	if w.Later != nil {
		wait = w.Later(owner)
	}
	w.loop.AddAfter(KeyOf(owner), wait)
}

func (w *Owners[O, T]) soonOrNow(owner O, now bool) {
	if now {
		w.changed(owner)
		return
	}
	w.Soon(owner)
}

func (w *Owners[O, T]) added(o T) {
	if o.GetDeletionTimestamp() != nil {
		w.gone(o) // first seen in deletion, after a restart
		return
	}
	ref := metav1.GetControllerOfNoCopy(o)
	if ref == nil {
		w.Orphan(o)
		return
	}
	met := w.Expect.Created(ref.UID, 1)
	if owner, ok := w.Of(o); ok {
		w.soonOrNow(owner, met)
	}
}

func (w *Owners[O, T]) updated(old, cur T) {
	if old.GetResourceVersion() == cur.GetResourceVersion() {
		return
	}
	if old.GetUID() != cur.GetUID() {
		w.gone(old)
		w.added(cur)
		return
	}
	before, after := metav1.GetControllerOfNoCopy(old), metav1.GetControllerOfNoCopy(cur)
	moved := (before == nil) != (after == nil) || before != nil && after != nil && before.UID != after.UID
	relabelled := !maps.Equal(old.GetLabels(), cur.GetLabels())
	if moved {
		if owner, ok := w.Of(old); ok {
			w.changed(owner)
		}
	}
	switch {
	case cur.GetDeletionTimestamp() != nil:
		w.gone(cur) // an object in deletion is replaced at once
	case after != nil:
		if owner, ok := w.Of(cur); ok {
			w.soonOrNow(owner, moved || relabelled || w.Ended != nil && w.Ended(old) != w.Ended(cur))
		}
	case moved || relabelled:
		w.Orphan(cur)
	}
}

// gone handles the deletion of o, or its start.
func (w *Owners[O, T]) gone(o T) {
	met := true
	if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
		met = w.Expect.Deleted(ref.UID, o.GetUID())
	}
	owner, ok := w.Of(o)
	switch {
	case ok:
		w.soonOrNow(owner, met)
	case w.Stranger != nil:
		w.Stranger(o)
	}
}

// Orphan queues the owners that may adopt o, which has no controller.
func (w *Owners[O, T]) Orphan(o metav1.Object) {
	if len(o.GetLabels()) == 0 || metav1.GetControllerOfNoCopy(o) != nil {
		return
	}
	for _, owner := range w.All(o.GetNamespace()) {
		sel, err := metav1.LabelSelectorAsSelector(w.Selector(owner))
		if err == nil && !sel.Empty() && sel.Matches(labels.Set(o.GetLabels())) {
			w.changed(owner)
		}
	}
}
