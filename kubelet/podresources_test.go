// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	apiv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	apiv1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"keelson/kubelet/plugin"
	"keelson/lib/waittest"
)

// TestPodResources: a monitor sees the pods that run, with their sidecars; v1alpha1 lists those that have ended
// too. After a restart of the kubelet it is so again, at the same socket.
func TestPodResources(t *testing.T) {
	harness := newHarness(t)
	stop := harness.run()
	harness.create(testPod("runs", func(p *corev1.Pod) {
		side := hello("side")
		side.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		p.Spec.InitContainers = []corev1.Container{hello("first", "exit", "0"), side}
	}))
	harness.create(testPod("ends", func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers[0].Command = []string{"/hello", "exit", "3"}
	}))
	harness.until("runs", "running", phaseIs(corev1.PodRunning))
	harness.until("ends", "Failed", phaseIs(corev1.PodFailed))
	check := func() {
		conn, err := plugin.Dial(harness.root, "pod-resources/kubelet.sock")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		waittest.Until(t, "the running pods are listed", func() bool {
			got, err := apiv1.NewPodResourcesListerClient(conn).List(t.Context(), &apiv1.ListPodResourcesRequest{},
				grpc.WaitForReady(true))
			all, oldErr := apiv1alpha1.NewPodResourcesListerClient(conn).List(t.Context(),
				&apiv1alpha1.ListPodResourcesRequest{})
			if err := errors.Join(err, oldErr); err != nil {
				if strings.Contains(err.Error(), "rejected by rate limit") {
					return false
				}
				t.Fatal(err)
			}
			var names []string
			for _, p := range got.GetPodResources() {
				for _, c := range p.GetContainers() {
					names = append(names, p.GetName()+"/"+c.GetName())
				}
			}
			return slices.Equal(names, []string{"runs/side", "runs/c"}) && len(all.GetPodResources()) == 2
		})
	}
	check()
	stop()
	harness.run()
	check()
}
