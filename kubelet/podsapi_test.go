// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"testing"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"keelson/kubelet/plugin"
	"keelson/lib/waittest"
)

// TestPodsAPI: a program on the node follows a pod by the Pods API from its beginning to its end.
func TestPodsAPI(t *testing.T) {
	harness := newHarness(t)
	harness.run()
	harness.create(testPod("web"))
	conn, err := plugin.Dial(harness.root, "pods-api/pods-api.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := podsv1alpha1.NewPodsClient(conn)
	waittest.Until(t, "the kubelet knows its pods", func() bool {
		_, err := client.ListPods(t.Context(), &podsv1alpha1.ListPodsRequest{}, grpc.WaitForReady(true))
		return err == nil
	})
	stream, err := client.WatchPods(t.Context(), &podsv1alpha1.WatchPodsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	follow := func(until func(podsv1alpha1.EventType, *corev1.Pod) bool) {
		t.Helper()
		for {
			e, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			p := &corev1.Pod{}
			if err := p.Unmarshal(e.GetPod()); err != nil {
				t.Fatal(err)
			}
			if until(e.GetType(), p) {
				return
			}
		}
	}
	follow(func(_ podsv1alpha1.EventType, p *corev1.Pod) bool {
		return p.Name == "web" && p.Status.Phase == corev1.PodRunning
	})
	harness.remove("web", 0)
	follow(func(kind podsv1alpha1.EventType, p *corev1.Pod) bool {
		return kind == podsv1alpha1.EventType_DELETED && p.Name == "web"
	})
}
