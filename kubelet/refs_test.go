// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	k8stesting "k8s.io/client-go/testing"

	"keelson/lib/waittest"
)

// openWatch counts itself until it is stopped.
type openWatch struct {
	watch.Interface
	stop func()
}

func (w openWatch) Stop() {
	w.stop()
	w.Interface.Stop()
}

// countWatches counts the open watches of a resource.
func countWatches(h *harness, resource string) *atomic.Int64 {
	var n atomic.Int64
	h.api.PrependWatchReactor(resource, func(a k8stesting.Action) (bool, watch.Interface, error) {
		w, err := h.api.Tracker().Watch(a.GetResource(), a.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		n.Add(1)
		return true, openWatch{w, sync.OnceFunc(func() { n.Add(-1) })}, nil
	})
	return &n
}

// TestWatchesEndWithTheirPods: whichever way pods end, nothing watches what they referred to.
func TestWatchesEndWithTheirPods(t *testing.T) {
	harness := newHarness(t)
	maps := countWatches(harness, "configmaps")
	secrets := countWatches(harness, "secrets")
	harness.run()
	refersTo := func(name string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Spec.RestartPolicy = corev1.RestartPolicyNever
			pod.Spec.Volumes = []corev1.Volume{
				{
					Name: "v",
					VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
						LocalObjectReference: corev1.LocalObjectReference{Name: name},
					}},
				},
			}
			pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
			pod.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}},
			}
		}
	}
	const pods = 50
	names := make([]string, pods)
	for i := range names {
		names[i] = fmt.Sprintf("forced-%d", i)
		if i%3 > 0 { // the volumes of others never come
			makeRefs(harness, names[i])
		}
	}
	begun := maps.Load()
	for i, name := range names {
		harness.create(testPod(name, refersTo(name)))
		if i%5 == 4 {
			waittest.Until(t, "some of the pods begin to start", func() bool { return maps.Load() > begun })
			begun = maps.Load()
		}
	}
	for _, name := range names {
		if err := harness.api.CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	makeRefs(harness, "graceful")
	makeRefs(harness, "finished")
	harness.create(testPod("graceful", refersTo("graceful")))
	harness.create(testPod("finished", refersTo("finished")))
	harness.until("graceful", "running", phaseIs(corev1.PodRunning))
	harness.until("finished", "running", phaseIs(corev1.PodRunning))
	waittest.Until(t, "two pods watch what they use", func() bool { return maps.Load() == 2 && secrets.Load() == 2 })
	harness.remove("graceful", 1)
	for _, id := range harness.rt.Containers("c") {
		if harness.rt.Config(id).GetLabels()["io.kubernetes.pod.name"] == "finished" {
			harness.rt.Exit(id, 0)
		}
	}
	harness.until("finished", "Succeeded", phaseIs(corev1.PodSucceeded))
	harness.until("graceful", "gone", func(p *corev1.Pod) bool { return p == nil })
	waittest.Until(t, "no watch is left", func() bool { return maps.Load() == 0 && secrets.Load() == 0 })
	if harness.get("finished") == nil {
		t.Error("the finished pod is gone, want it to stay without watches")
	}
}

func makeRefs(h *harness, name string) {
	h.t.Helper()
	meta := metav1.ObjectMeta{Name: name, Namespace: "default"}
	if _, err := h.api.CoreV1().ConfigMaps("default").Create(h.t.Context(),
		&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"a": "b"}}, metav1.CreateOptions{}); err != nil {
		h.t.Fatal(err)
	}
	if _, err := h.api.CoreV1().Secrets("default").Create(h.t.Context(), &corev1.Secret{ObjectMeta: meta},
		metav1.CreateOptions{}); err != nil {
		h.t.Fatal(err)
	}
}
