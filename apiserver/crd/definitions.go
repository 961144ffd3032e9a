// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/apiextensions"
	"keelson/api/apply"
	"keelson/apiserver/objects"
	"keelson/apiserver/registry"
	"keelson/apiserver/watchcache"
	"keelson/lib/keyed"
)

// Config is what Definitions need.
type Config struct {
	Cache *watchcache.Cache
	// Stored are the definitions themselves, and Owners tracks the fields of their status.
	Stored objects.Storage
	Owners *apply.Manager
	// Taken tells whether a built-in resource has that name: definitions do not get to serve those.
	Taken func(schema.GroupVersionResource) bool
	// Hooks reach conversion webhooks.
	Hooks *Hooks
	// Checks judge objects that their schemas find right, beside those.
	Checks map[schema.GroupVersionResource]Check
	// Changed is called after resources came, went or changed.
	Changed func()
	Log     *slog.Logger
}

// Check judges a new or changed object (old is nil for a new one). It modifies nothing.
type Check func(obj, old *unstructured.Unstructured) field.ErrorList

// Definitions are all custom resource definitions at work.
type Definitions struct {
	config Config
	loop   *keyed.Loop[string] // by name

	// table are the served resources; it is replaced, never changed.
	table atomic.Pointer[map[schema.GroupVersionResource]*registry.Resource]

	mu      sync.Mutex
	known   map[string]*v1.CustomResourceDefinition // as last seen, by name
	serving map[string]*serving
}

// serving is one definition at work.
type serving struct {
	crd       *v1.CustomResourceDefinition
	versions  *versions
	base      *watchcache.Resource
	resources []*registry.Resource
	checks    map[schema.GroupVersionResource]Check
}

// New returns definitions that know none yet; Set tells of them.
func New(c Config) *Definitions {
	d := &Definitions{config: c, known: map[string]*v1.CustomResourceDefinition{}, serving: map[string]*serving{}}
	d.loop = keyed.New(keyed.Config[string]{
		Do:      func(ctx context.Context, name string) (time.Duration, error) { return 0, d.sync(ctx, name) },
		Compare: strings.Compare, // whoever comes first gets a name that two want: by name, so that it can be foreseen
		Pause:   retry, PauseMost: retryMost,
		Failed: func(name string, err error) {
			c.Log.Warn("definition is looked at again", "definition", name, "err", err)
		},
	})
	d.table.Store(&map[schema.GroupVersionResource]*registry.Resource{})
	return d
}

// Resource returns what is served as gvr, or nil.
func (d *Definitions) Resource(gvr schema.GroupVersionResource) *registry.Resource {
	return (*d.table.Load())[gvr]
}

// Resources returns all that is served, ordered by name.
func (d *Definitions) Resources() []*registry.Resource {
	return slices.SortedFunc(maps.Values(*d.table.Load()), func(a, b *registry.Resource) int {
		return strings.Compare(a.GVR().String(), b.GVR().String())
	})
}

// Set tells of a definition as it is now.
func (d *Definitions) Set(obj runtime.Object) {
	crd, ok := obj.(*v1.CustomResourceDefinition)
	if !ok {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known[crd.Name] = crd
	if (apiextensions.Is(crd, v1.NamesAccepted) || apiextensions.Is(crd, v1.Established)) && d.servable(crd) {
		d.serveLocked(crd)
	} else {
		d.withdrawLocked(crd.Name)
	}
	d.loop.Add(crd.Name)
	d.rouseLocked(crd)
}

// rouseLocked has another look at those of crd's group that do not have their names: crd may have let go of one.
func (d *Definitions) rouseLocked(crd *v1.CustomResourceDefinition) {
	for name, other := range d.known {
		if name != crd.Name && other.Spec.Group == crd.Spec.Group && !apiextensions.Is(other, v1.NamesAccepted) {
			d.loop.Add(name)
		}
	}
}

// Remove tells that a definition has gone. Its names are free: others of the group may have waited for them.
func (d *Definitions) Remove(obj runtime.Object) {
	crd, ok := obj.(*v1.CustomResourceDefinition)
	if !ok {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.known, crd.Name)
	d.withdrawLocked(crd.Name)
	d.rouseLocked(crd)
}

// serveLocked makes the resources of crd, or leaves them as they are when nothing about them has changed. What cannot be served is
// logged and tried again with the definition's next change.
func (d *Definitions) serveLocked(crd *v1.CustomResourceDefinition) {
	old := d.serving[crd.Name]
	if old != nil && old.crd.UID != crd.UID {
		d.withdrawLocked(crd.Name)
		old = nil
	}
	if old != nil && old.same(crd) {
		return
	}
	next, err := d.build(crd, old)
	if err != nil {
		d.config.Log.Error("custom resource cannot be served", "definition", crd.Name, "err", err)
		return
	}
	d.serving[crd.Name] = next
	d.publishLocked()
}

// same tells whether crd asks for nothing else than what is served.
func (s *serving) same(crd *v1.CustomResourceDefinition) bool {
	return s.sameObjects(crd) && slices.Equal(s.crd.Status.StoredVersions, crd.Status.StoredVersions) && terminating(s.crd) == terminating(crd)
}

// sameObjects tells whether objects are read and judged as before.
func (s *serving) sameObjects(crd *v1.CustomResourceDefinition) bool {
	return apiequality.Semantic.DeepEqual(s.crd.Spec, crd.Spec) && apiequality.Semantic.DeepEqual(s.crd.Status.AcceptedNames, crd.Status.AcceptedNames)
}

func terminating(crd *v1.CustomResourceDefinition) bool {
	return crd.DeletionTimestamp != nil || apiextensions.Is(crd, v1.Terminating)
}

// build makes crd's resources; where objects are read as before, their cache goes on.
func (d *Definitions) build(crd *v1.CustomResourceDefinition, old *serving) (*serving, error) {
	s := &serving{crd: crd, checks: d.config.Checks}
	if old != nil && old.sameObjects(crd) {
		s.versions, s.base = old.versions, old.base
	} else {
		var err error
		if s.versions, err = newVersions(crd, d.config.Hooks); err != nil {
			return nil, err
		}
		if s.base, err = d.config.Cache.Add(context.Background(), s.versions.config()); err != nil {
			return nil, err
		}
	}
	for i := range crd.Spec.Versions {
		v := s.versions.byName[crd.Spec.Versions[i].Name]
		if !v.spec.Served {
			continue
		}
		res := s.resource(v)
		if d.config.Taken(res.GVR()) {
			d.config.Log.Warn("custom resource has the name of a built-in one and is not served", "definition", crd.Name)
			continue
		}
		s.resources = append(s.resources, res)
	}
	return s, nil
}

// withdrawLocked ends the service of a definition.
func (d *Definitions) withdrawLocked(name string) {
	s := d.serving[name]
	if s == nil {
		return
	}
	delete(d.serving, name)
	d.publishLocked()
	d.config.Cache.Remove(s.versions.prefix(), s.base)
}

// publishLocked makes the table anew.
func (d *Definitions) publishLocked() {
	table := map[schema.GroupVersionResource]*registry.Resource{}
	for _, s := range d.serving {
		for _, res := range s.resources {
			table[res.GVR()] = res
		}
	}
	d.table.Store(&table)
	if d.config.Changed != nil {
		d.config.Changed()
	}
}
