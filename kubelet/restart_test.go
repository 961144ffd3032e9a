// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"slices"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri/critest"
	"keelson/lib/waittest"
)

// adopted waits until the kubelet that was started last has reported on the pod.
func (h *harness) adopted(name string, generation int64) *corev1.Pod {
	h.t.Helper()
	h.change(name, func(p *corev1.Pod) { p.Generation = generation })
	return h.until(name, "adopted", func(p *corev1.Pod) bool { return p.Status.ObservedGeneration == generation })
}

// TestRestartKeepsStartedAndReady: containers that had started and were ready, sidecars too, stay so when the kubelet
// is restarted, until a probe says otherwise.
func TestRestartKeepsStartedAndReady(t *testing.T) {
	h := newHarness(t)
	var probesHang atomic.Bool
	h.rt.SetExec(func(*runtimeapi.ContainerConfig, []string) critest.ExecResult {
		if probesHang.Load() {
			return critest.ExecResult{Code: 1}
		}
		return critest.ExecResult{}
	})
	always := corev1.ContainerRestartPolicyAlways
	check := func(period int32) *corev1.Probe {
		return &corev1.Probe{
			PeriodSeconds:    period,
			FailureThreshold: 3,
			ProbeHandler:     corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"ok"}}},
		}
	}
	stop := h.run()
	h.create(testPod("web", func(p *corev1.Pod) {
		p.Spec.Containers[0].StartupProbe = check(3600)
		p.Spec.Containers[0].ReadinessProbe = check(3600)
		side := hello("side")
		side.RestartPolicy = &always
		side.StartupProbe = check(3600)
		p.Spec.InitContainers = []corev1.Container{side}
	}))
	h.until("web", "ready", ready)
	stop()
	probesHang.Store(true)
	var unready atomic.Int32
	h.api.PrependReactor("patch", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		o, err := h.api.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), "default", "web")
		if p, ok := o.(*corev1.Pod); err != nil || !ok || !ready(p) {
			unready.Add(1)
		}
		return false, nil, nil
	})
	h.run()
	p := h.adopted("web", 2)
	for _, cs := range slices.Concat(p.Status.ContainerStatuses, p.Status.InitContainerStatuses) {
		if !cs.Ready || cs.Started == nil || !*cs.Started {
			t.Errorf("%s after a restart: ready %v, started %v", cs.Name, cs.Ready, cs.Started)
		}
	}
	if !ready(p) || unready.Load() > 0 {
		t.Errorf("the pod was not ready after a restart (%d times): %+v", unready.Load(), p.Status.Conditions)
	}
}

// TestRestartKeepsBackOff: a container that waits for its next start waits on when the kubelet is restarted.
func TestRestartKeepsBackOff(t *testing.T) {
	h := newHarness(t)
	stop := h.run()
	h.create(testPod("p"))
	h.until("p", "running", phaseIs(corev1.PodRunning))
	for runs := 1; runs <= 2; runs++ {
		waittest.Until(t, "another run", func() bool { return len(h.rt.Containers("c")) == runs })
		h.until("p", "running", func(p *corev1.Pod) bool {
			return p.Status.ContainerStatuses[0].State.Running != nil &&
				int(p.Status.ContainerStatuses[0].RestartCount) == runs-1
		})
		ids := h.rt.Containers("c")
		for _, id := range ids {
			h.rt.Exit(id, 1)
		}
	}
	waits := func(p *corev1.Pod) bool {
		w := p.Status.ContainerStatuses[0].State.Waiting
		return w != nil && w.Reason == "CrashLoopBackOff"
	}
	before := h.until("p", "in back-off", waits).Status.ContainerStatuses[0].State.Waiting.Message
	stop()
	h.run()
	p := h.adopted("p", 2)
	if !waits(p) || p.Status.ContainerStatuses[0].State.Waiting.Message != before {
		t.Errorf("after a restart: %+v, want %q as before", p.Status.ContainerStatuses[0].State, before)
	}
	if n := len(h.rt.Containers("c")); n != 2 {
		t.Errorf("the container was started %d times, want 2", n)
	}
}

// TestRestartInATermination: a pre-stop hook that has ended does not run again, nor is the stop announced again.
func TestRestartInATermination(t *testing.T) {
	h := newHarness(t)
	h.rt.SetProgram(func(*runtimeapi.ContainerConfig) critest.Program { return critest.Program{IgnoresTerm: true} })
	var hooks atomic.Int32
	h.rt.SetExec(func(*runtimeapi.ContainerConfig, []string) critest.ExecResult {
		hooks.Add(1)
		return critest.ExecResult{}
	})
	stops := func() int {
		n := 0
		for _, call := range h.rt.Calls() {
			if call == "StopContainer" {
				n++
			}
		}
		return n
	}
	stop := h.run()
	h.create(testPod("p", func(p *corev1.Pod) {
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
			PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"pre", "stop"}}},
		}
	}))
	h.until("p", "running", phaseIs(corev1.PodRunning))
	h.remove("p", 3600)
	waittest.Until(t, "the container is being stopped", func() bool { return stops() == 1 })
	stop()
	h.run()
	waittest.Until(t, "the container is being stopped again", func() bool { return stops() == 2 })
	if n := hooks.Load(); n != 1 {
		t.Errorf("the pre-stop hook ran %d times", n)
	}
	h.rt.Exit(h.rt.Containers("c")[0], 0)
	h.until("p", "gone", func(p *corev1.Pod) bool { return p == nil })
	if n := len(h.events("Killing")); n != 1 {
		t.Errorf("%d events Killing, want 1", n)
	}
}
