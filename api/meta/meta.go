// SPDX-License-Identifier: Apache-2.0

// Package meta holds the rules about metadata that several groups share beyond
// those of apimachinery: finalizer names, the generation, and which metadata a
// status update may touch. Kinds call it from their PrepareUpdate and Validate.
package meta

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/invalid"
)

// standardFinalizers are the names without a domain that may stand in a list of finalizers.
var standardFinalizers = []string{"kubernetes", metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents}

// maxEntries bounds each list and map of an object's metadata. No object that fits into the store comes near it; what
// does could have more errors than its own size many times over.
const maxEntries = 10_000

// TooLarge reports lists and maps of metadata that are too long to be looked at. Every check of metadata begins with
// it.
func TooLarge(m metav1.Object, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, part := range []struct {
		name string
		n    int
	}{
		{"labels", len(m.GetLabels())},
		{"annotations", len(m.GetAnnotations())},
		{"ownerReferences", len(m.GetOwnerReferences())},
		{"finalizers", len(m.GetFinalizers())},
		{"managedFields", len(m.GetManagedFields())},
	} {
		if part.n > maxEntries {
			errs = invalid.Append(errs, field.TooMany(at.Child(part.name), part.n, maxEntries))
		}
	}
	return errs
}

// Finalizers wants each name in metadata.finalizers to be fully qualified or one of the three old ones. Kinds of the
// built-in groups check this on create and update, in addition to what apimachinery checks for all.
func Finalizers(m metav1.Object) field.ErrorList {
	var errs field.ErrorList
	for i, name := range m.GetFinalizers() {
		errs = invalid.Append(errs, FinalizerName(name, field.NewPath("metadata", "finalizers").Index(i))...)
	}
	return errs
}

// FinalizerName checks one name.
func FinalizerName(name string, path *field.Path) field.ErrorList {
	if strings.Contains(name, "/") || slices.Contains(standardFinalizers, name) {
		return nil
	}
	return field.ErrorList{
		field.Invalid(path, name, "name is neither a standard finalizer name nor is it fully qualified"),
	}
}

// KeepAllForStatus is KeepForStatus with the rest of what a client may write.
func KeepAllForStatus(obj, old metav1.Object) {
	KeepForStatus(obj, old)
	obj.SetGenerateName(old.GetGenerateName())
	obj.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
}

// KeepForStatus puts back the metadata that an update of the status, or of another subresource, may not change:
// everything but managedFields and resourceVersion,
// generateName and the grace period.
func KeepForStatus(obj, old metav1.Object) {
	obj.SetDeletionTimestamp(old.GetDeletionTimestamp())
	obj.SetGeneration(old.GetGeneration())
	obj.SetSelfLink(old.GetSelfLink())
	obj.SetLabels(old.GetLabels())
	obj.SetAnnotations(old.GetAnnotations())
	obj.SetFinalizers(old.GetFinalizers())
	obj.SetOwnerReferences(old.GetOwnerReferences())
}
