// SPDX-License-Identifier: Apache-2.0

package statefulset

import (
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var podGVK = corev1.SchemeGroupVersion.WithKind("Pod")

// newClaims are the claims of pod n, with the owners that the retention policy requires.
func newClaims(set *appsv1.StatefulSet, n int) []*corev1.PersistentVolumeClaim {
	all := make([]*corev1.PersistentVolumeClaim, 0, len(set.Spec.VolumeClaimTemplates))
	for i := range set.Spec.VolumeClaimTemplates {
		t := &set.Spec.VolumeClaimTemplates[i]
		claim := t.DeepCopy()
		claim.Name = claimName(set, t, n)
		claim.Namespace = set.Namespace
		if claim.Labels == nil {
			claim.Labels = map[string]string{}
		}
		maps.Copy(claim.Labels, set.Spec.Selector.MatchLabels)
		claim.Status = corev1.PersistentVolumeClaimStatus{}
		if onDeleted, _ := retention(set); onDeleted && inRange(set, n) {
			claim.OwnerReferences = append(claim.OwnerReferences, *metav1.NewControllerRef(set, gvk))
		}
		all = append(all, claim)
	}
	return all
}

// retention returns whether claims are deleted with the set, and with pods removed by scaling down.
func retention(set *appsv1.StatefulSet) (onDeleted, onScaled bool) {
	p := set.Spec.PersistentVolumeClaimRetentionPolicy
	if p == nil {
		return false, false
	}
	return p.WhenDeleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
		p.WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
}

// objectIdentity is a possible owner of a claim; the UID is empty if it does not exist.
type objectIdentity struct {
	gvk  schema.GroupVersionKind
	name string
	uid  types.UID
}

// matches reports whether ref has this kind and name, with any UID.
func (o objectIdentity) matches(ref *metav1.OwnerReference) bool {
	return ref.APIVersion == o.gvk.GroupVersion().String() && ref.Kind == o.gvk.Kind && ref.Name == o.name
}

func (o objectIdentity) ownerRef() metav1.OwnerReference {
	return *metav1.NewControllerRef(&metav1.ObjectMeta{Name: o.name, UID: o.uid}, o.gvk)
}

// hasStaleRef reports whether refs has a reference to an earlier object of this name.
func (o objectIdentity) hasStaleRef(refs []metav1.OwnerReference) bool {
	return slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool { return o.matches(&r) && r.UID != o.uid })
}

// ownership is the change of a claim's owner references.
type ownership struct {
	refs    []metav1.OwnerReference
	change  bool // whether refs differ from the claim's
	foreign bool // another controller owns the claim: the retention policy does not apply
}

// claimOwners decides the owners of a claim of pod n, whose UID is empty if the pod does not exist:
//
//	whenDeleted  whenScaled   a pod that is wanted  one that is not
//	Retain       Retain       none                  none
//	Delete       Retain       the set               the set
//	Retain       Delete       none                  the pod
//	Delete       Delete       the set               the pod
//
// A claim of an earlier set or pod with the same name is not changed: the garbage collector will delete it.
func claimOwners(claim *corev1.PersistentVolumeClaim, set *appsv1.StatefulSet, n int, pod types.UID) ownership {
	theSet := objectIdentity{gvk, set.Name, set.UID}
	thePod := objectIdentity{podGVK, podName(set, n), pod}
	has := claim.OwnerReferences
	if theSet.hasStaleRef(has) || thePod.hasStaleRef(has) {
		return ownership{}
	}
	var others []metav1.OwnerReference
	foreign := false
	for _, r := range has {
		if theSet.matches(&r) || thePod.matches(&r) {
			continue
		}
		others = append(others, r)
		foreign = foreign || r.Controller != nil && *r.Controller
	}
	onDeleted, onScaled := retention(set)
	foreign = foreign && (onDeleted || onScaled)
	want := slices.Clone(others)
	condemned := onScaled && !inRange(set, n)
	switch {
	case foreign:
	case condemned && pod != "":
		want = append(want, thePod.ownerRef())
	case onDeleted && !condemned:
		want = append(want, theSet.ownerRef())
	}
	return ownership{refs: want, change: !sameOwners(has, want), foreign: foreign}
}

// sameOwners compares UIDs and the controller.
func sameOwners(a, b []metav1.OwnerReference) bool {
	if len(a) != len(b) {
		return false
	}
	for _, x := range a {
		if !slices.ContainsFunc(b, func(y metav1.OwnerReference) bool {
			return x.UID == y.UID && (x.Controller != nil && *x.Controller) == (y.Controller != nil && *y.Controller)
		}) {
			return false
		}
	}
	return true
}

// claimWillBeDeleted reports whether a claim of the missing pod n will be deleted with an earlier set or pod of that
// name, whatever the current policy: the garbage collector will delete the claim or the reference, and a pod that uses
// the claim would block its deletion.
func claimWillBeDeleted(claim *corev1.PersistentVolumeClaim, set *appsv1.StatefulSet, n int) bool {
	return objectIdentity{gvk, set.Name, set.UID}.hasStaleRef(claim.OwnerReferences) || objectIdentity{
		podGVK, podName(set, n), "",
	}.hasStaleRef(claim.OwnerReferences)
}
