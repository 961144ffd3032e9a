// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/event"
	"keelson/scheduler/loop"
	"keelson/scheduler/schedtest"
)

// cluster is a scheduler on a fake server that carries out bindings.
type cluster struct {
	*fake.Clientset
	t *testing.T
	// refuse makes the next binding fail.
	refuse atomic.Bool

	mu    sync.Mutex
	marks []event.Event
}

func start(t *testing.T, objs ...runtime.Object) *cluster {
	t.Helper()
	return startWith(t, func(*loop.Config) {}, objs...)
}

func startWith(t *testing.T, configure func(*loop.Config), objs ...runtime.Object) *cluster {
	t.Helper()
	c := &cluster{Clientset: clienttest.New(objs...), t: t}
	c.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		binding, ok := a.(k8stesting.CreateAction).GetObject().(*corev1.Binding)
		if !ok {
			return false, nil, nil
		}
		if c.refuse.CompareAndSwap(true, false) {
			return true, nil, errors.New("the server is in a bad mood")
		}
		o, err := c.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), binding.Namespace, binding.Name)
		if err != nil {
			return true, nil, err
		}
		pod := o.(*corev1.Pod).DeepCopy()
		pod.Spec.NodeName = binding.Target.Name
		return true, binding, c.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, binding.Namespace)
	})
	cfg := loop.Config{
		Client:      &client.Client{Interface: client.Plain(c.Clientset)},
		Marks:       event.NewRecorder(c.listen),
		Parallelism: 1,
	}
	configure(&cfg)
	s, err := loop.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	ready := make(chan struct{})
	go func() { done <- s.Run(ctx, func() { close(ready) }) }() // ends with ctx
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("Run ended early: %v", err)
	}
	return c
}

func (c *cluster) listen(m event.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.marks = append(c.marks, m)
}

// eventually waits until a pod satisfies ok, woken by the server's watch.
func (c *cluster) eventually(name string, ok func(*corev1.Pod) bool) *corev1.Pod {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	watcher, err := c.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	defer watcher.Stop()
	for {
		p, err := c.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err == nil && ok(p) {
			return p
		}
		select {
		case <-watcher.ResultChan():
		case <-ctx.Done():
			c.t.Fatalf("pod %s: not as it should be after a minute: %v", name, p)
		}
	}
}

func bound(p *corev1.Pod) bool { return p.Spec.NodeName != "" }

func scheduledCondition(p *corev1.Pod) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == corev1.PodScheduled {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

func TestBindsAndMarks(t *testing.T) {
	c := start(t, schedtest.Node("node-1"), schedtest.Pod("a"))
	if got := c.eventually("a", bound).Spec.NodeName; got != "node-1" {
		t.Errorf("node = %q, want node-1", got)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var steps []string
	for _, m := range c.marks {
		steps = append(steps, string(m.Step))
	}
	if got := strings.Join(steps, " "); !strings.HasPrefix(got, "queued decision") {
		t.Errorf("marks = %q, want queued decision ...", got)
	}
}

func TestSaysWhyNotAndTriesAgain(t *testing.T) {
	cluster := start(t, schedtest.Node("node-1"),
		schedtest.Node("node-2", schedtest.Taint("gpu", "true", corev1.TaintEffectNoSchedule)),
		schedtest.Pod("big", schedtest.Requests("1", "64Gi")))
	p := cluster.eventually("big", func(p *corev1.Pod) bool { return scheduledCondition(p) != nil })
	cond := scheduledCondition(p)
	const want = "0/2 nodes are available: 1 Insufficient memory, 1 node(s) had untolerated taint(s)."
	if cond.Status != corev1.ConditionFalse || cond.Reason != corev1.PodReasonUnschedulable ||
		!strings.HasPrefix(cond.Message, want) {
		t.Errorf("condition = %+v, want False Unschedulable %q", cond, want)
	}
	if _, err := cluster.CoreV1().Nodes().Create(t.Context(), schedtest.Node("node-3",
		schedtest.Allocatable(corev1.ResourceMemory, "128Gi")), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := cluster.eventually("big", bound).Spec.NodeName; got != "node-3" {
		t.Errorf("node = %q, want node-3", got)
	}
}

// TestDeletedWhileItWaitsForItsVolume: the pod's claim never gets a volume; deleting the pod ends the wait,
// silently.
func TestDeletedWhileItWaitsForItsVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := storagev1.VolumeBindingWaitForFirstConsumer
		class := "late"
		pod := schedtest.Pod("a", schedtest.Requests("1", "1Gi"), schedtest.With(func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{
				Name: "v",
				VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
				},
			}}
		}))
		cluster := start(t, schedtest.Node("node-1"), pod,
			&storagev1.StorageClass{
				ObjectMeta: metav1.ObjectMeta{
					Name: class,
				},
				Provisioner:       "example.com/slow",
				VolumeBindingMode: &late,
			},
			&corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "data", UID: "data"},
				Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: &class},
			})
		time.Sleep(soon)
		if p, err := cluster.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(t.Context(), "data",
			metav1.GetOptions{}); err != nil || p.Annotations["volume.kubernetes.io/selected-node"] != "node-1" {
			t.Fatalf("the claim is %+v, %v; want node-1 to be chosen", p, err)
		}
		if err := cluster.CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name,
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(soon)
		cluster.mu.Lock()
		if !slices.ContainsFunc(cluster.marks, func(m event.Event) bool {
			return m.Step == event.StepBind && m.Err != ""
		}) {
			t.Errorf("the wait goes on: %+v", cluster.marks)
		}
		cluster.mu.Unlock()
		// The room is free again, and nothing was said of a failure.
		if _, err := cluster.CoreV1().Pods("default").Create(t.Context(),
			schedtest.Pod("b", schedtest.Requests("4", "1Gi")),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		cluster.eventually("b", bound)
		events, err := cluster.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events.Items {
			if e.Reason == "FailedScheduling" {
				t.Errorf("event %q about %s", e.Note, e.Regarding.Name)
			}
		}
	})
}

func TestLeavesOthersPodsAlone(t *testing.T) {
	other := schedtest.Pod("other", schedtest.With(func(s *corev1.PodSpec) { s.SchedulerName = "theirs" }))
	c := start(t, schedtest.Node("node-1"), other, schedtest.Pod("a"))
	c.eventually("a", bound)
	p, err := c.CoreV1().Pods("default").Get(t.Context(), "other", metav1.GetOptions{})
	if err != nil || p.Spec.NodeName != "" {
		t.Errorf("other's pod: node %q, err %v; want none", p.Spec.NodeName, err)
	}
}

func TestPreemptsAndSaysSo(t *testing.T) {
	c := start(t, schedtest.Node("node-1"), schedtest.Pod("low", schedtest.On("node-1"), schedtest.Requests("4", "")),
		schedtest.Pod("high", schedtest.Requests("2", ""), schedtest.Priority(1000)))
	if got := c.eventually("high", bound).Spec.NodeName; got != "node-1" {
		t.Errorf("node = %q, want node-1", got)
	}
	if _, err := c.CoreV1().Pods("default").Get(t.Context(), "low", metav1.GetOptions{}); err == nil {
		t.Error("the victim is still there")
	}
	var patched bool
	for _, a := range c.Actions() {
		p, ok := a.(k8stesting.PatchAction)
		patched = patched || ok && p.GetName() == "low" && strings.Contains(string(p.GetPatch()),
			`"reason":"PreemptionByScheduler"`)
	}
	if !patched {
		t.Error("the victim has no condition DisruptionTarget")
	}
}

// TestBindingFailsOnce: the pod is counted off its node and tried again.
func TestBindingFailsOnce(t *testing.T) {
	cluster := start(t, schedtest.Node("node-1"))
	cluster.refuse.Store(true)
	if _, err := cluster.CoreV1().Pods("default").Create(t.Context(), schedtest.Pod("a", schedtest.Requests("4", "")),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := cluster.eventually("a", func(p *corev1.Pod) bool { return scheduledCondition(p) != nil })
	if cond := scheduledCondition(p); cond.Reason != corev1.PodReasonSchedulerError ||
		!strings.Contains(cond.Message, "bad mood") {
		t.Errorf("condition = %+v, want SchedulerError with the server's words", cond)
	}
	cluster.eventually("a", bound)
}
