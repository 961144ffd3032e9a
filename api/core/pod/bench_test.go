// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"keelson/api/fastequal"
)

// typicalPod is a pod of about 2 KB as a Deployment makes them.
func typicalPod(tb testing.TB) *corev1.Pod {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "typical-pod.yaml"))
	if err != nil {
		tb.Fatal(err)
	}
	p := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(b, p); err != nil {
		tb.Fatal(err)
	}
	return p
}

func BenchmarkPodDefaultAndValidate(b *testing.B) {
	in := typicalPod(b)
	b.ReportMetric(float64(in.Size()), "bytes")
	p := in.DeepCopy()
	setDefaults(p)
	if errs := validateCreate(p); len(errs) > 0 {
		b.Fatal(errs)
	}
	for b.Loop() {
		b.StopTimer()
		p := in.DeepCopy()
		b.StartTimer()
		setDefaults(p)
		validateCreate(p)
	}
}

func BenchmarkPodValidate(b *testing.B) {
	p := typicalPod(b)
	setDefaults(p)
	b.ReportAllocs()
	for b.Loop() {
		validateCreate(p)
	}
}

func BenchmarkPodDefaultAgain(b *testing.B) {
	p := typicalPod(b)
	setDefaults(p)
	b.ReportAllocs()
	for b.Loop() {
		setDefaults(p)
	}
}

func BenchmarkPodRow(b *testing.B) {
	p := typicalPod(b)
	setDefaults(p)
	b.ReportAllocs()
	for b.Loop() {
		row(p)
	}
}

func BenchmarkPodFields(b *testing.B) {
	p := typicalPod(b)
	b.ReportAllocs()
	for b.Loop() {
		selectable(p)
	}
}

func BenchmarkPodUpdateOfAnnotation(b *testing.B) {
	old := typicalPod(b)
	setDefaults(old)
	p := old.DeepCopy()
	p.Annotations = map[string]string{"note": "new"}
	b.ReportAllocs()
	for b.Loop() {
		bumpGeneration(p, old)
		if errs := validateUpdate(p, old); len(errs) > 0 {
			b.Fatal(errs)
		}
	}
}

func TestSameSpec(t *testing.T) {
	old := typicalPod(t)
	setDefaults(old)
	for _, tc := range []struct {
		name   string
		change func(s *corev1.PodSpec)
		want   bool
	}{
		{"nothing", func(*corev1.PodSpec) {}, true},
		{"empty for nil", func(s *corev1.PodSpec) { s.HostAliases = []corev1.HostAlias{} }, true},
		{
			"another of that length", func(s *corev1.PodSpec) {
				s.Containers[0].Image = strings.ToUpper(s.Containers[0].Image)
			}, false,
		},
		{"more", func(s *corev1.PodSpec) { s.NodeName = "n" }, false},
	} {
		p := old.DeepCopy()
		if tc.change(&p.Spec); fastequal.Semantically(&p.Spec, &old.Spec) != tc.want {
			t.Errorf("%s: got %v, want %v", tc.name, !tc.want, tc.want)
		}
	}
}
