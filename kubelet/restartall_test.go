// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	podkind "keelson/api/core/pod"
)

// TestRestartAllContainers: the end of a container whose rule says so makes all containers of a pod run again in place,
// init containers and sidecars too, although the pod's own policy is Never, and the pod's conditions show it.
func TestRestartAllContainers(t *testing.T) {
	h := newHarness(t)
	stop := h.run()
	never := corev1.ContainerRestartPolicyNever
	always := corev1.ContainerRestartPolicyAlways
	h.create(testPod("web", func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		side := hello("side")
		side.RestartPolicy = &always
		p.Spec.InitContainers = []corev1.Container{hello("init"), side}
		worker := hello("worker")
		worker.RestartPolicy = &never
		worker.RestartPolicyRules = []corev1.ContainerRestartRule{{
			Action: corev1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
				Operator: corev1.ContainerRestartRuleOnExitCodesOpIn,
				Values:   []int32{88},
			},
		}}
		p.Spec.Containers = append(p.Spec.Containers, worker)
	}))
	running := func(p *corev1.Pod) bool {
		return len(p.Status.InitContainerStatuses) > 0 && p.Status.InitContainerStatuses[0].State.Running != nil
	}
	h.until("web", "initializing", running)
	h.rt.Exit(h.rt.Containers("init")[0], 0)
	before := h.until("web", "ready", ready)
	if c := podkind.Condition(before, corev1.AllContainersRestarting); c == nil || c.Status != corev1.ConditionFalse {
		t.Errorf("condition of a pod that only may restart: got %+v, want False", c)
	}
	var shown atomic.Bool
	h.api.PrependReactor("patch", "pods", func(action k8stesting.Action) (bool, runtime.Object, error) {
		patch, ok := action.(k8stesting.PatchAction)
		if ok && strings.Contains(string(patch.GetPatch()), "RestartAllContainersStarted") {
			shown.Store(true)
		}
		return false, nil, nil
	})
	h.rt.Exit(h.rt.Containers("worker")[0], 88)
	h.until("web", "initializing again", func(p *corev1.Pod) bool {
		return running(p) && p.Status.InitContainerStatuses[0].RestartCount == 1
	})
	if !shown.Load() {
		t.Error("the condition AllContainersRestarting was never True")
	}
	stop()
	h.run() // a kubelet that starts in the middle goes on
	h.rt.Exit(h.rt.Containers("init")[1], 0)
	after := h.until("web", "ready again", func(p *corev1.Pod) bool {
		return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	for _, cs := range slices.Concat(after.Status.InitContainerStatuses, after.Status.ContainerStatuses) {
		if cs.RestartCount != 1 || cs.LastTerminationState.Terminated == nil {
			t.Errorf("%s: %d restarts, last state %+v, want one restart and how it ended", cs.Name, cs.RestartCount,
				cs.LastTerminationState)
		}
	}
	if c := podkind.Condition(after, corev1.AllContainersRestarting); c == nil || c.Status != corev1.ConditionFalse {
		t.Errorf("condition after the restart: got %+v, want False", c)
	}
	was := podkind.Condition(before, corev1.PodInitialized)
	if is := podkind.Condition(after, corev1.PodInitialized); !is.LastTransitionTime.Equal(&was.LastTransitionTime) {
		t.Errorf("Initialized: got %+v, want it True all the time as %+v", is, was)
	}
	if before.Status.PodIP != after.Status.PodIP {
		t.Errorf("address: got %s, want %s as before", after.Status.PodIP, before.Status.PodIP)
	}
}
