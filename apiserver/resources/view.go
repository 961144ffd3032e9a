// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"context"

	"k8s.io/apimachinery/pkg/fields"

	"keelson/api/kind"
	"keelson/apiserver/objects"
)

// Viewed is st with every object converted by v.
func Viewed(st objects.Storage, v *View) objects.Storage { return &viewed{st, v} }

type viewed struct {
	st objects.Storage
	v  *View
}

func (s *viewed) entry(e *objects.Entry) *objects.Entry {
	if e == nil {
		return nil
	}
	return objects.NewEntry(e.Key, s.v.ToServed(e.Object), e.Revision, nil)
}

// query converts field labels to those of the stored kind.
func (s *viewed) query(q objects.ListQuery) (objects.ListQuery, error) {
	if s.v.FieldLabel == nil || q.Fields.Empty() {
		return q, nil
	}
	sel, err := q.Fields.Transform(func(field, value string) (string, string, error) {
		return s.v.FieldLabel(field),
			value, nil
	})
	if err != nil {
		return q, err
	}
	if sel == nil {
		sel = fields.Everything()
	}
	q.Fields = sel
	return q, nil
}

func (s *viewed) Get(ctx context.Context, namespace, name, rv string) (*objects.Entry, error) {
	e, err := s.st.Get(ctx, namespace, name, rv)
	return s.entry(e), err
}

func (s *viewed) List(ctx context.Context, q objects.ListQuery) (*objects.List, error) {
	q, err := s.query(q)
	if err != nil {
		return nil, err
	}
	page, err := s.st.List(ctx, q)
	if err != nil {
		return nil, err
	}
	out := *page
	out.Items = make([]*objects.Entry, len(page.Items))
	for i, e := range page.Items {
		out.Items[i] = s.entry(e)
	}
	return &out, nil
}

func (s *viewed) Create(ctx context.Context, obj kind.Object) (*objects.Entry, objects.Receipt, error) {
	e, r, err := s.st.Create(ctx, s.v.ToStored(obj))
	return s.entry(e), r, err
}

func (s *viewed) Update(
	ctx context.Context, namespace, name string, createMissing bool, f objects.UpdateFunc,
) (*objects.Entry, bool, objects.Receipt, error) {
	entry, created, receipt, err := s.st.Update(ctx, namespace, name, createMissing, func(
		ctx context.Context, current kind.Object, write func(kind.Object) error,
	) error {
		var served kind.Object
		if current != nil {
			served = s.v.ToServed(current)
		}
		return f(ctx, served, func(next kind.Object) error { return write(s.v.ToStored(next)) })
	})
	return s.entry(entry), created, receipt, err
}

func (s *viewed) Delete(ctx context.Context, namespace, name string, check func(
	kind.Object,
) error,
) (*objects.Entry, objects.Receipt, error) {
	e, r, err := s.st.Delete(ctx, namespace, name, func(current kind.Object) error {
		if check == nil {
			return nil
		}
		return check(s.v.ToServed(current))
	})
	return s.entry(e), r, err
}

func (s *viewed) DeleteCorrupt(ctx context.Context, namespace, name string, dry bool) (objects.Receipt, error) {
	return s.st.DeleteCorrupt(ctx, namespace, name, dry)
}

func (s *viewed) Walk(ctx context.Context, namespace string, f func(*objects.Entry) bool) error {
	return s.st.Walk(ctx, namespace, func(e *objects.Entry) bool { return f(s.entry(e)) })
}

func (s *viewed) Size() (count, bytes int) { return s.st.Size() }

func (s *viewed) Watch(ctx context.Context, q objects.ListQuery) (objects.Watch, error) {
	q, err := s.query(q)
	if err != nil {
		return nil, err
	}
	w, err := s.st.Watch(ctx, q)
	if err != nil {
		return nil, err
	}
	out := &viewedWatch{Watch: w, out: make(chan objects.Event, 16)}
	go func() { // ends with the inner watch or with ctx
		defer close(out.out)
		for ev := range w.Events() {
			ev.Entry = s.entry(ev.Entry)
			select {
			case out.out <- ev:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

type viewedWatch struct {
	objects.Watch
	out chan objects.Event
}

func (w *viewedWatch) Events() <-chan objects.Event { return w.out }
