// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"

	"keelson/api/kind"
	"keelson/apiserver/objects"
)

// served is the storage of a definition's objects in one version. Its callers see that version, whatever the stored one
// is.
type served struct {
	base     objects.Storage
	versions *versions
	version  *version
	cache    conversionCache
}

func unstructuredOf(obj kind.Object) (*unstructured.Unstructured, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("custom resource %s is a %T", obj.GetName(), obj)
	}
	return u, nil
}

// entries converts entries, with one converter call for all that need it.
func (s *served) entries(ctx context.Context, in []*objects.Entry) ([]*objects.Entry, error) {
	out := make([]*objects.Entry, len(in))
	var todo []int
	var objs []*unstructured.Unstructured
	for i, entry := range in {
		obj, err := unstructuredOf(entry.Object)
		if err != nil {
			return nil, err
		}
		switch {
		case obj.GroupVersionKind() == s.version.gvk:
			out[i] = entry
		case entry.Key == "": // a bookmark
			out[i] = objects.NewEntry("", withAPIVersion(obj, s.version), entry.Revision, nil)
		default:
			if out[i] = s.cache.get(entry); out[i] == nil {
				todo = append(todo, i)
				objs = append(objs, obj)
			}
		}
	}
	if len(todo) == 0 {
		return out, nil
	}
	converted, err := s.versions.convertAll(ctx, objs, s.version)
	if err != nil {
		return nil, err
	}
	for n, i := range todo {
		out[i] = objects.NewEntry(in[i].Key, converted[n], in[i].Revision, nil)
		s.cache.put(in[i], out[i])
	}
	return out, nil
}

// conversionError is the client's error for a failed conversion.
func conversionError(err error) error { return apierrors.NewInternalError(err) }

func (s *served) entry(ctx context.Context, e *objects.Entry) (*objects.Entry, error) {
	if e == nil {
		return nil, nil // nil stays nil
	}
	out, err := s.entries(ctx, []*objects.Entry{e})
	if err != nil {
		return nil, conversionError(err)
	}
	return out[0], nil
}

// toStored converts a client's object to the storage version.
func (s *served) toStored(ctx context.Context, obj kind.Object) (kind.Object, error) {
	u, err := unstructuredOf(obj)
	if err != nil {
		return nil, err
	}
	sent := u
	if u, err = s.versions.convertOne(ctx, u, s.versions.storage); err != nil {
		return nil, conversionError(err)
	}
	if u != sent { // pruned and defaulted as a later read would do
		s.versions.storage.setDefaults(u)
	}
	return u, nil
}

func (s *served) toServed(ctx context.Context, stored kind.Object) (kind.Object, error) {
	u, err := unstructuredOf(stored)
	if err != nil {
		return nil, err
	}
	if u, err = s.versions.convertOne(ctx, u, s.version); err != nil {
		return nil, conversionError(err)
	}
	return u, nil
}

func (s *served) Get(ctx context.Context, namespace, name, rv string) (*objects.Entry, error) {
	e, err := s.base.Get(ctx, namespace, name, rv)
	if err != nil {
		return nil, err
	}
	return s.entry(ctx, e)
}

func (s *served) List(ctx context.Context, q objects.ListQuery) (*objects.List, error) {
	q, own := s.splitSelectors(q)
	if own != nil {
		return s.listSelected(ctx, q, own)
	}
	page, err := s.base.List(ctx, q)
	if err != nil {
		return nil, err
	}
	out := *page
	if out.Items, err = s.entries(ctx, page.Items); err != nil {
		return nil, conversionError(err)
	}
	return &out, nil
}

func (s *served) Create(ctx context.Context, obj kind.Object) (*objects.Entry, objects.Receipt, error) {
	stored, err := s.toStored(ctx, obj)
	if err != nil {
		return nil, objects.Receipt{}, err
	}
	e, r, err := s.base.Create(ctx, stored)
	if err != nil {
		return nil, r, err
	}
	e, err = s.entry(ctx, e)
	return e, r, err
}

func (s *served) Update(
	ctx context.Context, namespace, name string, createMissing bool, updateFunc objects.UpdateFunc,
) (*objects.Entry, bool, objects.Receipt, error) {
	entry, created, receipt, err := s.base.Update(ctx, namespace, name, createMissing, func(
		ctx context.Context, current kind.Object, write func(kind.Object) error,
	) error {
		var before kind.Object
		if current != nil {
			var err error
			if before, err = s.toServed(ctx, current); err != nil {
				return err
			}
		}
		return updateFunc(ctx, before, func(next kind.Object) error {
			if current != nil && next == before {
				return write(current)
			}
			stored, err := s.toStored(ctx, next)
			if err != nil {
				return err
			}
			return write(stored)
		})
	})
	if err != nil {
		return nil, created, receipt, err
	}
	entry, err = s.entry(ctx, entry)
	return entry, created, receipt, err
}

func (s *served) Delete(ctx context.Context, namespace, name string, check func(
	kind.Object,
) error,
) (*objects.Entry, objects.Receipt, error) {
	entry, receipt, err := s.base.Delete(ctx, namespace, name, func(current kind.Object) error {
		if check == nil {
			return nil
		}
		now, err := s.toServed(ctx, current)
		if err != nil {
			return err
		}
		return check(now)
	})
	if err != nil {
		return nil, receipt, err
	}
	entry, err = s.entry(ctx, entry)
	return entry, receipt, err
}

// DeleteCorrupt works on the stored form: an object whose conversion fails is still readable.
func (s *served) DeleteCorrupt(ctx context.Context, namespace, name string, dry bool) (objects.Receipt, error) {
	return s.base.DeleteCorrupt(ctx, namespace, name, dry)
}

// Walk converts all objects with one converter call.
func (s *served) Walk(ctx context.Context, namespace string, f func(*objects.Entry) bool) error {
	var found []*objects.Entry
	err := s.base.Walk(ctx, namespace, func(e *objects.Entry) bool {
		found = append(found, e)
		return true
	})
	if err != nil {
		return err
	}
	if found, err = s.entries(ctx, found); err != nil {
		return conversionError(err)
	}
	for _, e := range found {
		if !f(e) {
			return nil
		}
	}
	return nil
}

// Size is the size of the stored forms.
func (s *served) Size() (count, bytes int) { return s.base.Size() }

func (s *served) Watch(ctx context.Context, q objects.ListQuery) (objects.Watch, error) {
	q, own := s.splitSelectors(q)
	w, err := s.base.Watch(ctx, q)
	if err != nil {
		return nil, err
	}
	out := &servedWatch{Watch: w, own: own, out: make(chan objects.Event, 16)}
	go out.run(ctx, s) // ends with the inner watch, which ends with ctx
	return out, nil
}

// servedWatch is a watch of converted objects. A failed conversion ends it.
type servedWatch struct {
	objects.Watch
	own    fields.Selector // nil: all
	out    chan objects.Event
	failed error // set before out is closed
}

func (w *servedWatch) Events() <-chan objects.Event { return w.out }

func (w *servedWatch) Err() error {
	if w.failed != nil {
		return w.failed
	}
	return w.Watch.Err()
}

func (w *servedWatch) run(ctx context.Context, s *served) {
	defer close(w.out)
	for ev := range w.Watch.Events() {
		ev, ok, err := s.convertEvent(ctx, w.own, ev)
		if err != nil {
			w.failed = err
			return
		}
		if !ok {
			continue
		}
		select {
		case w.out <- ev:
		case <-ctx.Done():
			return
		}
	}
}

// conversionCache caches conversions of entries for many watchers and lists. It has two generations.
type conversionCache struct {
	mu       sync.Mutex
	new, old map[*objects.Entry]*objects.Entry
}

// cacheGenerationSize is the number of conversions per generation of a conversionCache.
const cacheGenerationSize = 2000

func (m *conversionCache) get(e *objects.Entry) *objects.Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	if out := m.new[e]; out != nil {
		return out
	}
	return m.old[e]
}

func (m *conversionCache) put(e, out *objects.Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.new == nil || len(m.new) >= cacheGenerationSize {
		m.old = m.new
		m.new = map[*objects.Entry]*objects.Entry{}
	}
	m.new[e] = out
}
