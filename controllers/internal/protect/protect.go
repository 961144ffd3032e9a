// SPDX-License-Identifier: Apache-2.0

// Package protect is what the controllers that keep storage objects from vanishing
// while somebody uses them have in common: each watches over one finalizer, which
// admission gives to new objects. It reads and writes no object by itself.
package protect

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Finalizers of storage objects, as Kubernetes names them.
const (
	Claim  = "kubernetes.io/pvc-protection"
	Volume = "kubernetes.io/pv-protection"
	Class  = "kubernetes.io/vac-protection"
)

// Doomed tells whether o is being deleted and the finalizer is what holds it, or one of the things that do.
func Doomed(o metav1.Object, finalizer string) bool {
	return o.GetDeletionTimestamp() != nil && slices.Contains(o.GetFinalizers(), finalizer)
}

// Bare tells whether o stays and lacks the finalizer: it was made when admission did not add it.
func Bare(o metav1.Object, finalizer string) bool {
	return o.GetDeletionTimestamp() == nil && !slices.Contains(o.GetFinalizers(), finalizer)
}

// Concerns tells whether a change of o is worth a pass.
func Concerns(o metav1.Object, finalizer string) bool {
	return Doomed(o, finalizer) || Bare(o, finalizer)
}

// Toggle gives o the finalizer if it lacks it, and else takes it away. o is the caller's own copy.
func Toggle(o metav1.Object, finalizer string) {
	if had := o.GetFinalizers(); !slices.Contains(had, finalizer) {
		o.SetFinalizers(append(slices.Clip(had), finalizer))
		return
	}
	o.SetFinalizers(slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool { return f == finalizer }))
}
