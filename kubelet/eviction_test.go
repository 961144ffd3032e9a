// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/kubelet/eviction"
	"keelson/lib/waittest"
)

func failed(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodFailed }

// TestEmptyDirOverItsLimit: the pod is evicted with Kubernetes' words, and another one goes on.
func TestEmptyDirOverItsLimit(t *testing.T) {
	harness := newHarness(t)
	harness.cfg.Eviction = eviction.Config{Hard: "memory.available<0%", Interval: 50 * time.Millisecond}
	withVolume := func(name string) *corev1.Pod {
		return testPod(name, func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{
				{
					Name: "v",
					VolumeSource: corev1.VolumeSource{
						EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse("1Mi"))},
					},
				},
			}
		})
	}
	full := withVolume("full")
	fine := withVolume("fine")
	for uid, size := range map[string]int{"uid-full": 2 << 20, "uid-fine": 100} {
		dir := filepath.Join(harness.root, "pods", uid, "volumes", "kubernetes.io~empty-dir", "v")
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	harness.create(full) // before the kubelet starts, which removes what belongs to no pod
	harness.create(fine)
	harness.run()
	p := harness.until("full", "failed", failed)
	want := `Usage of EmptyDir volume "v" exceeds the limit "1Mi". `
	if p.Status.Reason != "Evicted" || p.Status.Message != want {
		t.Errorf("status: got %q %q, want Evicted %q", p.Status.Reason, p.Status.Message, want)
	}
	if c := condition(p, corev1.DisruptionTarget); c != nil {
		t.Errorf("condition %+v: it was not the node that needed room", c)
	}
	harness.waitEvent("Evicted", want)
	waittest.Until(t, "its volume is gone", func() bool {
		_, err := os.Stat(filepath.Join(harness.root, "pods", "uid-full", "volumes"))
		return os.IsNotExist(err)
	})
	harness.until("fine", "ready", ready)
}

// TestNodePressure: pods are ended by priority, critical ones stay, the node says so and refuses those that ask for
// nothing.
func TestNodePressure(t *testing.T) {
	harness := newHarness(t)
	stop := harness.run()
	harness.create(testPod("before", func(p *corev1.Pod) { p.Spec.Priority = new(int32(10)) }))
	harness.create(testPod("critical", func(p *corev1.Pod) { p.Spec.Priority = new(int32(2_000_001_000)) }))
	harness.until("before", "ready", ready)
	harness.until("critical", "ready", ready)
	stop()
	harness.cfg.Eviction = eviction.Config{Hard: "memory.available<100000Gi", Interval: 100 * time.Millisecond}
	harness.run()
	pod := harness.until("before", "failed", failed)
	begin := "The node was low on resource: memory. Threshold quantity: 100000Gi, available: "
	if pod.Status.Reason != "Evicted" || !strings.HasPrefix(pod.Status.Message, begin) {
		t.Errorf("status: got %q %q, want Evicted %q...", pod.Status.Reason, pod.Status.Message, begin)
	}
	c := condition(pod, corev1.DisruptionTarget)
	if c == nil || c.Status != corev1.ConditionTrue || c.Reason != "TerminationByKubelet" ||
		c.Message != pod.Status.Message {
		t.Errorf("condition DisruptionTarget: got %+v", c)
	}
	harness.waitEvent("EvictionThresholdMet", "Attempting to reclaim memory")
	harness.waitEvent("NodeHasInsufficientMemory", "Node node-1 status is now: NodeHasInsufficientMemory")
	waittest.Until(t, "the node has MemoryPressure", func() bool {
		n, err := harness.api.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
		if err != nil {
			return false
		}
		i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeMemoryPressure
		})
		return i >= 0 && n.Status.Conditions[i].Status == corev1.ConditionTrue &&
			n.Status.Conditions[i].Reason == "KubeletHasInsufficientMemory"
	})
	harness.create(testPod("refused"))
	pod = harness.until("refused", "failed", failed)
	if want := "Pod was rejected: The node had condition: [MemoryPressure]. "; pod.Status.Reason != "Evicted" ||
		pod.Status.Message != want {
		t.Errorf("refused: got %q %q, want Evicted %q", pod.Status.Reason, pod.Status.Message, want)
	}
	harness.until("critical", "ready", ready)
}
