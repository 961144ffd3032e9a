// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"cmp"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
)

// Annotations of the default class.
const (
	DefaultClassAnnotation     = "storageclass.kubernetes.io/is-default-class"
	betaDefaultClassAnnotation = "storageclass.beta.kubernetes.io/is-default-class"
)

// IsDefaultClass reports whether claims that ask for no class get this one.
func IsDefaultClass(c *storagev1.StorageClass) bool {
	return c.Annotations[DefaultClassAnnotation] == "true" || c.Annotations[betaDefaultClassAnnotation] == "true"
}

// DefaultClass is the default class among all: of several the one made last, of those made at once the first by name.
// nil: none is.
func DefaultClass(all []*storagev1.StorageClass) *storagev1.StorageClass {
	all = slices.DeleteFunc(slices.Clone(all), func(c *storagev1.StorageClass) bool { return !IsDefaultClass(c) })
	if len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, func(a, b *storagev1.StorageClass) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
}
