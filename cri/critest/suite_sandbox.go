// SPDX-License-Identifier: Apache-2.0

package critest

import (
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func testVersion(t *testing.T, b *bench) {
	v, err := b.Client.Runtime.Version(b.ctx(), &runtimeapi.VersionRequest{})
	if err != nil || v.GetRuntimeApiVersion() != "v1" || v.GetRuntimeName() == "" || v.GetRuntimeVersion() == "" {
		t.Errorf("version: got %v, %v, want api v1 and names", v, err)
	}
	s, err := b.Client.Runtime.Status(b.ctx(), &runtimeapi.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	ready := map[string]bool{}
	for _, c := range s.GetStatus().GetConditions() {
		ready[c.GetType()] = c.GetStatus()
	}
	if !ready[runtimeapi.RuntimeReady] || !ready[runtimeapi.NetworkReady] {
		t.Errorf("status: got conditions %v, want both ready", s.GetStatus().GetConditions())
	}
	c, err := b.Client.Runtime.RuntimeConfig(b.ctx(), &runtimeapi.RuntimeConfigRequest{})
	if err != nil || c.GetLinux() == nil {
		t.Errorf("runtime config: got %v, %v, want a cgroup driver", c, err)
	}
}

func testSandbox(t *testing.T, b *bench) {
	id, cfg := b.pod("one")
	status := func() *runtimeapi.PodSandboxStatus {
		t.Helper()
		r, err := b.Client.Runtime.PodSandboxStatus(b.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetStatus()
	}
	s := status()
	if s.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY || s.GetMetadata().GetUid() != cfg.GetMetadata().
		GetUid() ||
		s.GetLabels()["pod"] != "one" || s.GetAnnotations()["note"] != "kept" || s.GetCreatedAt() == 0 {
		t.Errorf("status after run: got %v", s)
	}
	for range 2 { // stopping twice is harmless
		b.stopPod(id)
		if got := status().GetState(); got != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			t.Errorf("state after stop: got %s", got)
		}
	}
	for range 2 {
		b.removePod(id)
	}
	_, err := b.Client.Runtime.PodSandboxStatus(b.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	wantCode(t, "status after remove", err, codes.NotFound)
}

func testSandboxTwice(t *testing.T, b *bench) {
	id, cfg := b.pod("twice")
	if _, err := b.Client.Runtime.RunPodSandbox(b.ctx(), &runtimeapi.RunPodSandboxRequest{Config: cfg}); err == nil {
		t.Error("the same pod and attempt again: got no error")
	}
	b.removePod(id)
	r, err := b.Client.Runtime.RunPodSandbox(b.ctx(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		t.Fatalf("the same pod again after its removal: %v", err)
	}
	b.removePod(r.GetPodSandboxId())
}

func testMissing(t *testing.T, b *bench) {
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	client := b.Client.Runtime
	for what, call := range map[string]func() error{
		"stop pod": func() error {
			_, err := client.StopPodSandbox(b.ctx(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
			return err
		},
		"remove pod": func() error {
			_, err := client.RemovePodSandbox(b.ctx(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
			return err
		},
		"stop container": func() error {
			_, err := client.StopContainer(b.ctx(), &runtimeapi.StopContainerRequest{ContainerId: id})
			return err
		},
		"remove container": func() error {
			_, err := client.RemoveContainer(b.ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
			return err
		},
	} {
		wantCode(t, what, call(), codes.OK)
	}
	for what, call := range map[string]func() error{
		"pod status": func() error {
			_, err := client.PodSandboxStatus(b.ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
			return err
		},
		"container status": func() error {
			_, err := client.ContainerStatus(b.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
			return err
		},
		"start": func() error {
			_, err := client.StartContainer(b.ctx(), &runtimeapi.StartContainerRequest{ContainerId: id})
			return err
		},
		"exec": func() error {
			_, err := client.ExecSync(b.ctx(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"/hello"}})
			return err
		},
		"stats": func() error {
			_, err := client.ContainerStats(b.ctx(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
			return err
		},
	} {
		wantCode(t, what, call(), codes.NotFound)
	}
}

func testLists(t *testing.T, b *bench) {
	one, cfg := b.pod("one")
	two, cfg2 := b.pod("two")
	defer b.removePod(one)
	defer b.removePod(two)
	a := b.run(one, cfg, "a")
	z := b.create(two, cfg2, containerConfig("z"))
	b.stopPod(two)

	pods := func(f *runtimeapi.PodSandboxFilter) []string {
		r, err := b.Client.Runtime.ListPodSandbox(b.ctx(), &runtimeapi.ListPodSandboxRequest{Filter: f})
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, s := range r.GetItems() {
			ids = append(ids, s.GetId())
		}
		return ids
	}
	ready := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
	wantSet(t, "all pods", pods(nil), one, two)
	wantSet(t, "ready pods", pods(&runtimeapi.PodSandboxFilter{State: ready}), one)
	wantSet(t, "pod by id", pods(&runtimeapi.PodSandboxFilter{Id: two}), two)
	wantSet(t, "pod by label", pods(&runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"pod": "two"}}), two)
	wantSet(t, "pod by id and label",
		pods(&runtimeapi.PodSandboxFilter{Id: one, LabelSelector: map[string]string{"pod": "two"}}))

	ctrs := func(f *runtimeapi.ContainerFilter) []string {
		r, err := b.Client.Runtime.ListContainers(b.ctx(), &runtimeapi.ListContainersRequest{Filter: f})
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, c := range r.GetContainers() {
			ids = append(ids, c.GetId())
		}
		return ids
	}
	running := &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}
	wantSet(t, "all containers", ctrs(nil), a, z)
	wantSet(t, "containers of a pod", ctrs(&runtimeapi.ContainerFilter{PodSandboxId: two}), z)
	wantSet(t, "running containers", ctrs(&runtimeapi.ContainerFilter{State: running}), a)
	wantSet(t, "container by label",
		ctrs(&runtimeapi.ContainerFilter{LabelSelector: map[string]string{"container": "z"}}), z)
}

func wantSet(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	have := map[string]int{}
	for _, g := range got {
		have[g]++
	}
	for _, w := range want {
		have[w]--
	}
	for id, n := range have {
		if n != 0 {
			t.Errorf("%s: got %v, want %v (%s)", what, got, want, id)
			return
		}
	}
}
