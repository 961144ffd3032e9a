// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestFakeContainers(t *testing.T) {
	for _, c := range []struct{ cpu, memory, want string }{
		{"", "", "app 0 0, log 0 0, "},
		{"250m", "64Mi", "app 125m 32Mi, log 125m 32Mi, "},
		{"app=200m, log=1", "app=1Gi", "app 200m 1Gi, log 1 0, "},
		{"none", "64Mi", "none"},
		{"1", "app=much", "none"},
		{"-1", "", "none"},
		{"gone=1", "", "app 0 0, log 0 0, "},
	} {
		p := &corev1.Pod{}
		p.Annotations = map[string]string{AnnotationCPU: c.cpu, AnnotationMemory: c.memory}
		running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "setup"}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{
			{Name: "app", State: running},
			{Name: "log", State: running},
		}
		got := "none"
		if all, ok := FakeContainers(p); ok {
			got = ""
			for _, name := range []string{"setup", "app", "log"} {
				if u, there := all[name]; there {
					got += fmt.Sprintf("%s %s %s, ", name, text(u, "cpu"), text(u, "memory"))
				}
			}
		}
		if got != c.want {
			t.Errorf("cpu %q, memory %q: got %s, want %s", c.cpu, c.memory, got, c.want)
		}
	}
}

func TestFakeNode(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "fake-1"},
		Spec:       corev1.NodeSpec{ProviderID: "fake://fake-1"},
	}
	if !Fake(node) ||
		Fake(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "fake-1"},
			Spec: corev1.NodeSpec{
				ProviderID: "fake://fake-2",
			},
		}) {
		t.Error("a node is fake by its provider id")
	}
	got, ok := FakeNode(node, Usage(1_500_000_000, 1<<20))
	if !ok || text(got, "cpu") != "1500m" || text(got, "memory") != "1Mi" {
		t.Errorf("of its pods: got %v, %v", got, ok)
	}
	node.Annotations = map[string]string{AnnotationCPU: "3"}
	if got, ok = FakeNode(node, Usage(1, 1<<20)); !ok || text(got, "cpu") != "3" || text(got, "memory") != "1Mi" {
		t.Errorf("annotated: got %v, %v", got, ok)
	}
	node.Annotations[AnnotationMemory] = "none"
	if got, ok = FakeNode(node, Usage(1, 1)); ok {
		t.Errorf("without figures: got %v", got)
	}
}

func TestTables(t *testing.T) {
	n := NodeMetrics().New()
	n.SetName("n")
	if got := fmt.Sprint(NodeMetrics().Row(n)); got != "[n 0 0 0s]" {
		t.Errorf("node: got %s", got)
	}
	p := PodMetrics().New()
	p.SetName("p")
	if got := fmt.Sprint(PodMetrics().Row(p)); got != "[p 0 0 0s]" {
		t.Errorf("pod: got %s", got)
	}
}
