// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/apiserver/objects"
)

// Fixed is storage that always holds the objects of all, in their order, and takes no other.
func Fixed(gr schema.GroupResource, all func() []kind.Object) objects.Storage { return &fixed{gr, all} }

type fixed struct {
	gr  schema.GroupResource
	all func() []kind.Object
}

var errFixed = errors.New("objects of this kind cannot be changed or watched")

func (f *fixed) Get(_ context.Context, _, name, _ string) (*objects.Entry, error) {
	for _, obj := range f.all() {
		if obj.GetName() == name {
			return objects.NewEntry(name, obj, 0, nil), nil
		}
	}
	return nil, apierrors.NewNotFound(f.gr, name)
}

func (f *fixed) List(_ context.Context, q objects.ListQuery) (*objects.List, error) {
	page := &objects.List{}
	for _, obj := range f.all() {
		if q.Labels == nil || q.Labels.Matches(labels.Set(obj.GetLabels())) {
			page.Items = append(page.Items, objects.NewEntry(obj.GetName(), obj, 0, nil))
		}
	}
	return page, nil
}

func (f *fixed) Watch(context.Context, objects.ListQuery) (objects.Watch, error) {
	return nil, errFixed
}

func (f *fixed) Create(context.Context, kind.Object) (*objects.Entry, objects.Receipt, error) {
	return nil, objects.Receipt{}, errFixed
}

func (f *fixed) Update(context.Context, string, string, bool, objects.UpdateFunc) (*objects.Entry, bool, objects.Receipt, error) {
	return nil, false, objects.Receipt{}, errFixed
}

func (f *fixed) Delete(context.Context, string, string, func(kind.Object) error) (*objects.Entry, objects.Receipt, error) {
	return nil, objects.Receipt{}, errFixed
}
