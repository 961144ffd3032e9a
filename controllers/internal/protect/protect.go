// SPDX-License-Identifier: Apache-2.0

// Package protect is shared by the controllers that prevent the removal of storage objects in use: each manages one
// finalizer, which admission adds to new objects. It reads and writes no objects itself.
package protect

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The finalizers of storage objects in Kubernetes.
const (
	Claim  = "kubernetes.io/pvc-protection"
	Volume = "kubernetes.io/pv-protection"
	Class  = "kubernetes.io/vac-protection"
)

// NeedsRemoval reports whether o is being deleted and has the finalizer.
func NeedsRemoval(o metav1.Object, finalizer string) bool {
	return o.GetDeletionTimestamp() != nil && slices.Contains(o.GetFinalizers(), finalizer)
}

// NeedsAdd reports whether o is not being deleted and lacks the finalizer, because it was created without the admission
// plugin.
func NeedsAdd(o metav1.Object, finalizer string) bool {
	return o.GetDeletionTimestamp() == nil && !slices.Contains(o.GetFinalizers(), finalizer)
}

// NeedsSync reports whether o needs a pass.
func NeedsSync(o metav1.Object, finalizer string) bool {
	return NeedsRemoval(o, finalizer) || NeedsAdd(o, finalizer)
}

// AddOrRemove adds the finalizer to o if it is missing, else removes it. o must be the caller's copy.
func AddOrRemove(o metav1.Object, finalizer string) {
	if had := o.GetFinalizers(); !slices.Contains(had, finalizer) {
		o.SetFinalizers(append(slices.Clip(had), finalizer))
		return
	}
	o.SetFinalizers(slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool { return f == finalizer }))
}
