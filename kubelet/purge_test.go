// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
	"keelson/kubelet"
)

// TestPurgePods ends this kubelet's pods and leaves those of others.
func TestPurgePods(t *testing.T) {
	harness := newHarness(t)
	stop := harness.run()
	harness.create(testPod("mine"))
	harness.until("mine", "ready", ready)
	stop()
	foreign, err := harness.rt.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{
		Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "other", Uid: "uid-other", Namespace: "default"},
			Labels:   map[string]string{"io.kubernetes.pod.uid": "uid-other"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // it may be repeated
		if err := kubelet.PurgePods(t.Context(), cri.InProcess(harness.rt), harness.root); err != nil {
			t.Fatal(err)
		}
	}
	left, err := harness.rt.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(left.GetItems()) != 1 || left.GetItems()[0].GetId() != foreign.GetPodSandboxId() {
		t.Errorf("left: got %v, %v, want the other's pod", left, err)
	}
}
