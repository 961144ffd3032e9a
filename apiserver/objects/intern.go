// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/api/kind"
)

// interner shares equal managed fields between objects: pods of a workload, and most objects of a kind, have the same,
// and their JSON is often larger than the rest of the object. It has two generations to limit its size: a full young
// one replaces the old one.
type interner struct {
	mu         sync.Mutex
	young, old map[string]*metav1.FieldsV1
	bytes      int // of young
}

const generationBytes = 1 << 20 // per generation

// intern replaces what obj, which the caller owns, has in common with others.
func (a *interner) intern(obj kind.Object) {
	if _, ok := obj.(runtime.Unstructured); ok {
		return
	}
	entries := obj.GetManagedFields()
	cloned := false // the list itself may belong to an earlier state
	for i := range entries {
		if entries[i].FieldsV1 == nil {
			continue
		}
		common := a.internFields(entries[i].FieldsV1)
		if common == entries[i].FieldsV1 {
			continue
		}
		if !cloned {
			entries = slices.Clone(entries)
			cloned = true
		}
		entries[i].FieldsV1 = common
	}
	if cloned {
		obj.SetManagedFields(entries)
	}
}

// internFields returns the first value equal to f.
func (a *interner) internFields(f *metav1.FieldsV1) *metav1.FieldsV1 {
	raw := f.GetRawBytes()
	a.mu.Lock()
	defer a.mu.Unlock()
	if have, ok := a.young[string(raw)]; ok {
		return have
	}
	have, ok := a.old[string(raw)]
	if !ok {
		have = f
	}
	if a.young == nil || a.bytes > generationBytes {
		a.old = a.young
		a.young = map[string]*metav1.FieldsV1{}
		a.bytes = 0
	}
	a.young[string(raw)] = have
	a.bytes += len(raw)
	return have
}
