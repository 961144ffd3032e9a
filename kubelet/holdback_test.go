// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/lib/waittest"
)

// underWay writes what a kubelet leaves that died while it started a pod or pulled an image, after it had died once
// before.
func (h *harness) underWay(key, subject string) {
	h.t.Helper()
	dir := filepath.Join(h.root, "starting")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		h.t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(key))
	body := fmt.Sprintf(`{%s,"deaths":1,"last":%q,"running":true}`, subject, time.Now().UTC().Format(time.RFC3339))
	if err := os.WriteFile(filepath.Join(dir, hex.EncodeToString(sum[:16])), []byte(body), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) starting() int {
	h.t.Helper()
	entries, err := os.ReadDir(filepath.Join(h.root, "starting"))
	if err != nil {
		h.t.Fatal(err)
	}
	return len(entries)
}

func waits(reason string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		return p != nil && slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.State.Waiting != nil && s.State.Waiting.Reason == reason
		})
	}
}

// TestPodIsHeldBack: a pod during whose start the kubelet died twice does not start, and says so. Others do. Its
// deletion removes the record.
func TestPodIsHeldBack(t *testing.T) {
	harness := newHarness(t)
	harness.create(testPod("bad"))
	harness.create(testPod("good"))
	harness.underWay("pod/uid-bad", `"uid":"uid-bad","namespace":"default","name":"bad"`)
	harness.underWay("pod/uid-gone", `"uid":"uid-gone","namespace":"default","name":"gone"`)
	harness.run()
	harness.until("bad", "held back", waits("StartHeldBack"))
	harness.waitEvent("StartHeldBack", "Keelson ended 2 times while this pod was starting")
	harness.until("good", "ready", ready)
	if n := len(slices.DeleteFunc(harness.rt.Calls(), func(c string) bool { return c != "RunPodSandbox" })); n != 1 {
		t.Errorf("%d sandboxes were made, want that of the good pod", n)
	}
	waittest.Until(t, "one record is left", func() bool { return harness.starting() == 1 })
	harness.remove("bad", 0)
	harness.until("bad", "gone", func(p *corev1.Pod) bool { return p == nil })
	waittest.Until(t, "no record is left", func() bool { return harness.starting() == 0 })
}

// TestImageIsHeldBack: an image during whose pull the kubelet died twice is not pulled.
func TestImageIsHeldBack(t *testing.T) {
	h := newHarness(t)
	h.underWay("image/registry.test/bomb:1", `"name":"registry.test/bomb:1"`)
	h.create(testPod("bad", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "registry.test/bomb:1" }))
	h.run()
	h.until("bad", "held back", waits("ImageHeldBack"))
	h.waitEvent("ImageHeldBack", `while it pulled image "registry.test/bomb:1"`)
	if slices.Contains(h.rt.Calls(), "PullImage") {
		t.Error("the image was pulled")
	}
}
