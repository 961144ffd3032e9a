// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func list(cpu, memory string) corev1.ResourceList {
	l := corev1.ResourceList{}
	if cpu != "" {
		l[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		l[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	return l
}

func container(requests, limits corev1.ResourceList) corev1.Container {
	return corev1.Container{Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}
}

func TestQOS(t *testing.T) {
	tests := []struct {
		name string
		spec corev1.PodSpec
		want corev1.PodQOSClass
	}{
		{"nothing", corev1.PodSpec{Containers: []corev1.Container{{}}}, corev1.PodQOSBestEffort},
		{
			"zero",
			corev1.PodSpec{Containers: []corev1.Container{container(list("0", "0"), nil)}},
			corev1.PodQOSBestEffort,
		},
		{
			"requests",
			corev1.PodSpec{Containers: []corev1.Container{container(list("1", ""), nil)}},
			corev1.PodQOSBurstable,
		},
		{
			"equal", corev1.PodSpec{Containers: []corev1.Container{
				container(list("1", "1Gi"), list("1000m", "1024Mi")),
			}}, corev1.PodQOSGuaranteed,
		},
		{
			"only cpu",
			corev1.PodSpec{Containers: []corev1.Container{container(list("1", ""), list("1", ""))}},
			corev1.PodQOSBurstable,
		},
		{
			"one of two", corev1.PodSpec{Containers: []corev1.Container{
				container(list("1", "1Gi"), list("1", "1Gi")), {},
			}}, corev1.PodQOSBurstable,
		},
		{"init container counts", corev1.PodSpec{
			Containers:     []corev1.Container{container(list("1", "1Gi"), list("1", "1Gi"))},
			InitContainers: []corev1.Container{{}},
		}, corev1.PodQOSBurstable},
		{"pod level", corev1.PodSpec{
			Containers: []corev1.Container{{}},
			Resources:  &corev1.ResourceRequirements{Requests: list("1", "1Gi"), Limits: list("1", "1Gi")},
		}, corev1.PodQOSGuaranteed},
		{"pod level, empty", corev1.PodSpec{
			Containers: []corev1.Container{container(list("1", "1Gi"), list("1", "1Gi"))},
			Resources:  &corev1.ResourceRequirements{Requests: corev1.ResourceList{}},
		}, corev1.PodQOSGuaranteed},
	}
	for _, tt := range tests {
		if got := QOS(&corev1.Pod{Spec: tt.spec}); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestRequests(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	sidecar := container(list("200m", "10Mi"), nil)
	sidecar.RestartPolicy = &always
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{
			container(list("100m", "1Gi"), nil), sidecar, container(list("1", "20Mi"), nil),
		},
		Containers: []corev1.Container{
			container(list("300m", "30Mi"), list("1", "")), container(list("400m", "40Mi"), list("2", "")),
		},
		Overhead: list("50m", "5Mi"),
	}}
	got := Requests(pod)
	// cpu: the last init container with the sidecar; memory: the first, alone.
	if got.Cpu().String() != "1250m" || got.Memory().String() != "1029Mi" {
		t.Errorf("requests: cpu %s, memory %s, want 1250m and 1029Mi", got.Cpu(), got.Memory())
	}
	if got := Limits(pod); got.Cpu().String() != "3050m" {
		t.Errorf("limits: cpu %s, want 3050m", got.Cpu())
	}
	if got := Reserved(pod); got.Cpu().String() != "1250m" {
		t.Errorf("reserved: cpu %s, want 1250m", got.Cpu())
	}
}

func TestNames(t *testing.T) {
	type facts struct{ native, extended, huge, overcommit, container, standard, whole bool }
	tests := map[corev1.ResourceName]facts{
		"cpu":                        {native: true, overcommit: true, container: true, standard: true},
		"hugepages-2Mi":              {native: true, huge: true, container: true, standard: true},
		"pods":                       {native: true, overcommit: true, standard: true, whole: true},
		"gpu":                        {native: true, overcommit: true},
		"nvidia.com/gpu":             {extended: true, whole: true},
		"kubernetes.io/batch":        {native: true, overcommit: true},
		"requests.nvidia.com/gpu":    {},
		"attachable-volumes-aws-ebs": {native: true, overcommit: true},
	}
	for n, want := range tests {
		if got := (facts{IsNative(n), IsExtended(n), IsHugePages(n), MayOvercommit(n), IsContainer(n), IsStandard(
			n), IsWhole(n)}); got != want {
			t.Errorf("%s: got %+v, want %+v", n, got, want)
		}
	}
}

func BenchmarkQOS(b *testing.B) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Containers: []corev1.Container{container(list("1", "1Gi"), list("1", "1Gi")), container(list("1", ""), nil)},
	}}
	b.ReportAllocs()
	for b.Loop() {
		QOS(pod)
	}
}
