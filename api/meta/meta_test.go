// SPDX-License-Identifier: Apache-2.0

package meta

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestFinalizers(t *testing.T) {
	errs := Finalizers(&metav1.ObjectMeta{
		Finalizers: []string{"kubernetes", "orphan", "foregroundDeletion", "example.com/x", "mine"},
	})
	want := `metadata.finalizers[4]: Invalid value: "mine": name is neither a standard finalizer name nor is it fully qualified`
	if len(errs) != 1 || errs[0].Error() != want {
		t.Errorf("got %v, want %s", errs, want)
	}
}

func TestKeepForStatus(t *testing.T) {
	now := metav1.Now()
	old := &metav1.ObjectMeta{
		Generation:        3,
		Labels:            map[string]string{"a": "b"},
		DeletionTimestamp: &now,
		Finalizers:        []string{"x/y"},
	}
	obj := &metav1.ObjectMeta{ResourceVersion: "5", Generation: 9, Labels: map[string]string{"a": "c"}}
	KeepForStatus(obj, old)
	if obj.Generation != 3 || obj.Labels["a"] != "b" || obj.DeletionTimestamp != &now || len(obj.Finalizers) != 1 ||
		obj.ResourceVersion != "5" {
		t.Errorf("got %+v", obj)
	}
}
