// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"keelson/api/kind"
	"keelson/apiserver/objects"
)

// Provider computes objects on request.
type Provider interface {
	// Get returns 404 if the object does not exist.
	Get(ctx context.Context, namespace, name string) (kind.Object, error)
	List(ctx context.Context, namespace string, l labels.Selector, f fields.Selector) ([]kind.Object, error)
}

// Computed is storage of objects computed by c. They have no resourceVersion, and cannot be changed or watched.
func Computed(c Provider) objects.Storage { return &computed{provider: c} }

type computed struct{ provider Provider }

var errReadOnly = errors.New("objects of this kind cannot be changed or watched")

func (c *computed) Get(ctx context.Context, namespace, name, _ string) (*objects.Entry, error) {
	obj, err := c.provider.Get(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return objects.NewEntry(name, obj, 0, nil), nil
}

func (c *computed) List(ctx context.Context, q objects.ListQuery) (*objects.List, error) {
	all, err := c.provider.List(ctx, q.Namespace, q.Labels, q.Fields)
	if err != nil {
		return nil, err
	}
	page := &objects.List{}
	for _, obj := range all {
		page.Items = append(page.Items, objects.NewEntry(obj.GetName(), obj, 0, nil))
	}
	return page, nil
}

func (c *computed) Watch(context.Context, objects.ListQuery) (objects.Watch, error) {
	return nil, errReadOnly
}

func (c *computed) Create(context.Context, kind.Object) (*objects.Entry, objects.Receipt, error) {
	return nil, objects.Receipt{}, errReadOnly
}

func (c *computed) Update(
	context.Context, string, string, bool, objects.UpdateFunc,
) (*objects.Entry, bool, objects.Receipt, error) {
	return nil, false, objects.Receipt{}, errReadOnly
}

func (c *computed) Delete(
	context.Context, string, string, func(kind.Object) error,
) (*objects.Entry, objects.Receipt, error) {
	return nil, objects.Receipt{}, errReadOnly
}

func (c *computed) DeleteCorrupt(context.Context, string, string, bool) (objects.Receipt, error) {
	return objects.Receipt{}, errReadOnly
}

func (c *computed) Walk(ctx context.Context, namespace string, f func(*objects.Entry) bool) error {
	page, err := c.List(ctx, objects.ListQuery{
		Namespace: namespace,
		Labels:    labels.Everything(),
		Fields:    fields.Everything(),
	})
	if err != nil {
		return err
	}
	for _, e := range page.Items {
		if !f(e) {
			break
		}
	}
	return nil
}

// Size is zero: the number is known only after the computation.
func (c *computed) Size() (count, bytes int) { return 0, 0 }
