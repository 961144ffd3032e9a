// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri/critest"
)

// TestSharedProcessNamespaceLeadsNowhere: what a container with CAP_SYS_PTRACE in a pod with shareProcessNamespace finds behind
// process 1.
func TestSharedProcessNamespaceLeadsNowhere(t *testing.T) {
	n := newNode(t)
	ctx := t.Context()
	ns := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_POD}
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "shared", Uid: "uid-shared", Namespace: "test"},
		LogDirectory: filepath.Join(n.cfg.Dir, "logs", "shared"),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    "/keelson-" + n.cfg.ID,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: ns},
		},
	}
	p, err := n.c.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	c, err := n.c.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: p.GetPodSandboxId(), SandboxConfig: cfg, Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: critest.HelloImage},
			Command: []string{"/hello", "sleep", "1000"}, LogPath: "c.log",
			Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: ns, Capabilities: &runtimeapi.Capability{AddCapabilities: []string{"SYS_PTRACE"}},
			}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.c.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.GetContainerId()}); err != nil {
		t.Fatal(err)
	}
	run := func(command string) string {
		t.Helper()
		r, err := n.c.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: c.GetContainerId(), Cmd: []string{"/bin/sh", "-c", command}})
		if err != nil {
			t.Fatal(err)
		}
		return string(r.GetStdout())
	}
	if got := run("cat /proc/1/comm"); got != "pause\n" {
		t.Fatalf("process 1: got %q", got)
	}
	for _, path := range []string{"/proc/1/root/", "/proc/1/root/../../", "/proc/1/cwd/", "/proc/1/cwd/../..", "/proc/1/fd/"} {
		if got := run("ls " + path); got != "" {
			t.Errorf("%s: got %q, want nothing", path, got)
		}
	}
	if got := run("cat /proc/1/mountinfo"); strings.Count(got, "\n") != 1 {
		t.Errorf("mounts of process 1: got %q, want its empty root alone", got)
	}
	// The container's own process is the control.
	if got := run("ls /proc/self/root/ && ls /proc/self/fd/"); len(got) < 10 {
		t.Errorf("the same of an ordinary process: got %q, want more", got)
	}
}
