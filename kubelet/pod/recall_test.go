// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"keelson/kubelet/pod/decide"
	"keelson/kubelet/runtimestate"
	"keelson/kubelet/translate"
)

// TestStoppingLeft: what a restart leaves of a grace period, however the clock goes.
func TestStoppingLeft(t *testing.T) {
	now := time.Now()
	for _, test := range []struct {
		grace int64
		after time.Duration
		want  int64
	}{
		{grace: 30, after: 0, want: 30},
		{grace: 30, after: 10 * time.Second, want: 20},
		{grace: 30, after: time.Hour, want: minGrace},
		{grace: 30, after: -time.Hour, want: 30},
		{grace: 1, after: time.Hour, want: 1},
		{grace: 0, after: time.Second, want: 0},
	} {
		if got := (stopping{Began: now}).left(test.grace, now.Add(test.after)); got != test.want {
			t.Errorf("%d s, %v later: %d s are left, want %d", test.grace, test.after, got, test.want)
		}
	}
}

// TestResizedBefore: a container whose resize an earlier run has finished is not resized again.
func TestResizedBefore(t *testing.T) {
	c := corev1.Container{Name: "c"}
	c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
	cur := &runtimestate.Container{Resources: translate.Resources(p, &c, translate.Machine{})}
	was := &corev1.ContainerStatus{AllocatedResources: c.Resources.Requests}
	if !resizedBefore(p, &c, cur, was) {
		t.Error("all is as specified: it would be resized again")
	}
	old := &corev1.ContainerStatus{
		AllocatedResources: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")},
	}
	if resizedBefore(p, &c, cur, old) {
		t.Error("a resize that was not admitted counts as done")
	}
	p.Spec.Resources = &corev1.ResourceRequirements{Requests: c.Resources.Requests, Limits: c.Resources.Limits}
	if wholeResizedBefore(p) {
		t.Error("a pod whose status does not say that it has its resources counts as resized")
	}
	if p.Status.Resources = p.Spec.Resources.DeepCopy(); !wholeResizedBefore(p) {
		t.Error("the pod has its resources: it would be resized again")
	}
	cur.Resources.MemoryLimitInBytes = 1 << 20
	if resizedBefore(p, &c, cur, was) {
		t.Error("a resize that the runtime does not have counts as done")
	}
}

// TestOneGracePeriod: the end of a container uses one grace period, whatever it waits for meanwhile. A shorter one
// begins when it is asked for.
func TestOneGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &loop{}
		w.s.containers = newContainers()
		left := func(grace int64) int64 {
			action := decide.Action{Op: decide.OpStop, ID: ".no-file", Grace: grace}
			stop, _ := w.endOf(action)
			w.s.containers.run(action.ID).stop = &stop
			return stop.left(grace, time.Now())
		}
		for _, step := range []struct {
			after       time.Duration
			grace, want int64
		}{
			{0, 30, 30},
			{20 * time.Second, 30, 10},
			{time.Second, 5, 5},
			{2 * time.Second, 5, 3},
			{time.Hour, 5, minGrace},
		} {
			time.Sleep(step.after)
			if got := left(step.grace); got != step.want {
				t.Errorf("%v later, %d s asked for: %d s are left, want %d", step.after, step.grace, got, step.want)
			}
		}
	})
}
