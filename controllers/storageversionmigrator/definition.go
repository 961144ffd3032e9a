// SPDX-License-Identifier: Apache-2.0

package storageversionmigrator

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	migrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var definitions = schema.GroupVersionResource{
	Group:    "apiextensions.k8s.io",
	Version:  "v1",
	Resource: "customresourcedefinitions",
}

// migrating is the condition of a definition whose objects are being migrated.
const migrating = "StorageMigrating"

// definition is the CustomResourceDefinition of the migrated resource; nil for built-in resources.
func (c *Controller) definition(
	ctx context.Context, migration *migrationv1.StorageVersionMigration,
) (*unstructured.Unstructured, error) {
	if migration.Spec.Resource.Group == "" {
		return nil, nil // a built-in resource
	}
	d, err := c.env.Client.Dynamic.Resource(definitions).Get(ctx,
		migration.Spec.Resource.Resource+"."+migration.Spec.Resource.Group,
		metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // a built-in resource
	}
	if err != nil {
		return nil, fmt.Errorf("read the definition of %s: %w", migration.Spec.Resource.Resource, err)
	}
	return d, nil
}

func (c *Controller) startDefinition(ctx context.Context, m *migrationv1.StorageVersionMigration) error {
	d, err := c.definition(ctx, m)
	if d == nil || err != nil {
		return err
	}
	return c.updateDefinition(ctx, d, nil, metav1.Condition{
		Status:             metav1.ConditionTrue,
		Reason:             "MigrationRunning",
		Message:            "Migration " + m.Name + " is running",
		ObservedGeneration: d.GetGeneration(),
	})
}

// finishDefinition sets storedVersions to the storage version, if that has not changed during the migration.
func (c *Controller) finishDefinition(
	ctx context.Context, m *migrationv1.StorageVersionMigration, succeeded bool,
) error {
	obj, err := c.definition(ctx, m)
	if obj == nil || err != nil {
		return err
	}
	now := metav1.Condition{
		Status:             metav1.ConditionTrue,
		Reason:             "MigrationFailed",
		Message:            "The migration has failed",
		ObservedGeneration: obj.GetGeneration(),
	}
	var stored []string
	if succeeded {
		now.Status = metav1.ConditionFalse
		now.Reason = "MigrationSucceeded"
		now.Message = "The migration has succeeded but the stored versions have not been updated due to a generation " +
			"mismatch"
		if began := conditionOf(obj, migrating); began != nil && began["observedGeneration"] == obj.GetGeneration() {
			stored = []string{storageVersion(obj)}
			now.Message = "The migration has succeeded and the stored versions have been updated"
		}
	}
	return c.updateDefinition(ctx, obj, stored, now)
}

// updateDefinition writes the condition and, unless nil, the stored versions, if obj has not changed since it was read.
func (c *Controller) updateDefinition(
	ctx context.Context, obj *unstructured.Unstructured, stored []string, now metav1.Condition,
) error {
	all, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	all = slices.DeleteFunc(slices.Clone(all), func(x any) bool {
		o, ok := x.(map[string]any)
		return ok && o["type"] == migrating
	})
	all = append(all, map[string]any{
		"type":               migrating,
		"status":             string(now.Status),
		"reason":             now.Reason,
		"message":            now.Message,
		"lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
		"observedGeneration": now.ObservedGeneration,
	})
	status := map[string]any{"conditions": all}
	if stored != nil {
		status["storedVersions"] = stored
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": obj.GetResourceVersion()},
		"status":   status,
	})
	if err != nil {
		return err
	}
	_, err = c.env.Client.Dynamic.Resource(definitions).Patch(ctx, obj.GetName(), types.MergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write the status of definition %s: %w", obj.GetName(), err)
	}
	return nil
}

func conditionOf(d *unstructured.Unstructured, t string) map[string]any {
	all, _, _ := unstructured.NestedSlice(d.Object, "status", "conditions")
	for _, x := range all {
		if o, ok := x.(map[string]any); ok && o["type"] == t {
			return o
		}
	}
	return nil
}

// storageVersion is the definition's storage version.
func storageVersion(d *unstructured.Unstructured) string {
	all, _, _ := unstructured.NestedSlice(d.Object, "spec", "versions")
	for _, x := range all {
		if o, ok := x.(map[string]any); ok && o["storage"] == true {
			name, _ := o["name"].(string)
			return name
		}
	}
	return ""
}
