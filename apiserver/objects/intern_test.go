// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func owned(fields string) *corev1.Pod {
	f := &metav1.FieldsV1{}
	f.SetRawString(fields)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: f}}},
	}
}

func TestInterner(t *testing.T) {
	var a interner
	x := owned(`{"f:spec":{}}`)
	y := owned(`{"f:spec":{}}`)
	pod := owned(`{"f:status":{}}`)
	shared := y.ManagedFields // as a state that was handed out has it
	own := y.ManagedFields[0].FieldsV1
	for _, p := range []*corev1.Pod{x, y, pod} {
		a.intern(p)
	}
	if x.ManagedFields[0].FieldsV1 != y.ManagedFields[0].FieldsV1 {
		t.Error("two pods with the same owned fields do not share them")
	}
	if shared[0].FieldsV1 != own {
		t.Error("a list of entries was modified that others may hold")
	}
	if got := pod.ManagedFields[0].FieldsV1.GetRawString(); got != `{"f:status":{}}` {
		t.Errorf("the third pod has got %s", got)
	}
}

// TestInternerIsBounded fills it beyond its bound; what is in use all the time stays.
func TestInternerIsBounded(t *testing.T) {
	var a interner
	first := owned(`{"f:spec":{}}`)
	a.intern(first)
	filler := strings.Repeat("x", 10_000)
	for i := range 5 * generationBytes / len(filler) {
		a.intern(owned(fmt.Sprintf(`{"f:%s%d":{}}`, filler, i)))
		again := owned(`{"f:spec":{}}`)
		if a.intern(again); again.ManagedFields[0].FieldsV1 != first.ManagedFields[0].FieldsV1 {
			t.Fatalf("after %d others what is used all the time is forgotten", i)
		}
	}
	if n, most := len(a.young)+len(a.old), 2*generationBytes/len(filler)+4; n > most {
		t.Errorf("%d are remembered, want at most %d", n, most)
	}
}
