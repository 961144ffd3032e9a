// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Sum adds b to a. The caller owns the result, as with all functions here.
func Sum(a, b corev1.ResourceList) corev1.ResourceList {
	out := make(corev1.ResourceList, len(a)+len(b))
	for k, v := range a {
		out[k] = v.DeepCopy()
	}
	for k, v := range b {
		q := out[k]
		q.Add(v)
		if _, had := out[k]; !had {
			q = v.DeepCopy()
		}
		out[k] = q
	}
	return out
}

// Minus takes b from a, in a's names and b's.
func Minus(a, b corev1.ResourceList) corev1.ResourceList {
	out := Sum(a, nil)
	for k, v := range b {
		q, had := out[k]
		if !had {
			q = resource.Quantity{Format: v.Format}
		}
		q.Sub(v)
		out[k] = q
	}
	return out
}

// Floor raises negative amounts to zero.
func Floor(l corev1.ResourceList) corev1.ResourceList {
	for k, v := range l {
		if v.Sign() < 0 {
			l[k] = resource.Quantity{Format: v.Format}
		}
	}
	return l
}

// Only keeps the given names.
func Only(l corev1.ResourceList, names []corev1.ResourceName) corev1.ResourceList {
	out := make(corev1.ResourceList, len(names))
	for _, n := range names {
		if v, ok := l[n]; ok {
			out[n] = v.DeepCopy()
		}
	}
	return out
}

// NonZero drops what is zero.
func NonZero(l corev1.ResourceList) corev1.ResourceList {
	out := make(corev1.ResourceList, len(l))
	for k, v := range l {
		if !v.IsZero() {
			out[k] = v
		}
	}
	return out
}

// Names are the sorted names of a list.
func Names(l corev1.ResourceList) []corev1.ResourceName { return slices.Sorted(maps.Keys(l)) }

// Negative are the names of negative amounts, sorted.
func Negative(l corev1.ResourceList) []corev1.ResourceName {
	var out []corev1.ResourceName
	for _, n := range Names(l) {
		if v := l[n]; v.Sign() < 0 {
			out = append(out, n)
		}
	}
	return out
}

// Over are the names by which l is more than limit allows, sorted; what has no limit is allowed.
func Over(l, limit corev1.ResourceList) []corev1.ResourceName {
	var out []corev1.ResourceName
	for _, n := range Names(l) {
		v := l[n]
		if most, ok := limit[n]; ok && v.Cmp(most) > 0 {
			out = append(out, n)
		}
	}
	return out
}

// Equal reports whether two lists have the same names and amounts.
func Equal(a, b corev1.ResourceList) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v.Cmp(w) != 0 {
			return false
		}
	}
	return true
}

// Text is "cpu=1,pods=2", by name.
func Text(l corev1.ResourceList) string {
	parts := make([]string, 0, len(l))
	for _, n := range Names(l) {
		v := l[n]
		parts = append(parts, string(n)+"="+v.String())
	}
	return strings.Join(parts, ",")
}

// Joined is the names with commas between.
func Joined(names []corev1.ResourceName) string {
	parts := make([]string, len(names))
	for i, n := range names {
		parts[i] = string(n)
	}
	return strings.Join(parts, ",")
}
