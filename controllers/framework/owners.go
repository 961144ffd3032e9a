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

// Owners queues owners of type O when they, or the objects of type T that they control, change. It updates their
// expectations from the informers' events.
type Owners[O, T metav1.Object] struct {
	// Kind of the owners in owner references.
	Kind string
	// Of converts an object of the owners' informer to an owner; nil: it is one.
	Of func(obj any) (O, bool)
	// Selector is the owner's selector for adoption.
	Selector func(O) *metav1.LabelSelector
	// Expect holds the expectations; may be nil.
	Expect *Expectations
	// StatusDelay is the delay of a pass that only updates counts, to combine events; nil: none.
	StatusDelay func(O) time.Duration
	// Finished reports whether an object is finished; its owner is then queued without delay. nil: never.
	Finished func(T) bool
	// WithoutOwner is called for an object in deletion, or deleted, without an owner in the cache; may be nil.
	WithoutOwner func(T)

	env   *Env
	loop  *Loop[Key]
	cache cache.Indexer // of owners
}

// WatchOwners registers w with the informers of the owners and of the owned objects. The loop's keys are owners.
func WatchOwners[O, T metav1.Object](
	env *Env, l *Loop[Key], owners cache.SharedIndexInformer, owned cache.SharedInformer, w Owners[O, T],
) (*Owners[O, T], error) {
	w.env = env
	w.loop = l
	w.cache = owners.GetIndexer()
	if w.Of == nil {
		w.Of = func(obj any) (O, bool) {
			owner, ok := obj.(O)
			return owner, ok
		}
	}
	if w.Expect == nil {
		w.Expect = NewExpectations()
	}
	return &w, errors.Join(
		On(l, owners, Handlers[metav1.Object]{Add: w.ownerAdded, Update: w.ownerUpdated, Delete: w.ownerDeleted}),
		On(l, owned, Handlers[T]{Add: w.added, Update: w.updated, Delete: w.deleted}),
	)
}

// Get reads an owner from the cache.
func (w *Owners[O, T]) Get(namespace, name string) (owner O, ok bool) {
	obj, ok, err := w.cache.GetByKey(cache.ObjectName{Namespace: namespace, Name: name}.String())
	if err != nil || !ok {
		return owner, false
	}
	return w.Of(obj)
}

// All lists the owners of a namespace in the cache; "": of all namespaces.
func (w *Owners[O, T]) All(namespace string) []O {
	var out []O
	// There is no error: the cache has the index of namespaces.
	_ = cache.ListAllByNamespace(w.cache, namespace, labels.Everything(), func(obj any) {
		if owner, ok := w.Of(obj); ok {
			out = append(out, owner)
		}
	})
	return out
}

// Pass calls pass with the owner of key and its selector, if the owner is in the cache. Expectations that are left
// afterwards are looked after. Without a valid selector there is no pass, because retrying does not help.
func (w *Owners[O, T]) Pass(
	key Key, pass func(owner O, selector labels.Selector) error,
) (found bool, err error) {
	owner, ok := w.Get(key.Namespace, key.Name)
	if !ok {
		return false, nil
	}
	defer w.done(owner)
	selector, err := metav1.LabelSelectorAsSelector(w.Selector(owner))
	if err != nil {
		w.env.Log.Warn("invalid selector", "controller", w.env.Name, "key", key.String(), "err", err)
		return true, nil
	}
	return true, pass(owner, selector)
}

func (w *Owners[O, T]) ownerAdded(owner metav1.Object) { w.loop.Add(KeyOf(owner)) }

func (w *Owners[O, T]) ownerUpdated(old, cur metav1.Object) {
	if old.GetUID() != cur.GetUID() {
		w.ownerDeleted(old)
	}
	w.ownerAdded(cur)
}

func (w *Owners[O, T]) ownerDeleted(owner metav1.Object) {
	w.Expect.DeleteExpectations(owner.GetUID())
	w.ownerAdded(owner)
}

// done ends a pass over owner: if it was deleted meanwhile, its expectations are removed; else
// another pass is scheduled for when the expectations expire.
func (w *Owners[O, T]) done(owner O) {
	if cur, ok := w.Get(owner.GetNamespace(), owner.GetName()); !ok || cur.GetUID() != owner.GetUID() {
		w.Expect.DeleteExpectations(owner.GetUID())
		return
	}
	if left := w.Expect.ExpiresIn(owner.GetUID()); left > 0 {
		w.loop.AddAfter(KeyOf(owner), left)
	}
}

// ResolveControllerRef resolves o's controller reference. ok is false if it is none of these owners or not in the
// cache.
func (w *Owners[O, T]) ResolveControllerRef(o metav1.Object) (owner O, ok bool) {
	ref := metav1.GetControllerOfNoCopy(o)
	if ref == nil || ref.Kind != w.Kind {
		return owner, false
	}
	if owner, ok = w.Get(o.GetNamespace(), ref.Name); !ok || owner.GetUID() != ref.UID {
		return owner, false
	}
	return owner, true
}

// EnqueueDelayed queues owner after its StatusDelay.
func (w *Owners[O, T]) EnqueueDelayed(owner O) {
	var wait time.Duration
	if w.StatusDelay != nil {
		wait = w.StatusDelay(owner)
	}
	w.loop.AddAfter(KeyOf(owner), wait)
}

func (w *Owners[O, T]) enqueue(owner O, now bool) {
	if now {
		w.ownerAdded(owner)
		return
	}
	w.EnqueueDelayed(owner)
}

func (w *Owners[O, T]) added(o T) {
	if o.GetDeletionTimestamp() != nil {
		w.deleted(o) // first seen in deletion, after a restart
		return
	}
	ref := metav1.GetControllerOfNoCopy(o)
	if ref == nil {
		w.EnqueueAdopters(o)
		return
	}
	met := w.Expect.CreationObserved(ref.UID, 1)
	if owner, ok := w.ResolveControllerRef(o); ok {
		w.enqueue(owner, met)
	}
}

func (w *Owners[O, T]) updated(old, cur T) {
	if old.GetResourceVersion() == cur.GetResourceVersion() {
		return
	}
	if old.GetUID() != cur.GetUID() {
		w.deleted(old)
		w.added(cur)
		return
	}
	before := metav1.GetControllerOfNoCopy(old)
	after := metav1.GetControllerOfNoCopy(cur)
	moved := (before == nil) != (after == nil) || before != nil && after != nil && before.UID != after.UID
	relabelled := !maps.Equal(old.GetLabels(), cur.GetLabels())
	if moved {
		if owner, ok := w.ResolveControllerRef(old); ok {
			w.ownerAdded(owner)
		}
	}
	switch {
	case cur.GetDeletionTimestamp() != nil:
		w.deleted(cur) // an object in deletion is replaced at once
	case after != nil:
		if owner, ok := w.ResolveControllerRef(cur); ok {
			w.enqueue(owner, moved || relabelled || w.Finished != nil && w.Finished(old) != w.Finished(cur))
		}
	case moved || relabelled:
		w.EnqueueAdopters(cur)
	}
}

// deleted handles the deletion of o, or its start.
func (w *Owners[O, T]) deleted(o T) {
	met := true
	if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
		met = w.Expect.DeletionObserved(ref.UID, o.GetUID())
	}
	owner, ok := w.ResolveControllerRef(o)
	switch {
	case ok:
		w.enqueue(owner, met)
	case w.WithoutOwner != nil:
		w.WithoutOwner(o)
	}
}

// EnqueueAdopters queues the owners that may adopt o, which has no controller.
func (w *Owners[O, T]) EnqueueAdopters(o metav1.Object) {
	if len(o.GetLabels()) == 0 || metav1.GetControllerOfNoCopy(o) != nil {
		return
	}
	for _, owner := range w.All(o.GetNamespace()) {
		sel, err := metav1.LabelSelectorAsSelector(w.Selector(owner))
		if err == nil && !sel.Empty() && sel.Matches(labels.Set(o.GetLabels())) {
			w.ownerAdded(owner)
		}
	}
}
