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

// newClaims are the claims of pod n, owned as the retention policy says of a pod that the set wants.
func newClaims(set *appsv1.StatefulSet, n int) []*corev1.PersistentVolumeClaim {
	all := make([]*corev1.PersistentVolumeClaim, 0, len(set.Spec.VolumeClaimTemplates))
	for i := range set.Spec.VolumeClaimTemplates {
		t := &set.Spec.VolumeClaimTemplates[i]
		c := t.DeepCopy()
		c.Name, c.Namespace = claimName(set, t, n), set.Namespace
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		maps.Copy(c.Labels, set.Spec.Selector.MatchLabels)
		c.Status = corev1.PersistentVolumeClaimStatus{}
		if onDeleted, _ := retention(set); onDeleted && inRange(set, n) {
			c.OwnerReferences = append(c.OwnerReferences, *metav1.NewControllerRef(set, gvk))
		}
		all = append(all, c)
	}
	return all
}

// retention says whether claims are deleted with the set, and with pods that it does not want any more.
func retention(set *appsv1.StatefulSet) (onDeleted, onScaled bool) {
	p := set.Spec.PersistentVolumeClaimRetentionPolicy
	if p == nil {
		return false, false
	}
	return p.WhenDeleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType, p.WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
}

// identity is an object that may own a claim; the UID is empty while it does not exist.
type identity struct {
	gvk  schema.GroupVersionKind
	name string
	uid  types.UID
}

// names reports whether ref is to an object of this kind and name, whatever its UID.
func (o identity) names(ref *metav1.OwnerReference) bool {
	return ref.APIVersion == o.gvk.GroupVersion().String() && ref.Kind == o.gvk.Kind && ref.Name == o.name
}

func (o identity) ref() metav1.OwnerReference {
	return *metav1.NewControllerRef(&metav1.ObjectMeta{Name: o.name, UID: o.uid}, o.gvk)
}

// stale reports whether a reference to an earlier object of this name is among refs.
func (o identity) stale(refs []metav1.OwnerReference) bool {
	return slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool { return o.names(&r) && r.UID != o.uid })
}

// ownership is what is to be done about a claim's owner references.
type ownership struct {
	refs    []metav1.OwnerReference
	change  bool // refs differ from what the claim has
	foreign bool // another controller has the claim: the retention policy does not apply
}

// claimOwners decides who owns a claim of pod n, whose UID is empty while the pod does not exist:
//
//	whenDeleted  whenScaled   a pod that is wanted  one that is not
//	Retain       Retain       nobody                nobody
//	Delete       Retain       the set               the set
//	Retain       Delete       nobody                the pod
//	Delete       Delete       the set               the pod
//
// A claim left from an earlier set or pod of the same name is not touched: it is about to be deleted.
func claimOwners(claim *corev1.PersistentVolumeClaim, set *appsv1.StatefulSet, n int, pod types.UID) ownership {
	theSet, thePod := identity{gvk, set.Name, set.UID}, identity{podGVK, podName(set, n), pod}
	has := claim.OwnerReferences
	if theSet.stale(has) || thePod.stale(has) {
		return ownership{}
	}
	var others []metav1.OwnerReference
	foreign := false
	for _, r := range has {
		if theSet.names(&r) || thePod.names(&r) {
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
		want = append(want, thePod.ref())
	case onDeleted && !condemned:
		want = append(want, theSet.ref())
	}
	return ownership{refs: want, change: !sameOwners(has, want), foreign: foreign}
}

// sameOwners compares by UID and by who is the controller.
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

// blocked reports whether a claim of pod n, which does not exist, is to be deleted with an earlier set or pod of that name. Whatever the
// set's own policy: the garbage collector takes the claim, or the reference, and a pod that uses the claim by then would keep it half
// deleted.
func blocked(claim *corev1.PersistentVolumeClaim, set *appsv1.StatefulSet, n int) bool {
	return identity{gvk, set.Name, set.UID}.stale(claim.OwnerReferences) || identity{podGVK, podName(set, n), ""}.stale(claim.OwnerReferences)
}
