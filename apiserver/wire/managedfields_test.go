// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/api/scheme"
)

func fieldsOf(raw string) *metav1.FieldsV1 {
	f := &metav1.FieldsV1{}
	f.SetRawString(raw)
	return f
}

// managed gives obj managedFields whose sets are as they come from clients and stores, and names that look like marks.
func managed(obj kind.Object, sets ...*metav1.FieldsV1) {
	now := metav1.NewTime(time.Unix(1e9, 0))
	var entries []metav1.ManagedFieldsEntry
	for i, set := range sets {
		entries = append(entries, metav1.ManagedFieldsEntry{
			Manager:     fmt.Sprintf(`m%d "fieldsV1":0 <x>`, i),
			Operation:   metav1.ManagedFieldsOperationUpdate,
			APIVersion:  "v1",
			Time:        &now,
			FieldsType:  "FieldsV1",
			FieldsV1:    set,
			Subresource: strings.Repeat("status", i%2),
		})
	}
	obj.SetName("web")
	obj.SetAnnotations(map[string]string{"fieldsV1": "0", "z": `"fieldsV1":0`})
	obj.SetManagedFields(entries)
}

// TestEncodedAsByEncodingJSON: objects of every kind are encoded byte for byte as by encoding/json, and stay as they
// are.
func TestEncodedAsByEncodingJSON(t *testing.T) {
	sets := []*metav1.FieldsV1{
		fieldsOf(`{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"k:{\"name\":\"c\"}":{"f:image":{}}}}`),
		nil,
		fieldsOf("{ \"f:a b\" : {},\n\t\"f:<&>\u2028\":{}}"),
		fieldsOf(`0`),
		fieldsOf(``),
		fieldsOf(`{"f:spec":{}}`),
	}
	kinds := 0
	for gvk := range scheme.Scheme.AllKnownTypes() {
		made, err := scheme.Scheme.New(gvk)
		if err != nil {
			t.Fatal(err)
		}
		obj, ok := made.(kind.Object)
		if !ok {
			continue
		}
		kinds++
		for n := range len(sets) + 1 {
			managed(obj, sets[:n]...)
			before := obj.DeepCopyObject()
			want, err := json.Marshal(kind.Named(made, gvk))
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time from what is remembered
				got, err := encodeJSON(made, gvk)
				if n%2 == 1 { // as objects that have their kind, which are not copied for it
					got, err = encodeJSON(kind.Named(made, gvk), gvk)
				}
				if err != nil || string(got) != string(want)+"\n" {
					t.Fatalf("%s with %d sets: %v\n got %s\nwant %s", gvk, n, err, got, want)
				}
			}
			if diff := cmp.Diff(before, obj.(runtime.Object)); diff != "" {
				t.Fatalf("%s was modified: %s", gvk, diff)
			}
		}
	}
	if kinds < 50 {
		t.Errorf("%d kinds, want all", kinds)
	}
}

// TestBrokenFieldsAreRejected: a set that is no JSON is an error, as encoding/json reports it.
func TestBrokenFieldsAreRejected(t *testing.T) {
	pod := &corev1.Pod{}
	managed(pod, fieldsOf(`{"f:spec":`))
	_, want := json.Marshal(pod)
	if _, err := marshalJSON(pod, schema.GroupVersionKind{}); err == nil || want == nil || err.Error() != want.Error() {
		t.Errorf("got error %v, want %v", err, want)
	}
}

// TestFieldSetsAreCheckedOnce: a set that was encoded before is not looked at again.
func TestFieldSetsAreCheckedOnce(t *testing.T) {
	const raw = `{"f:once":{}}`
	pod := &corev1.Pod{}
	managed(pod, fieldsOf(raw))
	if _, err := marshalJSON(pod, schema.GroupVersionKind{}); err != nil {
		t.Fatal(err)
	}
	checkedFields.mu.Lock()
	checkedFields.known[raw] = []byte(`{"f:remembered":{}}`)
	checkedFields.mu.Unlock()
	b, err := marshalJSON(pod, schema.GroupVersionKind{})
	if err != nil || !strings.Contains(string(b), "f:remembered") {
		t.Errorf("got %s, %v; want the set that is remembered", b, err)
	}
}

func TestRememberedFieldSetsAreBounded(t *testing.T) {
	var sets fieldSets
	for i := range 3 * maxFieldSets / 2000 {
		if _, err := sets.of(fieldsOf(fmt.Sprintf(`{"f:%d%s":{}}`, i, strings.Repeat("x", 1000)))); err != nil {
			t.Fatal(err)
		}
		if sets.bytes > maxFieldSets+4000 {
			t.Fatalf("%d bytes are remembered after %d sets, want about %d at most", sets.bytes, i, maxFieldSets)
		}
	}
}

// BenchmarkEncodeJSON encodes a pod as a controller makes it.
func BenchmarkEncodeJSON(b *testing.B) {
	pod := &corev1.Pod{}
	managed(pod, fieldsOf(`{"f:metadata":{"f:labels":{".":{},"f:app":{},"f:pod-template-hash":{}},"f:ownerReferences":`+
		`{".":{},"k:{\"uid\":\"2f1c7a52-6b1e-4a5e-9d67-0d1b5f6f0c11\"}":{}}},"f:spec":{"f:containers":{"k:{\"name\":`+
		`\"c\"}":{".":{},"f:env":{".":{},"k:{\"name\":\"A\"}":{".":{},"f:name":{},"f:value":{}},"k:{\"name\":\"B\"}":`+
		`{".":{},"f:name":{},"f:value":{}}},"f:image":{},"f:imagePullPolicy":{},"f:name":{},"f:resources":{".":{},`+
		`"f:requests":{".":{},"f:cpu":{},"f:memory":{}}},"f:terminationMessagePath":{},"f:terminationMessagePolicy":{}}},`+
		`"f:dnsPolicy":{},"f:enableServiceLinks":{},"f:restartPolicy":{},"f:schedulerName":{},"f:securityContext":{},`+
		`"f:terminationGracePeriodSeconds":{}}}`), fieldsOf(`{"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{".":{},`+
		`"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"PodScheduled\"}":{".":{},`+
		`"f:lastTransitionTime":{},"f:status":{},"f:type":{}}},"f:phase":{},"f:podIP":{},"f:startTime":{}}}`))
	for i := range 2 {
		c := corev1.Container{Name: fmt.Sprintf("c-%d", i), Image: "registry.example/my-app:v1.2.3"}
		for j := range 4 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", j), Value: "a value of middling length"})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	gvk := corev1.SchemeGroupVersion.WithKind("Pod")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := encodeJSON(pod, gvk); err != nil {
			b.Fatal(err)
		}
	}
}
