// SPDX-License-Identifier: Apache-2.0

package critest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
)

// Subject is a runtime under test. HelloImage must be present.
type Subject struct {
	Client cri.Client
	// CgroupParent is the cgroup parent of pods, as the kubelet passes it; empty lets the runtime choose.
	CgroupParent string
}

// Suite tests the behaviour that every runtime must have. open returns a new runtime and registers its cleanup.
func Suite(t *testing.T, open func(t *testing.T) Subject) {
	tests := []struct {
		name string
		run  func(*testing.T, *bench)
	}{
		{"VersionAndStatus", testVersion},
		{"SandboxLifecycle", testSandbox},
		{"SandboxTwice", testSandboxTwice},
		{"MissingThings", testMissing},
		{"ContainerLifecycle", testContainer},
		{"ExitCodes", testExitCodes},
		{"CreateNeeds", testCreateNeeds},
		{"PrivilegedLater", testPrivilegedLater},
		{"StopKills", testStop},
		{"RemoveForces", testRemoveForces},
		{"Logs", testLogs},
		{"ExecSync", testExecSync},
		{"Lists", testLists},
		{"Events", testEvents},
		{"Stats", testStats},
		{"UserNamespace", testUserNamespace},
		{"Images", testImages},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			s := open(t) // it may take long: programs may have to be built
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
			t.Cleanup(cancel)
			tc.run(t, &bench{
				Subject: s,
				ctx:     func() context.Context { return ctx },
				t:       t,
				logs:    t.TempDir(),
			})
		})
	}
}

// bench has short forms of the methods, which fail the test on an error.
type bench struct {
	Subject
	ctx  func() context.Context
	t    *testing.T
	logs string
	pods int
}

func (b *bench) podConfig(name string) *runtimeapi.PodSandboxConfig {
	b.pods++
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name:      name,
			Uid:       fmt.Sprintf("uid-%s-%d", name, b.pods),
			Namespace: "suite",
		},
		Hostname:     name,
		LogDirectory: filepath.Join(b.logs, name),
		Labels:       map[string]string{"pod": name},
		Annotations:  map[string]string{"note": "kept"},
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: b.CgroupParent},
	}
}

func (b *bench) pod(name string) (string, *runtimeapi.PodSandboxConfig) {
	b.t.Helper()
	cfg := b.podConfig(name)
	r, err := b.Client.Runtime.RunPodSandbox(b.ctx(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		b.t.Fatalf("run pod sandbox %s: %v", name, err)
	}
	return r.GetPodSandboxId(), cfg
}

func containerConfig(name string, args ...string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: name},
		Image:       &runtimeapi.ImageSpec{Image: HelloImage},
		Command:     []string{"/hello"},
		Args:        args,
		Labels:      map[string]string{"container": name},
		Annotations: map[string]string{"note": "kept"},
		LogPath:     name + "/0.log",
	}
}

func (b *bench) create(pod string, cfg *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) string {
	b.t.Helper()
	r, err := b.Client.Runtime.CreateContainer(b.ctx(), &runtimeapi.CreateContainerRequest{
		PodSandboxId:  pod,
		Config:        c,
		SandboxConfig: cfg,
	})
	if err != nil {
		b.t.Fatalf("create container %s: %v", c.GetMetadata().GetName(), err)
	}
	return r.GetContainerId()
}

func (b *bench) start(id string) {
	b.t.Helper()
	if _, err := b.Client.Runtime.StartContainer(b.ctx(),
		&runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		b.t.Fatalf("start container: %v", err)
	}
}

func (b *bench) run(pod string, cfg *runtimeapi.PodSandboxConfig, name string, args ...string) string {
	b.t.Helper()
	id := b.create(pod, cfg, containerConfig(name, args...))
	b.start(id)
	return id
}

func (b *bench) status(id string) *runtimeapi.ContainerStatus {
	b.t.Helper()
	r, err := b.Client.Runtime.ContainerStatus(b.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		b.t.Fatalf("container status: %v", err)
	}
	return r.GetStatus()
}

// exited waits until the container has ended, by events if the runtime has them, else by its status.
func (b *bench) exited(id string) *runtimeapi.ContainerStatus {
	b.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if s := b.status(id); s.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			return s
		}
		select {
		case <-tick.C:
		case <-b.ctx().Done():
			b.t.Fatalf("container %s did not exit: %v", id, b.status(id))
		}
	}
}

func (b *bench) stopPod(id string) {
	b.t.Helper()
	if _, err := b.Client.Runtime.StopPodSandbox(b.ctx(),
		&runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		b.t.Fatalf("stop pod sandbox: %v", err)
	}
}

func (b *bench) removePod(id string) {
	b.t.Helper()
	if _, err := b.Client.Runtime.RemovePodSandbox(b.ctx(),
		&runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		b.t.Fatalf("remove pod sandbox: %v", err)
	}
}

func (b *bench) stop(id string, seconds int64) {
	b.t.Helper()
	if _, err := b.Client.Runtime.StopContainer(b.ctx(),
		&runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds}); err != nil {
		b.t.Fatalf("stop container: %v", err)
	}
}

// log returns a container's log as "stream line" per line, after checking the format. A runtime may write the last
// lines shortly after it has reported the exit, so log waits for want lines.
func (b *bench) log(id string, want int) []string {
	b.t.Helper()
	path := b.status(id).GetLogPath()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		raw, err := os.ReadFile(path)
		lines := strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
		if err == nil && (len(lines) >= want && raw != nil || want == 0) {
			return b.parse(lines)
		}
		select {
		case <-tick.C:
		case <-b.ctx().Done():
			b.t.Fatalf("log %s: got %q (%v), want %d lines", path, raw, err, want)
		}
	}
}

func (b *bench) parse(lines []string) []string {
	b.t.Helper()
	var out []string
	for _, l := range lines {
		if l == "" {
			continue
		}
		f := strings.SplitN(l, " ", 4)
		if len(f) != 4 || f[2] != "F" && f[2] != "P" {
			b.t.Fatalf("log line %q is not CRI's: time stream tag text", l)
		}
		if _, err := time.Parse(time.RFC3339Nano, f[0]); err != nil {
			b.t.Fatalf("log line %q: %v", l, err)
		}
		out = append(out, f[1]+" "+f[3])
	}
	return out
}

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: got code %s (%v), want %s", what, got, err, want)
	}
}
