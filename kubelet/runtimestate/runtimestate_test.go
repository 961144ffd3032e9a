// SPDX-License-Identifier: Apache-2.0

package runtimestate

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
	"keelson/cri/critest"
)

// pod starts a sandbox of a pod, and in it one container for each of names.
func pod(t *testing.T, rt cri.Client, uid string, attempt uint32, names ...string) (box string, ids []string) {
	t.Helper()
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name:      "web",
			Namespace: "default",
			Uid:       uid,
			Attempt:   attempt,
		},
		Labels:       map[string]string{LabelPodUID: uid},
		LogDirectory: t.TempDir(),
	}
	response, err := rt.Runtime.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		c, err := rt.Runtime.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
			PodSandboxId:  response.GetPodSandboxId(),
			SandboxConfig: cfg,
			Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: uint32(i)}, // a few
				Image:    &runtimeapi.ImageSpec{Image: critest.HelloImage},
				Labels:   map[string]string{LabelPodUID: uid, LabelContainerName: name},
				LogPath:  name + ".log",
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, c.GetContainerId())
	}
	return response.GetPodSandboxId(), ids
}

// TestRead: the newest run of each container and the newest sandbox come first, whatever order the runtime has.
func TestRead(t *testing.T) {
	fake := critest.NewFake()
	rt := cri.InProcess(fake)
	old, before := pod(t, rt, "u1", 0, "app", "app")
	fake.StopSandbox(old)
	box, now := pod(t, rt, "u1", 1, "side", "app", "app", "app")
	pod(t, rt, "u2", 0, "app")
	if _, err := rt.Runtime.StartContainer(t.Context(),
		&runtimeapi.StartContainerRequest{ContainerId: now[3]}); err != nil {
		t.Fatal(err)
	}
	p, err := Read(t.Context(), rt.Runtime, "u1")
	if err != nil {
		t.Fatal(err)
	}
	if p.Namespace != "default" || p.Name != "web" || len(p.Sandboxes) != 2 || len(p.Containers) != 6 {
		t.Fatalf("pod: %+v", p)
	}
	if c := p.Current(); c == nil || c.ID != box || c.Attempt != 1 || len(c.IPs) == 0 {
		t.Errorf("current sandbox: %+v, want %s with its address", c, box)
	}
	latest := p.Latest("app")
	previous := p.Previous("app")
	if latest == nil || latest.ID != now[3] || !latest.Running() || latest.Exited() || latest.Started.IsZero() ||
		!latest.Finished.IsZero() {
		t.Errorf("latest run: %+v, want %s running", latest, now[3])
	}
	if previous == nil || previous.ID != now[2] || previous.Running() || !previous.Started.IsZero() {
		t.Errorf("run before: %+v, want %s, which never ran", previous, now[2])
	}
	if c := p.LatestIn(old, "app"); c == nil || c.ID != before[1] {
		t.Errorf("newest in the old sandbox: %+v, want %s", c, before[1])
	}
	if p.LatestIn(old, "side") != nil || p.Latest("none") != nil || p.Find("none") != nil || p.Find(now[0]) == nil {
		t.Error("a container was found where it is not, or not where it is")
	}
	fake.StopSandbox(box)
	if p, err = Read(t.Context(), rt.Runtime, "u1"); err != nil || p.Current() != nil || !p.Latest("app").Exited() {
		t.Errorf("its sandbox ended: current %v, latest run %+v, %v", p.Current(), p.Latest("app"), err)
	}
}

// TestReadOfNothing: a pod that the runtime does not know is empty, and so is no pod at all.
func TestReadOfNothing(t *testing.T) {
	p, err := Read(t.Context(), cri.InProcess(critest.NewFake()).Runtime, "none")
	if err != nil || p == nil || len(p.Sandboxes)+len(p.Containers) > 0 {
		t.Errorf("got %+v, %v", p, err)
	}
	for _, p := range []*Pod{p, nil} {
		if p.Current() != nil || p.Latest("a") != nil || p.Previous("a") != nil || p.LatestIn("s", "a") != nil ||
			p.Find("a") != nil {
			t.Errorf("something was found in %+v", p)
		}
	}
}

// TestRemovedMeanwhile: what is removed between the list and the look at it is left out; other failures are returned.
func TestRemovedMeanwhile(t *testing.T) {
	fake := critest.NewFake()
	rt := cri.InProcess(fake)
	pod(t, rt, "u", 0, "a", "b")
	gone := grpcstatus.Error(codes.NotFound, "gone")
	fake.FailNext("ContainerStatus", gone)
	fake.FailNext("PodSandboxStatus", gone)
	if p, err := Read(t.Context(), rt.Runtime, "u"); err != nil || len(p.Sandboxes) != 0 || len(p.Containers) != 1 {
		t.Errorf("a sandbox and a container are gone: %+v, %v", p, err)
	}
	for _, verb := range []string{"ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus"} {
		broken := errors.New(verb + " is broken")
		fake.FailNext(verb, broken)
		if _, err := Read(t.Context(), rt.Runtime, "u"); err == nil || !strings.Contains(err.Error(), broken.Error()) {
			t.Errorf("%s fails: got %v", verb, err)
		}
	}
}

func TestUIDs(t *testing.T) {
	fake := critest.NewFake()
	rt := cri.InProcess(fake)
	pod(t, rt, "u1", 0)
	pod(t, rt, "u1", 1)
	pod(t, rt, "u2", 0)
	if _, err := rt.Runtime.RunPodSandbox(
		t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "other", Uid: "not a kubelet's"},
		}}); err != nil {
		t.Fatal(err)
	}
	got, err := ListPods(t.Context(), rt.Runtime)
	if err != nil || len(got) != 2 || got["u1"] == nil || got["u2"] == nil || got["u1"].Name != "web" {
		t.Errorf("got %v, %v; want u1 and u2", got, err)
	}
}

func TestNetworkProblem(t *testing.T) {
	is := func(ok bool) *runtimeapi.StatusResponse {
		return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: false, Reason: "Rests"}, {
				Type:    runtimeapi.NetworkReady,
				Status:  ok,
				Reason:  "NoPlugin",
				Message: "none found",
			},
		}}}
	}
	want := "container runtime network not ready: NetworkReady=false reason:NoPlugin message:none found"
	if got := NetworkProblem(is(false)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := NetworkProblem(is(true)); got != "" {
		t.Errorf("a network that is ready: %q", got)
	}
}
