// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/apiserver/watchcache"
)

// Open opens the rows that the cache stores, and the views of them. Compute has the others.
func Open(rows []Row, cache *watchcache.Cache) []*Resource {
	return open(rows, false, func(row *Row) objects.Storage {
		if row.Kind.CreateOnly {
			return nil
		}
		k := row.Kind
		return cache.Resource(objects.Config{
			Resource:       k.GVR().GroupResource(),
			GVK:            k.GVK(),
			New:            k.New,
			Prefix:         row.StorePrefix(),
			Namespaced:     k.Namespaced,
			Fields:         k.Fields,
			Index:          row.Indexed,
			Packed:         row.Packed,
			StoredVersions: k.StoredVersions,
			Default:        k.Default,
		})
	})
}

// Compute opens the computed rows, and the views of them. provider computes the objects of a row.
func Compute(rows []Row, provider func(schema.GroupResource) Provider) []*Resource {
	return open(rows, true, func(row *Row) objects.Storage {
		return Computed(provider(row.Kind.GVR().GroupResource()))
	})
}

// open opens the rows that are computed, or those that are not. A view follows the row that it converts.
func open(rows []Row, computed bool, storage func(*Row) objects.Storage) []*Resource {
	var out []*Resource
	opened := map[schema.GroupResource]objects.Storage{}
	for i := range rows {
		if row := &rows[i]; row.View == nil && row.Computed == computed {
			st := storage(row)
			opened[row.Kind.GVR().GroupResource()] = st
			out = append(out, New(*row, st))
		}
	}
	for i := range rows {
		if row := &rows[i]; row.View != nil && row.Computed == computed {
			out = append(out, New(*row, Viewed(opened[row.View.Of], row.View)))
		}
	}
	return out
}

// Served are the resources that a server serves: the built-in ones, which never change, and the custom ones as they are
// now. It is safe for concurrent use.
type Served struct {
	builtIn []*Resource
	byGVR   map[schema.GroupVersionResource]*Resource
	// equivalents are the other built-in resources that serve the same objects.
	equivalents map[schema.GroupVersionResource][]schema.GroupVersionResource
	custom      atomic.Pointer[custom]
}

// custom are the custom resources; it is replaced, never modified.
type custom struct {
	all   []*Resource // by name
	byGVR map[schema.GroupVersionResource]*Resource
}

// NewServed returns the table of these built-in resources, without custom ones.
func NewServed(builtIn []*Resource) *Served {
	served := &Served{
		builtIn:     builtIn,
		byGVR:       byGVR(builtIn),
		equivalents: map[schema.GroupVersionResource][]schema.GroupVersionResource{},
	}
	families := map[schema.GroupResource][]schema.GroupVersionResource{}
	for _, res := range builtIn {
		stored := res.stored()
		families[stored] = append(families[stored], res.GVR())
	}
	for _, res := range builtIn {
		served.equivalents[res.GVR()] = slices.DeleteFunc(slices.Clone(families[res.stored()]),
			func(other schema.GroupVersionResource) bool { return other == res.GVR() })
	}
	served.SetCustom(nil)
	return served
}

// stored is the resource whose storage r uses.
func (r *Resource) stored() schema.GroupResource {
	if r.View != nil {
		return r.View.Of
	}
	return r.GroupResource()
}

func byGVR(all []*Resource) map[schema.GroupVersionResource]*Resource {
	out := make(map[schema.GroupVersionResource]*Resource, len(all))
	for _, res := range all {
		out[res.GVR()] = res
	}
	return out
}

// SetCustom replaces the custom resources.
func (s *Served) SetCustom(all []*Resource) {
	sorted := slices.SortedFunc(slices.Values(all), func(a, b *Resource) int {
		return strings.Compare(a.GVR().String(), b.GVR().String())
	})
	s.custom.Store(&custom{all: sorted, byGVR: byGVR(all)})
}

// Find returns the resource served as gvr, or nil.
func (s *Served) Find(gvr schema.GroupVersionResource) *Resource {
	if res := s.byGVR[gvr]; res != nil {
		return res
	}
	return s.custom.Load().byGVR[gvr]
}

// BuiltIn returns the built-in resource gvr, or nil.
func (s *Served) BuiltIn(gvr schema.GroupVersionResource) *Resource { return s.byGVR[gvr] }

// AllBuiltIn returns the built-in resources, Custom the custom ones by name, All both. The slices are shared.
func (s *Served) AllBuiltIn() []*Resource { return s.builtIn }

// Custom returns the custom resources; see AllBuiltIn.
func (s *Served) Custom() []*Resource { return s.custom.Load().all }

// All returns all resources; see AllBuiltIn.
func (s *Served) All() []*Resource { return slices.Concat(s.builtIn, s.Custom()) }

// Storage returns the storage of a resource; an error if it is not served, or stores nothing.
func (s *Served) Storage(gvr schema.GroupVersionResource) (objects.Storage, error) {
	res := s.Find(gvr)
	if res == nil || res.Storage == nil {
		return nil, fmt.Errorf("read %s: no such resource", gvr)
	}
	return res.Storage, nil
}

// Equivalents lists the other resources with the same objects as gvr: other versions, and events in their two groups.
func (s *Served) Equivalents(gvr schema.GroupVersionResource) []schema.GroupVersionResource {
	if s.byGVR[gvr] != nil {
		return s.equivalents[gvr]
	}
	now := s.custom.Load()
	if now.byGVR[gvr] == nil {
		return nil
	}
	var out []schema.GroupVersionResource
	for _, other := range now.all {
		if other.GroupResource() == gvr.GroupResource() && other.GVR() != gvr {
			out = append(out, other.GVR())
		}
	}
	return out
}

// HasGroup reports whether the API group is built in.
func (s *Served) HasGroup(group string) bool {
	return slices.ContainsFunc(s.AllBuiltIn(), func(res *Resource) bool { return res.Group == group })
}

// Object returns the current version of a core object.
func (s *Served) Object(ctx context.Context, resource, namespace, name string) (kind.Object, error) {
	res := s.BuiltIn(corev1.SchemeGroupVersion.WithResource(resource))
	if res == nil {
		return nil, apierrors.NewInternalError(errors.New("resource " + resource + " is not served"))
	}
	e, err := res.Storage.Get(ctx, namespace, name, "")
	if err != nil {
		return nil, err
	}
	return e.Object, nil
}

// CoreObject is Served.Object for a kind whose type is T.
func CoreObject[T kind.Object](ctx context.Context, served *Served, resource, namespace, name string) (T, error) {
	var none T
	obj, err := served.Object(ctx, resource, namespace, name)
	if err != nil {
		return none, err
	}
	typed, ok := obj.(T)
	if !ok {
		what := strings.TrimSuffix(resource, "s")
		return none, apierrors.NewInternalError(fmt.Errorf("%s %s is a %T", what, name, obj))
	}
	return typed, nil
}

// Pod returns the current version of a pod.
func (s *Served) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return CoreObject[*corev1.Pod](ctx, s, "pods", namespace, name)
}
