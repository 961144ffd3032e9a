// SPDX-License-Identifier: Apache-2.0

// Package storageversionmigrator executes StorageVersionMigrations: it rewrites every object of a resource, so that it
// has the current storage version and encryption key, and then removes older versions from the status of a
// CustomResourceDefinition. The table of controllers starts it. It never changes the content of an object.
package storageversionmigrator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	migrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	migrationinformers "k8s.io/client-go/informers/storagemigration/v1"
	migrationlisters "k8s.io/client-go/listers/storagemigration/v1"

	"keelson/controllers/framework"
	"keelson/controllers/internal/catalog"
)

const (
	// unknownResourceGrace is how long a resource may be unknown after the creation of its migration: the definition
	// may be new, too.
	unknownResourceGrace = time.Minute
	recheckInterval      = 10 * time.Second
	listPageSize         = 500
	maxParallel          = 8
)

// Controller executes migrations.
type Controller struct {
	env        *framework.Env
	loop       *framework.Loop[framework.Key]
	migrations migrationlisters.StorageVersionMigrationLister

	mu sync.Mutex
	// finished are migrations whose final condition is written but not yet in the cache.
	finished map[types.UID]struct{}
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	orders := migrationinformers.New(env.Shared.Scoped()).StorageVersionMigrations()
	controller := &Controller{env: env, migrations: orders.Lister(), finished: map[types.UID]struct{}{}}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	err := framework.On(controller.loop, orders.Informer(),
		framework.Each(func(m *migrationv1.StorageVersionMigration) {
			// One migration of a resource runs at a time: the end of one starts the next.
			for _, o := range controller.unfinishedOf(m.Spec.Resource) {
				controller.loop.Add(framework.KeyOf(o))
			}
			controller.loop.Add(framework.KeyOf(m))
		}))
	if err != nil {
		return nil, fmt.Errorf("storage version migrations: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

// unfinishedOf are the unfinished migrations of a resource, oldest first.
func (c *Controller) unfinishedOf(r metav1.GroupResource) []*migrationv1.StorageVersionMigration {
	all, err := c.migrations.List(labels.Everything())
	if err != nil {
		return nil // a lister over a cache returns no error
	}
	all = slices.DeleteFunc(slices.Clone(all), func(m *migrationv1.StorageVersionMigration) bool {
		return m.Spec.Resource != r || c.done(m)
	})
	slices.SortFunc(all, func(a, b *migrationv1.StorageVersionMigration) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return all
}

// done reports whether the migration is finished, even if the cache does not show it yet.
func (c *Controller) done(m *migrationv1.StorageVersionMigration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if hasCondition(m, migrationv1.MigrationSucceeded) || hasCondition(m, migrationv1.MigrationFailed) {
		delete(c.finished, m.UID)
		return true
	}
	_, ended := c.finished[m.UID]
	return ended
}

func hasCondition(m *migrationv1.StorageVersionMigration, t migrationv1.MigrationConditionType) bool {
	return meta.IsStatusConditionTrue(m.Status.Conditions, string(t))
}

func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	migration, err := c.migrations.Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && c.done(migration) {
		return nil
	}
	if err != nil {
		return err
	}
	if first := c.unfinishedOf(migration.Spec.Resource); len(first) > 0 && first[0].UID != migration.UID {
		return nil
	}
	res, err := c.resource(ctx, migration.Spec.Resource)
	if err != nil {
		return err
	}
	if res == nil || !res.Supports("list", "patch") {
		if left := time.Until(migration.CreationTimestamp.Add(unknownResourceGrace)); left > 0 {
			c.loop.AddAfter(key, min(left, recheckInterval))
			return nil
		}
		return c.setFinished(ctx, migration, migrationv1.MigrationFailed, "resource not found")
	}
	if migration, err = c.setRunning(ctx, migration, res); err != nil {
		return err
	}
	err = c.migrateAll(ctx, res)
	if _, ok := errors.AsType[*refusedError](err); ok {
		c.env.Log.Warn("rewrite object", "migration", migration.Name, "resource", res.GVR, "err", err)
		return c.setFinished(ctx, migration, migrationv1.MigrationFailed, "migration encountered unhandled error")
	}
	if err != nil {
		return err // it starts again from the beginning, which is harmless
	}
	return c.setFinished(ctx, migration, migrationv1.MigrationSucceeded, "")
}

// resource is the served resource with that name; nil: none.
func (c *Controller) resource(ctx context.Context, want metav1.GroupResource) (*catalog.Resource, error) {
	all, err := catalog.Load(ctx, c.env.Client.Discovery())
	var partial *catalog.PartialError
	if err != nil && !errors.As(err, &partial) {
		return nil, err
	}
	for _, r := range all {
		if r.GVR.Group == want.Group && r.GVR.Resource == want.Resource {
			return r, nil
		}
	}
	return nil, nil // nil: it is not served
}

// setRunning sets the condition Running and the resourceVersion of the start.
func (c *Controller) setRunning(
	ctx context.Context, migration *migrationv1.StorageVersionMigration, res *catalog.Resource,
) (*migrationv1.StorageVersionMigration, error) {
	if hasCondition(migration, migrationv1.MigrationRunning) && migration.Status.ResourceVersion != "" {
		return migration, nil
	}
	if err := c.startDefinition(ctx, migration); err != nil {
		return nil, err
	}
	next := migration.DeepCopy()
	if next.Status.ResourceVersion == "" {
		list, err := c.env.Client.Metadata.Resource(res.GVR).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return nil, fmt.Errorf("find the version of %s: %w", res.GVR.Resource, err)
		}
		next.Status.ResourceVersion = list.ResourceVersion
	}
	set(next, migrationv1.MigrationRunning, "MigrationRunning", "The migration is running")
	next, err := c.env.Client.StoragemigrationV1().StorageVersionMigrations().UpdateStatus(ctx, next,
		metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("begin migration %s: %w", migration.Name, err)
	}
	return next, nil
}

// setFinished sets the final condition of the migration.
func (c *Controller) setFinished(
	ctx context.Context, migration *migrationv1.StorageVersionMigration, t migrationv1.MigrationConditionType,
	message string,
) error {
	if err := c.finishDefinition(ctx, migration, t == migrationv1.MigrationSucceeded); err != nil {
		return err
	}
	next := migration.DeepCopy()
	meta.RemoveStatusCondition(&next.Status.Conditions, string(migrationv1.MigrationRunning))
	reason := "StorageVersionMigrationSucceeded"
	if t == migrationv1.MigrationFailed {
		reason = "StorageVersionMigrationFailed"
	}
	set(next, t, reason, message)
	_, err := c.env.Client.StoragemigrationV1().StorageVersionMigrations().UpdateStatus(ctx, next,
		metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("end migration %s: %w", migration.Name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finished[migration.UID] = struct{}{}
	return nil
}

func set(m *migrationv1.StorageVersionMigration, t migrationv1.MigrationConditionType, reason, message string) {
	meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{
		Type:    string(t),
		Status:  metav1.ConditionTrue,
		Reason:  reason,
		Message: message,
	})
}

// refusedError: the server rejects an object, and retrying does not help.
type refusedError struct{ err error }

// Error implements error.
func (e *refusedError) Error() string { return e.err.Error() }

// Unwrap returns the server's error.
func (e *refusedError) Unwrap() error { return e.err }

// migrateAll sends an empty patch for every object. A conflict means that the object was just written in its new form.
func (c *Controller) migrateAll(ctx context.Context, res *catalog.Resource) error {
	next := ""
	for {
		list, err := c.env.Client.Metadata.Resource(res.GVR).List(ctx, metav1.ListOptions{
			Limit:    listPageSize,
			Continue: next,
		})
		if err != nil {
			return fmt.Errorf("list %s: %w", res.GVR.Resource, err)
		}
		err = framework.Parallel(list.Items, maxParallel, func(o metav1.PartialObjectMetadata) error {
			return c.patchEmpty(ctx, res, &o)
		})
		if err != nil {
			return err
		}
		if next = list.Continue; next == "" {
			return nil
		}
	}
}

func (c *Controller) patchEmpty(
	ctx context.Context, res *catalog.Resource, metadata *metav1.PartialObjectMetadata,
) error {
	// With the UID a recreated object is not touched, and a deleted one is not created.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": metadata.UID, "resourceVersion": metadata.ResourceVersion},
	})
	if err != nil {
		return err
	}
	_, err = c.env.Client.Metadata.Resource(res.GVR).Namespace(metadata.Namespace).Patch(ctx, metadata.Name,
		types.MergePatchType,
		patch, metav1.PatchOptions{})
	switch {
	case err == nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		return nil
	case apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsMethodNotSupported(err):
		return &refusedError{
			fmt.Errorf("write %s %s/%s again: %w", res.GVR.Resource, metadata.Namespace, metadata.Name, err),
		}
	}
	return fmt.Errorf("write %s %s/%s again: %w", res.GVR.Resource, metadata.Namespace, metadata.Name, err)
}
