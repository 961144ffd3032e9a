// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/lib/waittest"
)

// TestNodeEvents: changes of a node are recorded once, with the messages of Kubernetes' kubelet.
func TestNodeEvents(t *testing.T) {
	harness := newHarness(t)
	nodes := harness.api.CoreV1().Nodes()
	// reported waits for the times-th event of a reason, and wants it to be about the node.
	reported := func(times int, kind, reason, message string) {
		t.Helper()
		harness.waitEvent(reason, message)
		waittest.Until(t, "event "+reason, func() bool {
			list, err := harness.api.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			count := 0
			for _, e := range list.Items {
				if e.Reason == reason && e.Type == kind && e.Message == message && e.InvolvedObject.Kind == "Node" &&
					e.InvolvedObject.Name == nodeName {
					count += int(e.Count)
				}
			}
			if count > times {
				t.Fatalf("event %s: %d times, want %d", reason, count, times)
			}
			return count == times
		})
	}
	state := func(times int, reason string) {
		t.Helper()
		reported(times, corev1.EventTypeNormal, reason, "Node node-1 status is now: "+reason)
	}
	cordon := func(yes string) {
		t.Helper()
		if _, err := nodes.Patch(t.Context(), nodeName, types.MergePatchType,
			[]byte(`{"spec":{"unschedulable":`+yes+`}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	status := func(f func(*corev1.NodeStatus)) {
		t.Helper()
		n, err := nodes.Get(t.Context(), nodeName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		f(&n.Status)
		if _, err := nodes.UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	watches := countWatches(harness, "nodes")
	stop := harness.run()
	reported(1, corev1.EventTypeNormal, "Starting", "Starting kubelet.")
	for _, reason := range []string{
		"NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady",
	} {
		state(1, reason)
	}
	waittest.Until(t, "the kubelet watches its node", func() bool { return watches.Load() > 0 })
	cordon("true")
	state(1, "NodeNotSchedulable")
	cordon("false")
	state(1, "NodeSchedulable")
	status(func(s *corev1.NodeStatus) { // as the node life cycle controller does
		for i := range s.Conditions {
			s.Conditions[i].Status = corev1.ConditionUnknown
		}
	})
	for _, reason := range []string{
		"NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady",
	} {
		state(2, reason)
	}
	harness.rt.SetNotReady("down for a test")
	cordon("true")
	state(1, "NodeNotReady")
	state(2, "NodeNotSchedulable")
	stop()

	// The next life reports everything again, and a reboot if there was one.
	if got := harness.events("Rebooted"); len(got) > 0 {
		t.Errorf("rebooted without a reboot: %q", got)
	}
	harness.rt.SetNotReady("")
	var boot string
	status(func(s *corev1.NodeStatus) {
		boot = s.NodeInfo.BootID
		s.NodeInfo.BootID = "an-earlier-boot"
	})
	harness.run()
	reported(1, corev1.EventTypeWarning, "Rebooted", "Node node-1 has been rebooted, boot id: "+boot)
	reported(2, corev1.EventTypeNormal, "Starting", "Starting kubelet.")
	state(3, "NodeNotSchedulable")
	state(3, "NodeReady")
	if n, err := nodes.Get(t.Context(), nodeName, metav1.GetOptions{}); err != nil || n.Status.NodeInfo.BootID != boot {
		t.Errorf("boot id of the node: got %q, %v, want %q", n.Status.NodeInfo.BootID, err, boot)
	}
}

// TestNodeAnnotations: an annotation with an empty value goes from the node of an earlier life, and others stay.
func TestNodeAnnotations(t *testing.T) {
	harness := newHarness(t)
	old := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:        nodeName,
		Annotations: map[string]string{"mine": "old", "gone": "old", "foreign": "kept"},
	}}
	if _, err := harness.api.CoreV1().Nodes().Create(t.Context(), old, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.cfg.Annotations = map[string]string{"mine": "new", "gone": "", "never": ""}
	defer harness.run()()
	waittest.Until(t, "annotations", func() bool {
		n, err := harness.api.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		a := n.Annotations
		_, gone := a["gone"]
		_, never := a["never"]
		return a["mine"] == "new" && a["foreign"] == "kept" && !gone && !never
	})
}
