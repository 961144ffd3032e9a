// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri/critest"
	"keelson/lib/linux"
	"keelson/lib/waittest"
	"keelson/runtime"
	"keelson/runtime/snapshot"
)

// run starts a pod with one container that lives on, and returns their ids.
func (n *node) run(name string) (pod, container string) {
	n.t.Helper()
	ctx := n.t.Context()
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Uid: "uid-" + name, Namespace: "test"},
		LogDirectory: filepath.Join(n.cfg.Dir, "logs", name),
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/keelson-" + n.cfg.ID},
	}
	response, err := n.c.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		n.t.Fatal(err)
	}
	c, err := n.c.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId:  response.GetPodSandboxId(),
		SandboxConfig: cfg,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c"},
			Image:    &runtimeapi.ImageSpec{Image: critest.HelloImage},
			Command:  []string{"/hello", "sleep", "1000"},
			LogPath:  "c.log",
		},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	if _, err := n.c.Runtime.StartContainer(ctx,
		&runtimeapi.StartContainerRequest{ContainerId: c.GetContainerId()}); err != nil {
		n.t.Fatal(err)
	}
	return response.GetPodSandboxId(), c.GetContainerId()
}

func (n *node) status(id string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	r, err := n.c.Runtime.ContainerStatus(n.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		n.t.Fatal(err)
	}
	return r.GetStatus()
}

// TestStartRemovesWhatACrashLeft and nothing else: running containers keep running.
func TestStartRemovesWhatACrashLeft(t *testing.T) {
	node := newNode(t)
	pod, id := node.run("lives")
	node.stop()

	stray := strings.Repeat("5a", 32)
	// A root file system, ...
	snaps, err := snapshot.Open(snapshot.Config{Dir: filepath.Join(node.cfg.Dir, "snapshots"), Images: node.cfg.Images})
	if err != nil {
		t.Fatal(err)
	}
	img, ok := node.cfg.Images.Get(critest.HelloImage)
	if !ok {
		t.Fatal("no built-in image")
	}
	root, err := snaps.Prepare(t.Context(), stray, img)
	if err != nil {
		t.Fatal(err)
	}
	// ... an address, ...
	if _, err := node.net.Attach(t.Context(), runtime.Pod{ID: stray, Netns: "/proc/self/ns/net"}); err != nil {
		t.Fatal(err)
	}
	// ... a cgroup with a process that escaped, and one without, ...
	facts, err := linux.Detect()
	if err != nil {
		t.Fatal(err)
	}
	escaped := exec.Command("sleep", "1000")
	if err := escaped.Start(); err != nil {
		t.Fatal(err)
	}
	if err := linux.JoinCgroup(facts.Cgroups, "/keelson-"+node.cfg.ID+"/"+stray, escaped.Process.Pid); err != nil {
		t.Fatal(err)
	}
	dirs, err := linux.CgroupDirs(facts.Cgroups, "/keelson-"+node.cfg.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dirs[0], "pod-"+stray), 0o755); err != nil {
		t.Fatal(err)
	}
	// ... a layer that no image has, and half of a pull.
	layer := filepath.Join(node.cfg.Dir, "images", "layers", stray)
	half := filepath.Join(node.cfg.Dir, "images", "tmp", "half")
	for _, d := range []string{layer, half} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}

	node.start()
	_ = escaped.Wait() // killed
	for _, p := range []string{root, filepath.Join(dirs[0], stray), filepath.Join(dirs[0], "pod-"+stray)} {
		if _, err := os.Stat(p); !os.IsNotExist(err) {
			t.Errorf("%s is left (%v)", p, err)
		}
	}
	if got := node.net.Attached(); !slices.Equal(got, []string{pod}) {
		t.Errorf("attached: got %q, want %q", got, pod)
	}
	waittest.Until(t, "the image store is tidy", func() bool {
		_, a := os.Stat(layer)
		_, b := os.Stat(half)
		return os.IsNotExist(a) && os.IsNotExist(b)
	})
	if st := node.status(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the running container: got %v", st)
	}
	r, err := node.c.Runtime.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{
		ContainerId: id,
		Cmd:         []string{"/hello", "echo", "alive"},
	})
	if err != nil || string(r.GetStdout()) != "alive\n" {
		t.Errorf("exec in it: got %v, %v", r, err)
	}
}

// TestStartUnpacksTheBuiltinImage before a client asks for it.
func TestStartUnpacksTheBuiltinImage(t *testing.T) {
	n := newNode(t)
	waittest.Until(t, "the built-in image's layer is there", func() bool {
		layers, err := os.ReadDir(filepath.Join(n.cfg.Dir, "images", "layers"))
		return err == nil && len(layers) == 1
	})
}

// TestStatsOfAPodAreItsOwn though all pods' containers are in one cgroup.
func TestStatsOfAPodAreItsOwn(t *testing.T) {
	n := newNode(t)
	for _, name := range []string{"one", "two", "three"} {
		n.run(name)
	}
	r, err := n.c.Runtime.ListPodSandboxStats(t.Context(), &runtimeapi.ListPodSandboxStatsRequest{})
	if err != nil || len(r.GetStats()) != 3 {
		t.Fatalf("stats: got %v, %v, want three pods", r, err)
	}
	for _, st := range r.GetStats() {
		l := st.GetLinux()
		if len(l.GetContainers()) != 1 {
			t.Fatalf("containers: got %v, want one", l.GetContainers())
		}
		own := l.GetContainers()[0]
		if got, want := l.GetMemory().GetUsageBytes().GetValue(),
			own.GetMemory().GetUsageBytes().GetValue(); got != want || want == 0 {
			t.Errorf("memory of %s: got %d, want its container's %d", st.GetAttributes().GetMetadata().GetName(), got,
				want)
		}
		if got, want := l.GetCpu().GetUsageCoreNanoSeconds().GetValue(),
			own.GetCpu().GetUsageCoreNanoSeconds().GetValue(); got != want || want == 0 {
			t.Errorf("cpu of %s: got %d, want its container's %d", st.GetAttributes().GetMetadata().GetName(), got,
				want)
		}
	}
}
