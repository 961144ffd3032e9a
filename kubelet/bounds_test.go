// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri/critest"
	"keelson/event"
)

// waiting returns the reason and the message of a container that waits.
func waiting(p *corev1.Pod) (reason, message string) {
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Waiting != nil {
			return c.State.Waiting.Reason, c.State.Waiting.Message
		}
	}
	return "", ""
}

// TestEnvironmentThatMultiplies: a container whose environment is too large waits, and says why.
func TestEnvironmentThatMultiplies(t *testing.T) {
	h := newHarness(t)
	h.run()
	h.create(testPod("doubles", func(p *corev1.Pod) {
		env := []corev1.EnvVar{{Name: "A0", Value: "0123456789"}}
		for i := range 26 {
			env = append(env, corev1.EnvVar{Name: fmt.Sprint("A", i+1), Value: fmt.Sprintf("$(A%d)$(A%d)", i, i)})
		}
		p.Spec.Containers[0].Env = env
	}))
	p := h.until("doubles", "waiting", func(p *corev1.Pod) bool {
		reason, _ := waiting(p)
		return reason == "CreateContainerConfigError"
	})
	_, message := waiting(p)
	if want := "environment variable A14: it has more than 131067 bytes when its $(NAME)s are replaced, the kernel's " +
		"limit"; message != want {
		t.Errorf("got %q, want %q", message, want)
	}
}

// TestPodOfManyNames: a pod that refers to too many objects does not start, and reads none of them.
func TestPodOfManyNames(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	yes := true
	harness.create(testPod("names", func(p *corev1.Pod) {
		for i := range 300 {
			ref := corev1.LocalObjectReference{Name: fmt.Sprint("map-", i)}
			p.Spec.Containers[0].EnvFrom = append(p.Spec.Containers[0].EnvFrom, corev1.EnvFromSource{
				ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref, Optional: &yes},
			})
		}
	}))
	harness.waitEvent("FailedMount", "the pod refers to 300 ConfigMaps, Secrets and trust bundles, which is more "+
		"than 256")
	for _, a := range harness.api.Actions() {
		if a.GetResource().Resource == "configmaps" {
			t.Errorf("the kubelet did %s of configmaps", a.GetVerb())
		}
	}
}

// TestPullSecretsAreReadOnce: one secret that a pod names often is read once, and no more than 64 are read.
func TestPullSecretsAreReadOnce(t *testing.T) {
	harness := newHarness(t)
	if _, err := harness.api.CoreV1().Secrets("default").Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "default"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.run()
	harness.create(testPod("pulls", func(p *corev1.Pod) {
		for i := range 1000 {
			p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: "s"},
				corev1.LocalObjectReference{Name: fmt.Sprint("s", i)})
		}
	}))
	harness.until("pulls", "ready", ready)
	reads := map[string]int{}
	for _, a := range harness.api.Actions() {
		if get, ok := a.(interface{ GetName() string }); ok && a.GetVerb() == "get" &&
			a.GetResource().Resource == "secrets" {
			reads[get.GetName()]++
		}
	}
	if len(reads) != 64 || reads["s"] != 1 {
		t.Errorf("%d secrets were read, s %d times; want 64, each once", len(reads), reads["s"])
	}
	harness.waitEvent("FailedToRetrieveImagePullSecret", "Only the first 64")
	if got := harness.events("FailedToRetrieveImagePullSecret"); slices.ContainsFunc(got, func(m string) bool {
		return strings.Contains(m, "Unable to retrieve")
	}) {
		t.Errorf("the image was there, and an event says: %q", got)
	}
}

// TestOutputOfFailingHooks: of what a failing hook prints, 1 KiB is reported, and no more is kept.
func TestOutputOfFailingHooks(t *testing.T) {
	harness := newHarness(t)
	harness.rt.SetExec(func(*runtimeapi.ContainerConfig, []string) critest.ExecResult {
		return critest.ExecResult{
			Stdout: bytes.Repeat([]byte("x"), 16<<20),
			Stderr: bytes.Repeat([]byte("y"), 16<<20),
			Code:   3,
		}
	})
	harness.run()
	harness.create(testPod("hooks", func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
			PostStart: &corev1.LifecycleHandler{
				Exec: &corev1.ExecAction{Command: []string{"post", strings.Repeat("long", 1000)}},
			},
			PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"pre"}}},
		}
	}))
	harness.waitEvent("FailedPostStartHook", "PostStartHook failed")
	harness.until("hooks", "failed", phaseIs(corev1.PodFailed))
	body, err := json.Marshal(harness.get("hooks").Status)
	if err != nil || len(body) > 16<<10 {
		t.Errorf("the status has %d bytes, %v", len(body), err)
	}
	harness.mu.Lock()
	defer harness.mu.Unlock()
	found := false
	for _, m := range harness.marks {
		if p, ok := m.Detail.(*event.Probe); ok && p.Kind == "postStart" {
			found = true
			if len(p.Output) > 256 {
				t.Errorf("the mark of the hook has %d bytes", len(p.Output))
			}
		}
	}
	if !found {
		t.Error("there is no mark of the hook")
	}
}
