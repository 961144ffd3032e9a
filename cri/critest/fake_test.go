// SPDX-License-Identifier: Apache-2.0

package critest_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
	"keelson/cri/critest"
)

func TestFakeInProcess(t *testing.T) {
	critest.Suite(t, func(*testing.T) critest.Subject {
		return critest.Subject{Client: cri.InProcess(critest.NewFake())}
	})
}

func TestFakeOverSocket(t *testing.T) {
	critest.Suite(t, func(t *testing.T) critest.Subject {
		sock := filepath.Join(t.TempDir(), "s")
		ctx, cancel := context.WithCancel(context.Background())
		served := make(chan error, 1)
		ready := make(chan struct{})
		go func() { served <- cri.Serve(ctx, critest.NewFake(), sock, func() { close(ready) }) }() // ends with ctx
		<-ready
		client, err := cri.Dial(t.Context(), "unix://"+sock)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = client.Close()
			cancel()
			if err := <-served; err != nil {
				t.Errorf("serve: %v", err)
			}
		})
		return critest.Subject{Client: client}
	})
}

func TestFakePlans(t *testing.T) {
	fake := critest.NewFake()
	client := cri.InProcess(fake)
	boom := errors.New("boom")
	fake.FailNext("RunPodSandbox", boom, nil)
	req := &runtimeapi.RunPodSandboxRequest{
		Config: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Uid: "u"}},
	}
	if _, err := client.Runtime.RunPodSandbox(t.Context(), req); err == nil {
		t.Error("planned failure: got none")
	}
	pod, err := client.Runtime.RunPodSandbox(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	ctr, err := client.Runtime.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: pod.GetPodSandboxId(),
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c"},
			Image:    &runtimeapi.ImageSpec{Image: critest.HelloImage},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	id := ctr.GetContainerId()
	if fake.Exit(id, 1) {
		t.Error("exit of a container that is not running: got true")
	}
	if _, err := client.Runtime.StartContainer(t.Context(),
		&runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if !fake.OOMKill(id) {
		t.Error("oom kill: got false")
	}
	s, err := client.Runtime.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil || s.GetStatus().GetReason() != "OOMKilled" || s.GetStatus().GetExitCode() != 137 {
		t.Errorf("after oom kill: got %v, %v", s, err)
	}
}
