// SPDX-License-Identifier: Apache-2.0

package core

import (
	"encoding/json"
	"math/rand"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/randfill"

	"keelson/api/kind"
	"keelson/api/kind/kindtest"
)

// TestRandomObjects fills objects of every kind at random.
func TestRandomObjects(t *testing.T) {
	for _, k := range []*kind.Kind{ConfigMap(), Namespace(), Node(), Pod(), Secret(), Service(), ServiceAccount()} {
		t.Run(k.Kind, func(t *testing.T) {
			for seed := range int64(150) {
				f := randfill.NewWithSeed(seed).NilChance(float64(seed%5)/5).NumElements(0, 3).MaxDepth(12).Funcs(
					func(q *resource.Quantity, c randfill.Continue) {
						*q = *resource.NewMilliQuantity(c.Int63n(5000)-500, resource.DecimalSI)
					},
					func(tm *metav1.Time, c randfill.Continue) { *tm = metav1.Unix(c.Int63n(1e9), 0) },
					func(m *metav1.FieldsV1, _ randfill.Continue) { *m = metav1.FieldsV1{} },
					func(s *string, c randfill.Continue) { *s = word(c.Rand) },
				)
				obj := k.New()
				f.Fill(obj)
				if kindtest.Exercise(t, k, obj); t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

// word picks strings that mean something often enough to get past the first check.
func word(r *rand.Rand) string {
	words := []string{"", "a", "web", "Always", "TCP", "None", "10.0.0.1", "10.42.0.0/24", "cpu", "hugepages-2Mi", "../x", "metadata.labels['a']",
		"ClusterIP", "LoadBalancer", "x/y", "v1", "NoExecute", "Exists", "a b", "nginx:latest", "kubernetes.io/tls", "é", "Windows", "linux"}
	return words[r.Intn(len(words))]
}

func FuzzPodJSON(f *testing.F) {
	b, err := json.Marshal(typicalPod(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"spec":{"resources":{"limits":{"cpu":"1","hugepages-0":"1e30"}},"containers":[{"name":"a","resources":{"requests":{"hugepages-2Mi":"-1"}}}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p := &corev1.Pod{}
		if json.Unmarshal(b, p) != nil {
			return
		}
		template := corev1.PodTemplateSpec{ObjectMeta: p.ObjectMeta, Spec: *p.Spec.DeepCopy()}
		kindtest.Exercise(t, Pod(), p)
		DefaultPodTemplate(&template)
		ValidatePodTemplateSpec(&template, field.NewPath("spec", "template"))
		PodTemplateWarnings(&template, field.NewPath("spec", "template"))
	})
}

func FuzzPodProtobuf(f *testing.F) {
	b, err := typicalPod(f).Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		p := &corev1.Pod{}
		if p.Unmarshal(b) == nil {
			kindtest.Exercise(t, Pod(), p)
		}
	})
}
