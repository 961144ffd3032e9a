// SPDX-License-Identifier: Apache-2.0

package critest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func testContainer(t *testing.T, b *bench) {
	pod, cfg := b.pod("life")
	defer b.removePod(pod)
	before := time.Now().UnixNano()
	id := b.create(pod, cfg, containerConfig("main"))
	status := b.status(id)
	if status.GetState() != runtimeapi.ContainerState_CONTAINER_CREATED || status.GetCreatedAt() < before ||
		status.GetStartedAt() != 0 || status.GetFinishedAt() != 0 {
		t.Errorf("status after create: got %v", status)
	}
	if status.GetImageRef() == "" || status.GetImage().GetImage() != HelloImage ||
		status.GetLabels()["container"] != "main" ||
		status.GetLogPath() == "" {
		t.Errorf("status after create: got %v, want image, labels and log path", status)
	}
	b.start(id)
	status = b.status(id)
	if status.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING ||
		status.GetStartedAt() < status.GetCreatedAt() ||
		status.GetFinishedAt() != 0 {
		t.Errorf("status after start: got %v", status)
	}
	if _, err := b.Client.Runtime.StartContainer(b.ctx(),
		&runtimeapi.StartContainerRequest{ContainerId: id}); err == nil {
		t.Error("start twice: got no error")
	}
	b.stop(id, 60)
	status = b.status(id)
	// 0: the program took SIGTERM and ended by itself; 143: SIGTERM came before it could; never anything else, and
	// never SIGKILL's 137 within the grace.
	if code := status.GetExitCode(); code != 0 && code != 143 {
		t.Errorf("exit code after stop: got %d, want 0 or 143", code)
	}
	if status.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED ||
		status.GetFinishedAt() < status.GetStartedAt() {
		t.Errorf("status after stop: got %v", status)
	}
	b.stop(id, 60)
	for range 2 {
		if _, err := b.Client.Runtime.RemoveContainer(b.ctx(),
			&runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	_, err := b.Client.Runtime.ContainerStatus(b.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	wantCode(t, "status after remove", err, codes.NotFound)
}

func testExitCodes(t *testing.T, b *bench) {
	pod, cfg := b.pod("exits")
	defer b.removePod(pod)
	for name, want := range map[string]int32{"exit-0": 0, "exit-3": 3, "exit-255": 255} {
		s := b.exited(b.run(pod, cfg, name, "exit", strings.TrimPrefix(name, "exit-")))
		reason := "Error"
		if want == 0 {
			reason = "Completed"
		}
		if s.GetExitCode() != want || s.GetReason() != reason || s.GetFinishedAt() < s.GetStartedAt() ||
			s.GetStartedAt() == 0 {
			t.Errorf("%s: got code %d, reason %q, %v, want %d %s", name, s.GetExitCode(), s.GetReason(), s, want,
				reason)
		}
	}
}

func testCreateNeeds(t *testing.T, b *bench) {
	pod, cfg := b.pod("needs")
	defer b.removePod(pod)
	b.create(pod, cfg, containerConfig("dup"))
	try := func(pod string, c *runtimeapi.ContainerConfig) error {
		_, err := b.Client.Runtime.CreateContainer(b.ctx(), &runtimeapi.CreateContainerRequest{
			PodSandboxId:  pod,
			Config:        c,
			SandboxConfig: cfg,
		})
		return err
	}
	if err := try(pod, containerConfig("dup")); err == nil {
		t.Error("the same name and attempt again: got no error")
	}
	absent := containerConfig("absent")
	absent.Image = &runtimeapi.ImageSpec{Image: "keelson.local/absent:1"}
	wantCode(t, "an absent image", try(pod, absent), codes.NotFound)
	wantCode(t, "an unknown pod", try(strings.Repeat("0a", 32), containerConfig("x")), codes.NotFound)
	b.stopPod(pod)
	if err := try(pod, containerConfig("late")); err == nil {
		t.Error("a stopped pod: got no error")
	}
}

// testPrivilegedLater: a pod may get a privileged ephemeral container after its sandbox was made.
func testPrivilegedLater(t *testing.T, b *bench) {
	pod, cfg := b.pod("later")
	defer b.removePod(pod)
	cfg.Linux.SecurityContext = &runtimeapi.LinuxSandboxSecurityContext{Privileged: true}
	debug := containerConfig("debug", "exit", "0")
	debug.Linux = &runtimeapi.LinuxContainerConfig{
		SecurityContext: &runtimeapi.LinuxContainerSecurityContext{Privileged: true},
	}
	id := b.create(pod, cfg, debug)
	b.start(id)
	if got := b.exited(id).GetExitCode(); got != 0 {
		t.Errorf("a privileged container in a plain sandbox: got exit code %d, want 0", got)
	}
}

func testStop(t *testing.T, b *bench) {
	pod, cfg := b.pod("stops")
	defer b.removePod(pod)
	id := b.run(pod, cfg, "main")
	b.stop(id, 0) // no time to end by itself
	if s := b.status(id); s.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || s.GetExitCode() != 137 {
		t.Errorf("stop with timeout 0: got %v, want exit code 137", s)
	}
	other := b.run(pod, cfg, "other")
	b.stopPod(pod)
	if s := b.status(other); s.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
		t.Errorf("container of a stopped pod: got %s", s.GetState())
	}
}

func testRemoveForces(t *testing.T, b *bench) {
	pod, cfg := b.pod("forced")
	id := b.run(pod, cfg, "main")
	if _, err := b.Client.Runtime.RemoveContainer(b.ctx(),
		&runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Errorf("remove a running container: %v", err)
	}
	id = b.run(pod, cfg, "second")
	b.removePod(pod)
	_, err := b.Client.Runtime.ContainerStatus(b.ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	wantCode(t, "container of a removed pod", err, codes.NotFound)
}

func testLogs(t *testing.T, b *bench) {
	pod, cfg := b.pod("logs")
	defer b.removePod(pod)
	id := b.run(pod, cfg, "talker", "echo", "good", "morning")
	b.exited(id)
	if diff := cmp.Diff([]string{"stdout good morning"}, b.log(id, 1)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	c := containerConfig("env", "env")
	c.Envs = []*runtimeapi.KeyValue{{Key: "KEELSON_SUITE", Value: []byte("yes please")}}
	id = b.create(pod, cfg, c)
	b.start(id)
	b.exited(id)
	if got := b.log(id, 1); !slices.Contains(got, "stdout KEELSON_SUITE=yes please") {
		t.Errorf("env: got %q", got)
	}
	id = b.run(pod, cfg, "runs")
	if _, err := b.Client.Runtime.ReopenContainerLog(b.ctx(),
		&runtimeapi.ReopenContainerLogRequest{ContainerId: id}); err != nil {
		t.Errorf("reopen: %v", err)
	}
}

func testExecSync(t *testing.T, b *bench) {
	pod, cfg := b.pod("execs")
	defer b.removePod(pod)
	id := b.run(pod, cfg, "main")
	exec := func(timeout int64, cmd ...string) (*runtimeapi.ExecSyncResponse, error) {
		return b.Client.Runtime.ExecSync(b.ctx(), &runtimeapi.ExecSyncRequest{
			ContainerId: id,
			Cmd:         cmd,
			Timeout:     timeout,
		})
	}
	r, err := exec(60, "/hello", "echo", "hi")
	if err != nil || string(r.GetStdout()) != "hi\n" || r.GetExitCode() != 0 {
		t.Errorf("exec echo: got %v, %v", r, err)
	}
	r, err = exec(60, "/hello", "exit", "7")
	if err != nil || r.GetExitCode() != 7 {
		t.Errorf("exec exit 7: got %v, %v", r, err)
	}
	_, err = exec(1, "/hello", "sleep", "30")
	wantCode(t, "exec beyond its timeout", err, codes.DeadlineExceeded)
	if s := b.status(id); s.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("container after execs: got %s", s.GetState())
	}
	b.stop(id, 0)
	if _, err := exec(1, "/hello", "exit", "0"); err == nil {
		t.Error("exec in an exited container: got no error")
	}
}

func testEvents(t *testing.T, b *bench) {
	stream, err := b.Client.Runtime.GetContainerEvents(b.ctx(), &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *runtimeapi.ContainerEventResponse, 64)
	go func() { // ends with the stream, when the suite's context does
		defer close(got)
		for {
			e, err := stream.Recv()
			if err != nil {
				return
			}
			got <- e
		}
	}()
	// The stream opens in its own time: pods are made until the first event shows that it has.
	pod := ""
	cfg := (*runtimeapi.PodSandboxConfig)(nil)
	for open := false; !open; {
		pod, cfg = b.pod("watched")
		select {
		case <-got:
			open = true
		case <-time.After(50 * time.Millisecond):
			b.removePod(pod)
		}
	}
	id := b.run(pod, cfg, "main", "exit", "4")
	b.exited(id)
	b.removePod(pod)
	var types []runtimeapi.ContainerEventType
	for e := range got {
		if e.GetContainerId() != id {
			continue
		}
		types = append(types, e.GetContainerEventType())
		if e.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
			checkStopped(t, e, pod, id)
		}
		if e.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT {
			break
		}
	}
	want := []runtimeapi.ContainerEventType{
		runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT,
		runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT,
	}
	if !slices.Equal(types, want) {
		t.Errorf("events of the container: got %v, want %v", types, want)
	}
}

func checkStopped(t *testing.T, e *runtimeapi.ContainerEventResponse, pod, id string) {
	t.Helper()
	if e.GetPodSandboxStatus().GetId() != pod {
		t.Errorf("stopped event: got pod %q, want %q", e.GetPodSandboxStatus().GetId(), pod)
	}
	for _, s := range e.GetContainersStatuses() {
		if s.GetId() == id && s.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED && s.GetExitCode() == 4 {
			return
		}
	}
	t.Errorf("stopped event: got statuses %v, want the container exited with 4", e.GetContainersStatuses())
}

func testStats(t *testing.T, b *bench) {
	pod, cfg := b.pod("stats")
	defer b.removePod(pod)
	id := b.run(pod, cfg, "main")
	r, err := b.Client.Runtime.ContainerStats(b.ctx(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
	if err != nil {
		t.Fatal(err)
	}
	s := r.GetStats()
	if s.GetAttributes().GetId() != id || s.GetMemory().GetWorkingSetBytes().GetValue() == 0 ||
		s.GetCpu().GetUsageCoreNanoSeconds() == nil {
		t.Errorf("container stats: got %v", s)
	}
	l, err := b.Client.Runtime.ListContainerStats(b.ctx(), &runtimeapi.ListContainerStatsRequest{
		Filter: &runtimeapi.ContainerStatsFilter{PodSandboxId: pod},
	})
	if err != nil || len(l.GetStats()) != 1 {
		t.Errorf("list container stats: got %v, %v", l, err)
	}
	p, err := b.Client.Runtime.PodSandboxStats(b.ctx(), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: pod})
	if err != nil || len(p.GetStats().GetLinux().GetContainers()) != 1 {
		t.Errorf("pod stats: got %v, %v", p, err)
	}
}

func testImages(t *testing.T, b *bench) {
	status := func(ref string) *runtimeapi.Image {
		r, err := b.Client.Image.ImageStatus(b.ctx(), &runtimeapi.ImageStatusRequest{
			Image: &runtimeapi.ImageSpec{Image: ref},
		})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetImage()
	}
	img := status(HelloImage)
	if img.GetId() == "" || img.GetSize() == 0 || !slices.Contains(img.GetRepoTags(), HelloImage) {
		t.Errorf("image status: got %v", img)
	}
	if got := status(img.GetId()); got.GetId() != img.GetId() {
		t.Errorf("image status by id: got %v", got)
	}
	if got := status("keelson.local/absent:1"); got != nil {
		t.Errorf("status of an absent image: got %v, want none", got)
	}
	l, err := b.Client.Image.ListImages(b.ctx(), &runtimeapi.ListImagesRequest{})
	if err != nil || len(l.GetImages()) == 0 {
		t.Errorf("list images: got %v, %v", l, err)
	}
	f, err := b.Client.Image.ImageFsInfo(b.ctx(), &runtimeapi.ImageFsInfoRequest{})
	if err != nil || len(f.GetImageFilesystems()) == 0 || f.GetImageFilesystems()[0].GetFsId().GetMountpoint() == "" {
		t.Errorf("image fs info: got %v, %v", f, err)
	}
}
