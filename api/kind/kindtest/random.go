// SPDX-License-Identifier: Apache-2.0

package kindtest

import (
	"encoding/json"
	"math/rand"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"keelson/api/kind"
)

// Exercise runs everything a server does with an object of kind spec, whatever is in it; nothing may panic, defaulting
// may change nothing the second time, validation nothing at all and an update nothing of the old object.
func Exercise(t *testing.T, spec *kind.Kind, obj kind.Object) {
	t.Helper()
	spec.Default(obj)
	once := obj.DeepCopyObject()
	spec.Default(obj)
	if !equality.Semantic.DeepEqual(once, obj) {
		t.Errorf("%s: defaulting twice is not defaulting once (-once +twice):\n%s", spec.Kind, cmp.Diff(once, obj))
	}
	before := obj.DeepCopyObject()
	spec.Validate(obj)
	spec.Warnings(obj, nil)
	spec.Fields(obj)
	if got, want := len(spec.Row(obj)), len(spec.Columns); got != want {
		t.Errorf("%s: %d cells for %d columns", spec.Kind, got, want)
	}
	spec.ValidateUpdate(obj, obj)
	for _, sub := range spec.Subs {
		sub.ValidateUpdate(obj, obj)
	}
	if spec.Scale != nil {
		spec.Scale.Get(obj)
	}
	if !equality.Semantic.DeepEqual(before, obj) {
		t.Errorf("%s: validation changed the object (-before +after):\n%s", spec.Kind, cmp.Diff(before, obj))
	}
	old := obj.DeepCopyObject().(kind.Object)
	spec.PrepareUpdate(obj, old)
	spec.Warnings(obj, old)
	for _, sub := range spec.Subs {
		next := obj.DeepCopyObject().(kind.Object)
		sub.PrepareUpdate(next, old)
		sub.ValidateUpdate(next, old)
	}
	if !equality.Semantic.DeepEqual(before, old) {
		t.Errorf("%s: an update changed the old object", spec.Kind)
	}
	spec.PrepareCreate(obj)
}

// Random is an object of kind spec filled from seed.
func Random(spec *kind.Kind, seed int64) kind.Object {
	filler := randfill.NewWithSeed(seed).NilChance(float64(seed%5)/5).NumElements(0, 3).MaxDepth(14).Funcs(
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewMilliQuantity(c.Int63n(5000)-500, resource.DecimalSI)
		},
		func(tm *metav1.Time, c randfill.Continue) { *tm = metav1.Unix(c.Int63n(1e9), 0) },
		func(tm *metav1.MicroTime, c randfill.Continue) {
			*tm = metav1.NewMicroTime(metav1.Unix(c.Int63n(1e9), 0).Time)
		},
		func(m *metav1.FieldsV1, _ randfill.Continue) { *m = *metav1.NewFieldsV1("{}") },
		func(r *runtime.RawExtension, _ randfill.Continue) { *r = runtime.RawExtension{Raw: []byte(`{"a":1}`)} },
		func(v *intstr.IntOrString, c randfill.Continue) {
			*v = intstr.FromInt32(c.Int31n(200) - 10)
			if c.Bool() {
				*v = intstr.FromString([]string{"25%", "http", "", "150%"}[c.Intn(4)])
			}
		},
		func(*metav1.TypeMeta, randfill.Continue) {}, // of parts: protobuf does not hold it
		func(s *string, c randfill.Continue) { *s = word(c.Rand) },
	)
	obj := spec.New()
	filler.Fill(obj)
	obj.GetObjectKind().SetGroupVersionKind(spec.GVK())
	return obj
}

// word picks strings that mean something often enough to get past the first check.
func word(r *rand.Rand) string {
	words := []string{
		"", "a", "web", "Always", "TCP", "None", "10.0.0.1", "10.42.0.0/24", "cpu", "hugepages-2Mi", "../x",
		"metadata.labels['a']",
		"ClusterIP", "LoadBalancer", "x/y", "v1", "NoExecute", "Exists", "a b", "nginx:latest", "kubernetes.io/tls",
		"é", "Windows", "linux",
		"In", "Retain", "Queue", "User", "Resource", "Utilization", "https://example.com/x", "*/5 * * * *",
		"example.com/signer", "*", "Never",
	}
	return words[r.Intn(len(words))]
}

// RoundTrip encodes obj as JSON and as protobuf; decoded again it must mean the same.
func RoundTrip(t *testing.T, spec *kind.Kind, obj kind.Object) {
	t.Helper()
	text, err := json.Marshal(obj)
	if err != nil {
		t.Fatalf("%s to JSON: %v", spec.Kind, err)
	}
	again := spec.New()
	if err := json.Unmarshal(text, again); err != nil {
		t.Fatalf("%s from JSON: %v", spec.Kind, err)
	}
	if !equality.Semantic.DeepEqual(obj, again) {
		t.Errorf("%s through JSON (-before +after):\n%s", spec.Kind, cmp.Diff(obj, again))
	}
	type message interface {
		Marshal() ([]byte, error)
		Unmarshal(b []byte) error
	}
	from, ok := obj.(message)
	if !ok {
		t.Fatalf("%s has no protobuf form", spec.Kind)
	}
	b, err := from.Marshal()
	if err != nil {
		t.Fatalf("%s to protobuf: %v", spec.Kind, err)
	}
	back := spec.New()
	if err := back.(message).Unmarshal(b); err != nil {
		t.Fatalf("%s from protobuf: %v", spec.Kind, err)
	}
	back.GetObjectKind().SetGroupVersionKind(obj.GetObjectKind().GroupVersionKind()) // travels in the envelope
	if !equality.Semantic.DeepEqual(obj, back) {
		t.Errorf("%s through protobuf (-before +after):\n%s", spec.Kind, cmp.Diff(obj, back))
	}
}
