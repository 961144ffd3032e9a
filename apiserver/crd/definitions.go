// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/apiextensions"
	"keelson/api/apply"
	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/apiserver/resources"
	"keelson/apiserver/watchcache"
	"keelson/lib/keyed"
)

// Config holds the dependencies of Definitions.
type Config struct {
	Cache *watchcache.Cache
	// Stored is the storage of the definitions, Owners the field manager of their status.
	Stored objects.Storage
	Owners *apply.Manager
	// Served gets the custom resources. A definition cannot replace a built-in one.
	Served *resources.Served
	// Hooks calls conversion webhooks.
	Hooks *Hooks
	// Checks validate objects in addition to their schemas.
	Checks map[schema.GroupVersionResource]Check
	// Changed is called after the set of served resources has changed.
	Changed func()
	Log     *slog.Logger
}

// Check validates a new or changed object (old is nil for a new one). It modifies nothing.
type Check func(obj, old *unstructured.Unstructured) field.ErrorList

// Definitions holds all CustomResourceDefinitions and their served resources.
type Definitions struct {
	config Config
	loop   *keyed.Loop[string] // by name

	mu      sync.Mutex
	known   map[string]*v1.CustomResourceDefinition // the last observed versions, by name, without their schemas
	serving map[string]*servedDefinition
}

// servedDefinition is a served definition.
type servedDefinition struct {
	crd       *v1.CustomResourceDefinition // without its schemas
	versions  *versions
	base      *watchcache.Resource
	resources []*resources.Resource
	checks    map[schema.GroupVersionResource]Check
}

// New returns an empty Definitions; Set adds to it.
func New(config Config) *Definitions {
	definitions := &Definitions{
		config:  config,
		known:   map[string]*v1.CustomResourceDefinition{},
		serving: map[string]*servedDefinition{},
	}
	definitions.loop = keyed.New(keyed.Config[string]{
		Do: func(ctx context.Context, name string) (time.Duration, error) {
			return 0, definitions.sync(ctx, name)
		},
		Compare:   strings.Compare, // ordered by name, so that it is predictable which of two definitions gets a name
		Pause:     retryDelay,
		PauseMost: maxRetryDelay,
		Failed: func(name string, err error) {
			config.Log.Warn("sync definition, will retry", "definition", name, "err", err)
		},
	})
	return definitions
}

// Set adds or updates a definition.
func (d *Definitions) Set(obj runtime.Object) {
	crd, ok := obj.(*v1.CustomResourceDefinition)
	if !ok {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known[crd.Name] = withoutSchemas(crd)
	if (apiextensions.Is(crd, v1.NamesAccepted) || apiextensions.Is(crd, v1.Established)) && d.servable(crd) {
		d.serveLocked(crd)
	} else {
		d.stopServingLocked(crd.Name)
	}
	d.loop.Add(crd.Name)
	d.requeueGroupLocked(crd)
}

// requeueGroupLocked requeues definitions in crd's group without accepted names: crd may have released one.
func (d *Definitions) requeueGroupLocked(crd *v1.CustomResourceDefinition) {
	for name, other := range d.known {
		if name != crd.Name && other.Spec.Group == crd.Spec.Group && !apiextensions.Is(other, v1.NamesAccepted) {
			d.loop.Add(name)
		}
	}
}

// Remove removes a deleted definition. Its names become free, so others in the group are requeued.
func (d *Definitions) Remove(obj runtime.Object) {
	crd, ok := obj.(*v1.CustomResourceDefinition)
	if !ok {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.known, crd.Name)
	d.stopServingLocked(crd.Name)
	d.requeueGroupLocked(crd)
}

// serveLocked builds the resources of crd unless nothing relevant has changed. A failure is logged and retried at the
// definition's next change.
func (d *Definitions) serveLocked(crd *v1.CustomResourceDefinition) {
	old := d.serving[crd.Name]
	if old != nil && old.crd.UID != crd.UID {
		d.stopServingLocked(crd.Name)
		old = nil
	}
	if old != nil && old.same(crd) {
		old.crd = withoutSchemas(crd)
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

// same reports whether crd is served as it is.
func (s *servedDefinition) same(crd *v1.CustomResourceDefinition) bool {
	return s.sameObjects(crd) && slices.Equal(s.crd.Status.StoredVersions, crd.Status.StoredVersions) &&
		terminating(s.crd) == terminating(crd)
}

// sameObjects reports whether decoding and validation of objects are unchanged. The generation changes with the
// specification.
func (s *servedDefinition) sameObjects(crd *v1.CustomResourceDefinition) bool {
	return s.crd.UID == crd.UID && s.crd.Generation == crd.Generation && apiequality.Semantic.DeepEqual(
		s.crd.Status.AcceptedNames, crd.Status.AcceptedNames)
}

// WithoutSchemas is a copy of a definition to keep: its schemas, often hundreds of kB, stay with the watch cache.
func WithoutSchemas(obj kind.Object) kind.Object {
	crd, ok := obj.(*v1.CustomResourceDefinition)
	if !ok {
		return obj
	}
	return withoutSchemas(crd)
}

func withoutSchemas(crd *v1.CustomResourceDefinition) *v1.CustomResourceDefinition {
	out := *crd
	out.ManagedFields = nil // as large, and so is the annotation
	if _, ok := crd.Annotations[corev1.LastAppliedConfigAnnotation]; ok {
		out.Annotations = maps.Clone(crd.Annotations)
		delete(out.Annotations, corev1.LastAppliedConfigAnnotation)
	}
	out.Spec.Versions = slices.Clone(crd.Spec.Versions)
	for i := range out.Spec.Versions {
		out.Spec.Versions[i].Schema = nil
	}
	return &out
}

// serveStoredLocked serves crd, which has no schemas, with those of the stored definition; errStale where that has
// changed.
func (d *Definitions) serveStoredLocked(ctx context.Context, crd *v1.CustomResourceDefinition) error {
	if s := d.serving[crd.Name]; s != nil && s.same(crd) {
		return nil
	}
	e, err := d.config.Stored.Get(ctx, "", crd.Name, "0")
	if apierrors.IsNotFound(err) {
		return errStale
	}
	if err != nil {
		return fmt.Errorf("read the schemas of definition %s: %w", crd.Name, err)
	}
	stored, ok := e.Object.(*v1.CustomResourceDefinition)
	if !ok || stored.UID != crd.UID || stored.Generation != crd.Generation {
		return errStale
	}
	whole := *crd
	whole.Spec = stored.Spec
	d.serveLocked(&whole)
	if s := d.serving[crd.Name]; s == nil || !s.same(crd) {
		return fmt.Errorf("definition %s cannot be served", crd.Name)
	}
	return nil
}

func terminating(crd *v1.CustomResourceDefinition) bool {
	return crd.DeletionTimestamp != nil || apiextensions.Is(crd, v1.Terminating)
}

// build creates crd's resources. If decoding is unchanged, their cache is kept.
func (d *Definitions) build(crd *v1.CustomResourceDefinition, old *servedDefinition) (*servedDefinition, error) {
	definition := &servedDefinition{crd: withoutSchemas(crd), checks: d.config.Checks}
	if old != nil && old.sameObjects(crd) {
		definition.versions = old.versions
		definition.base = old.base
	} else {
		var err error
		if definition.versions, err = newVersions(crd, d.config.Hooks); err != nil {
			return nil, err
		}
		if definition.base, err = d.config.Cache.Add(context.Background(), definition.versions.config()); err != nil {
			return nil, err
		}
	}
	for i := range crd.Spec.Versions {
		v := definition.versions.byName[crd.Spec.Versions[i].Name]
		if !v.spec.Served {
			continue
		}
		res := definition.resource(v)
		if d.config.Served.BuiltIn(res.GVR()) != nil {
			d.config.Log.Warn("custom resource has the name of a built-in one and is not served", "definition",
				crd.Name)
			continue
		}
		definition.resources = append(definition.resources, res)
	}
	return definition, nil
}

// stopServingLocked stops serving a definition.
func (d *Definitions) stopServingLocked(name string) {
	s := d.serving[name]
	if s == nil {
		return
	}
	delete(d.serving, name)
	d.publishLocked()
	d.config.Cache.Remove(s.versions.prefix(), s.base)
}

// publishLocked replaces the served custom resources.
func (d *Definitions) publishLocked() {
	var all []*resources.Resource
	for _, s := range d.serving {
		all = append(all, s.resources...)
	}
	d.config.Served.SetCustom(all)
	if d.config.Changed != nil {
		d.config.Changed()
	}
}
