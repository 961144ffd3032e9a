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

// Owners makes owners of type O pending when something happens to them or to the objects of type T that they control. It keeps their
// expectations true to what its informers tell.
type Owners[O, T metav1.Object] struct {
	// Kind of the owners, as references name it.
	Kind string
	// Get finds an owner in the cache.
	Get func(namespace, name string) (O, bool)
	// All are the owners of a namespace in the cache.
	All func(namespace string) []O
	// Selector is what an owner may adopt; nil: nothing.
	Selector func(O) *metav1.LabelSelector
	// Expect holds what is expected; nil: nothing ever is.
	Expect *Expectations
	// Later is how long a pass that would only count may wait for more to happen; nil: not at all.
	Later func(O) time.Duration
	// Ended reports whether an object does no work any more: an owner hears of that at once. nil: no object ever does.
	Ended func(T) bool
	// Stranger hears of an object that goes or is gone and has no owner in the cache; nil: nobody does.
	Stranger func(T)

	loop *Loop[Key]
}

// WatchOwners registers w with the informers of the owners and of what they own. The loop's keys are those of owners.
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

// Done is called at the end of a pass over owner: if it has gone meanwhile, what the pass came to expect of it is forgotten; else there is
// another pass when that has been expected for too long, whatever happens or does not.
func (w *Owners[O, T]) Done(owner O) {
	if cur, ok := w.Get(owner.GetNamespace(), owner.GetName()); !ok || cur.GetUID() != owner.GetUID() {
		w.Expect.Forget(owner.GetUID())
		return
	}
	if left := w.Expect.Left(owner.GetUID()); left > 0 {
		w.loop.AddAfter(KeyOf(owner), left)
	}
}

// Of resolves o's controller reference. ok is false when that is none of these owners, or not in the cache.
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

// Soon makes owner pending, after its Later.
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
		w.gone(o) // seen for the first time while going: after a restart
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
		w.gone(cur) // what is going is replaced now, not when it is gone
	case after != nil:
		if owner, ok := w.Of(cur); ok {
			w.soonOrNow(owner, moved || relabelled || w.Ended != nil && w.Ended(old) != w.Ended(cur))
		}
	case moved || relabelled:
		w.Orphan(cur)
	}
}

// gone hears of the end of o, or that it has begun.
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

// Orphan makes pending who may want to adopt o, which has no controller.
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
