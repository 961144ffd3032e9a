// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/gates"
	"keelson/api/kind/kindtest"
)

// TestRandomPods fills pods at random, more often than the registry's test does for each kind.
func TestRandomPods(t *testing.T) {
	for seed := range int64(150) {
		if kindtest.Exercise(t, Pod(gates.On{}), kindtest.Random(Pod(gates.On{}), seed)); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func FuzzPodJSON(f *testing.F) {
	b, err := json.Marshal(typicalPod(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(
		[]byte(
			`{"metadata":{"name":"a"},"spec":{"affinity":{"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"zone","labelSelector":{"matchLabels":{"a":"b"}}}]}},"tolerations":[{"operator":"Exists"}],"volumes":[{"name":"v","projected":{"sources":[{"serviceAccountToken":{"path":"t"}}]}}]}}`))
	f.Add(
		[]byte(
			`{"spec":{"resources":{"limits":{"cpu":"1","hugepages-0":"1e30"}},"containers":[{"name":"a","resources":{"requests":{"hugepages-2Mi":"-1"}}}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p := &corev1.Pod{}
		if json.Unmarshal(b, p) != nil {
			return
		}
		template := corev1.PodTemplateSpec{ObjectMeta: p.ObjectMeta, Spec: *p.Spec.DeepCopy()}
		kindtest.Exercise(t, Pod(gates.On{}), p)
		podspec.DefaultTemplate(&template)
		podspec.ValidateTemplate(&template, field.NewPath("spec", "template"))
		podspec.TemplateWarnings(&template, field.NewPath("spec", "template"))
	})
}

func FuzzPodProtobuf(f *testing.F) {
	b, err := typicalPod(f).Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("\x0a\x05\x0a\x03web\x12\x08\x12\x06\x0a\x01c\x12\x01i"))
	f.Add(b[:len(b)/2])
	f.Fuzz(func(t *testing.T, b []byte) {
		p := &corev1.Pod{}
		if p.Unmarshal(b) == nil {
			kindtest.Exercise(t, Pod(gates.On{}), p)
		}
	})
}
