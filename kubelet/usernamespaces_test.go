// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/waittest"
)

// ownUsers makes a pod one with a user namespace of its own.
func ownUsers(p *corev1.Pod) {
	no := false
	p.Spec.HostUsers = &no
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{
		Name:         "v",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
	})
	p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{
		Name:      "v",
		MountPath: "/v",
	})
}

// users is the user namespace that the runtime was asked for with the pod's last container; it is the same for its
// sandbox and its mounts.
func (h *harness) users(pod string) *runtimeapi.UserNamespace {
	h.t.Helper()
	id := strings.TrimPrefix(h.get(pod).Status.ContainerStatuses[0].ContainerID, "fake://")
	c := h.rt.Config(id)
	userNamespace := c.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	for _, m := range c.GetMounts() {
		same := func(got, want []*runtimeapi.IDMapping) bool {
			return slices.EqualFunc(got, want, func(a, b *runtimeapi.IDMapping) bool {
				return a.GetHostId() == b.GetHostId() && a.GetLength() == b.GetLength()
			})
		}
		if !same(m.GetUidMappings(), userNamespace.GetUids()) || !same(m.GetGidMappings(), userNamespace.GetGids()) {
			h.t.Errorf("pod %s: mount at %s has mappings %v, %v, want those of %v", pod, m.GetContainerPath(),
				m.GetUidMappings(), m.GetGidMappings(), userNamespace)
		}
	}
	list, err := h.rt.ListPodSandbox(h.t.Context(), &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"io.kubernetes.pod.name": pod}},
	})
	if err != nil || len(list.GetItems()) != 1 {
		h.t.Fatalf("sandboxes of %s: %v, %v", pod, list, err)
	}
	st, err := h.rt.PodSandboxStatus(h.t.Context(), &runtimeapi.PodSandboxStatusRequest{
		PodSandboxId: list.GetItems()[0].GetId(),
	})
	if err != nil {
		h.t.Fatal(err)
	}
	if s := st.GetStatus().GetLinux().GetNamespaces().GetOptions().
		GetUsernsOptions(); s.GetMode() != userNamespace.GetMode() ||
		!slices.EqualFunc(s.GetUids(), userNamespace.GetUids(),
			func(a, b *runtimeapi.IDMapping) bool { return a.GetHostId() == b.GetHostId() }) {
		h.t.Errorf("pod %s: the sandbox has %v, the container %v", pod, s, userNamespace)
	}
	return userNamespace
}

func (h *harness) first(pod string) uint32 {
	h.t.Helper()
	u := h.users(pod)
	if u.GetMode() != runtimeapi.NamespaceMode_POD || len(u.GetUids()) != 1 || u.GetUids()[0].GetLength() != 65536 {
		h.t.Fatalf("pod %s: got user namespace %v", pod, u)
	}
	return u.GetUids()[0].GetHostId()
}

// records are the pods that have a range on disk.
func (h *harness) records() []string {
	h.t.Helper()
	all, err := filepath.Glob(filepath.Join(h.root, "pods", "*", "userns"))
	if err != nil {
		h.t.Fatal(err)
	}
	for i := range all {
		all[i] = filepath.Base(filepath.Dir(all[i]))
	}
	return all
}

func TestUserNamespaces(t *testing.T) {
	harness := newHarness(t)
	stop := harness.run()
	harness.create(testPod("plain"))
	harness.create(testPod("one", ownUsers))
	harness.create(testPod("two", ownUsers))
	for _, p := range []string{"plain", "one", "two"} {
		harness.until(p, "ready", ready)
	}
	if u := harness.users("plain"); u.GetMode() != runtimeapi.NamespaceMode_NODE {
		t.Errorf("a pod of the host's users: got %v", u)
	}
	one := harness.first("one")
	two := harness.first("two")
	if one == two || one < 65536 || two < 65536 || one%65536 != 0 || two%65536 != 0 {
		t.Errorf("two pods begin at %d and %d", one, two)
	}

	// A restart of the kubelet, a damaged record, and a container's next life change nothing.
	stop()
	if err := os.WriteFile(filepath.Join(harness.root, "pods", "uid-two", "userns"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	stop = harness.run()
	harness.create(testPod("three", ownUsers))
	harness.until("three", "ready", ready)
	if three := harness.first("three"); three == one || three == two {
		t.Errorf("the third pod begins at %d, as another does", three)
	}
	for _, c := range harness.rt.Containers("c") {
		harness.rt.Exit(c, 1)
	}
	for p, want := range map[string]uint32{"one": one, "two": two} {
		harness.until(p, "restarted", func(p *corev1.Pod) bool {
			return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 1
		})
		if got := harness.first(p); got != want {
			t.Errorf("pod %s: its second container begins at %d, want %d", p, got, want)
		}
	}
	stop()
}

// TestUserNamespacesAreFreed however a pod ends.
func TestUserNamespacesAreFreed(t *testing.T) {
	harness := newHarness(t)
	stop := harness.run()
	once := func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }
	harness.create(testPod("done", ownUsers, once))
	harness.create(testPod("failed", ownUsers, once))
	for _, p := range []string{"deleted", "forced", "gone", "away"} {
		harness.create(testPod(p, ownUsers))
	}
	harness.create(testPod("late", ownUsers, func(p *corev1.Pod) {
		d := int64(1)
		p.Spec.ActiveDeadlineSeconds = &d
	}))
	harness.create(testPod("never", ownUsers, func(p *corev1.Pod) {
		p.Spec.Volumes[0] = corev1.Volume{
			Name: "v",
			VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "none"},
				},
			},
		}
	}))
	for _, p := range []string{"done", "failed", "deleted", "forced", "gone", "away"} {
		harness.until(p, "running", phaseIs(corev1.PodRunning))
	}
	for code, name := range []string{"done", "failed"} {
		harness.rt.Exit(strings.TrimPrefix(harness.get(name).Status.ContainerStatuses[0].ContainerID, "fake://"),
			int32(code))
	}
	free := func(what string, uid ...string) {
		t.Helper()
		waittest.Until(t, what, func() bool {
			return !slices.ContainsFunc(harness.records(), func(r string) bool { return slices.Contains(uid, r) })
		})
	}
	free("finished pods have no ids", "uid-done", "uid-failed", "uid-late")
	harness.remove("deleted", 0)
	harness.remove("never", 0)
	// without a word to the kubelet, as a deleted namespace or a forced deletion
	for _, p := range []string{"forced", "gone"} {
		if err := harness.api.CoreV1().Pods("default").Delete(t.Context(), p, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	free("deleted pods have no ids", "uid-deleted", "uid-forced", "uid-gone", "uid-never")
	stop()
	if err := harness.api.CoreV1().Pods("default").Delete(t.Context(), "away", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.run()
	free("a pod that was deleted while the kubelet was away has no ids", "uid-away")
	if left := harness.records(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestUserNamespacesRefused: where the runtime has none the pod does not start, and an event says why.
func TestUserNamespacesRefused(t *testing.T) {
	harness := newHarness(t)
	harness.rt.SetUserNamespaces(false)
	harness.run()
	harness.create(testPod("mapped", ownUsers))
	harness.waitEvent("FailedCreatePodSandBox",
		"Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime does not support user namespaces")
	if slices.Contains(harness.rt.Calls(), "RunPodSandbox") || len(harness.records()) > 0 {
		t.Errorf("runtime saw %v, records %v", harness.rt.Calls(), harness.records())
	}
	n, err := harness.api.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil || len(n.Status.RuntimeHandlers) != 1 || *n.Status.RuntimeHandlers[0].Features.UserNamespaces {
		t.Errorf("node: got runtime handlers %v, %v", n.Status.RuntimeHandlers, err)
	}
	harness.rt.SetUserNamespaces(true)
	harness.until("mapped", "ready", ready)
}

// TestUserNamespacesRunOut: a pod beyond the last range waits for one.
func TestUserNamespacesRunOut(t *testing.T) {
	harness := newHarness(t)
	harness.cfg.MaxPods = 2
	harness.run()
	harness.create(testPod("one", ownUsers))
	harness.create(testPod("two", ownUsers))
	harness.until("one", "ready", ready)
	harness.until("two", "ready", ready)
	before := harness.first("one")
	harness.remove("one", 0)
	harness.until("one", "gone", func(p *corev1.Pod) bool { return p == nil })
	harness.create(testPod("three", ownUsers))
	harness.until("three", "ready", ready)
	if got := harness.first("three"); got != before {
		t.Errorf("the third pod begins at %d, want what the first gave back, %d", got, before)
	}
}
