// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri/critest"
	"keelson/runtime/shim"
)

// TestSharedProcessNamespaceLeadsNowhere: what a container with CAP_SYS_PTRACE in a pod with shareProcessNamespace
// finds behind process 1.
func TestSharedProcessNamespaceLeadsNowhere(t *testing.T) {
	node := newNode(t)
	ctx := t.Context()
	ns := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_POD}
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "shared", Uid: "uid-shared", Namespace: "test"},
		LogDirectory: filepath.Join(node.cfg.Dir, "logs", "shared"),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    "/keelson-" + node.cfg.ID,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: ns},
		},
	}
	p, err := node.c.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	response, err := node.c.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId:  p.GetPodSandboxId(),
		SandboxConfig: cfg,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c"},
			Image:    &runtimeapi.ImageSpec{Image: critest.HelloImage},
			Command:  []string{"/hello", "sleep", "1000"},
			LogPath:  "c.log",
			Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: ns,
				Capabilities:     &runtimeapi.Capability{AddCapabilities: []string{"SYS_PTRACE"}},
			}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := node.c.Runtime.StartContainer(ctx,
		&runtimeapi.StartContainerRequest{ContainerId: response.GetContainerId()}); err != nil {
		t.Fatal(err)
	}
	run := func(command string) string {
		t.Helper()
		r, err := node.c.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
			ContainerId: response.GetContainerId(),
			Cmd:         []string{"/bin/sh", "-c", command},
		})
		if err != nil {
			t.Fatal(err)
		}
		return string(r.GetStdout())
	}
	if got := run("cat /proc/1/comm"); got != "pause\n" {
		t.Fatalf("process 1: got %q", got)
	}
	for _, path := range []string{
		"/proc/1/root/", "/proc/1/root/../../", "/proc/1/cwd/", "/proc/1/cwd/../..", "/proc/1/fd/",
	} {
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

// TestTargetIsNotAnotherProcess: an ephemeral container whose target has ended joins no other process that has its
// number now.
func TestTargetIsNotAnotherProcess(t *testing.T) {
	node := newNode(t)
	ctx := t.Context()
	pod, target := node.run("target")
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "target", Uid: "uid-target", Namespace: "test"},
		LogDirectory: filepath.Join(node.cfg.Dir, "logs", "target"),
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/keelson-" + node.cfg.ID},
	}
	create := func(name string) string {
		t.Helper()
		response, err := node.c.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
			PodSandboxId:  pod,
			SandboxConfig: cfg,
			Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: name},
				Image:    &runtimeapi.ImageSpec{Image: critest.HelloImage},
				Command:  []string{"/hello", "sleep", "1000"},
				LogPath:  name + ".log",
				Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
					NamespaceOptions: &runtimeapi.NamespaceOption{
						Pid:      runtimeapi.NamespaceMode_TARGET,
						TargetId: target,
					},
				}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		return response.GetContainerId()
	}
	// The control: while the target runs it is joined.
	first := create("first")
	if _, err := node.c.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: first}); err != nil {
		t.Fatal(err)
	}
	r, err := node.c.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
		ContainerId: target,
		Cmd:         []string{"/bin/sh", "-c", "cat /proc/[0-9]*/cmdline"},
	})
	if err != nil || strings.Count(string(r.GetStdout()), "/hello\x00sleep") != 2 {
		t.Errorf("processes of the target's namespace: got %q, %v, want both containers'", r.GetStdout(), err)
	}
	late := create("late")
	pid := firstProcess(t, node, target)
	if _, err := node.c.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: target}); err != nil {
		t.Fatal(err)
	}
	takeNumber(t, pid)
	_, err = node.c.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: late})
	if err == nil || !strings.Contains(err.Error(), "join the PID namespace of container "+target) {
		t.Errorf("start with a target that has ended: got %v, want it refused", err)
	}
}

func firstProcess(t *testing.T, n *node, id string) int {
	t.Helper()
	st, err := shim.New(filepath.Join(n.cfg.Dir, "shim")).State(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return st.PID
}

// takeNumber starts a process, of the host, that has the number of one that ended.
func takeNumber(t *testing.T, pid int) {
	t.Helper()
	for range 200 {
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/bin/sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if cmd.Process.Pid == pid {
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			})
			return
		}
		_ = cmd.Process.Kill() // another process of the machine was quicker
		_ = cmd.Wait()
	}
	t.Fatalf("number %d was not to be had", pid)
}
