// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
	"keelson/lib/waittest"
	"keelson/runtime/shim"
)

// spoil overwrites files as a bad disk would.
func spoil(t *testing.T, paths ...string) {
	t.Helper()
	for _, p := range paths {
		if err := os.WriteFile(p, []byte(`{"id":"`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func (n *node) wantAlive(id string) {
	n.t.Helper()
	if st := n.status(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		n.t.Errorf("container: got %v, want it running", st)
	}
	r, err := n.c.Runtime.ExecSync(n.t.Context(), &runtimeapi.ExecSyncRequest{
		ContainerId: id,
		Cmd:         []string{"/hello", "echo", "alive"},
	})
	if err != nil || string(r.GetStdout()) != "alive\n" {
		n.t.Errorf("exec: got %v, %v", r, err)
	}
}

// TestDamagedRecordsCostNothing: what runs goes on, is shown as before, and the damage is said and kept.
func TestDamagedRecordsCostNothing(t *testing.T) {
	n := newNode(t)
	pod, id := n.run("lives")
	other, gone := n.run("doomed")
	before := n.status(id)
	pid := firstProcess(t, n, id)
	n.stop()
	record := filepath.Join(n.cfg.Dir, "containers", id, "container.json")
	spoil(t, record, filepath.Join(n.cfg.Dir, "sandboxes", pod, "sandbox.json"))
	lost := filepath.Join(n.cfg.Dir, "containers", gone, "container.json")
	spoil(t, lost, lost+".copy")
	for range 2 { // the second start finds nothing wrong any more
		n.start()
		n.wantAlive(id)
		after := n.status(id)
		if after.GetStartedAt() != before.GetStartedAt() || after.GetMetadata().GetName() != "c" ||
			after.GetImageRef() != before.GetImageRef() || firstProcess(t, n, id) != pid {
			t.Errorf("status: got %v, want %v", after, before)
		}
		boxes, err := n.c.Runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		if err != nil || len(boxes.GetItems()) != 2 {
			t.Fatalf("pod sandboxes: got %v, %v", boxes, err)
		}
		for _, b := range boxes.GetItems() {
			if b.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY || b.GetId() != pod && b.GetId() != other {
				t.Errorf("pod sandbox: got %v, want both ready", b)
			}
		}
		// Nobody can say what this one was, so nobody could ever ask for its end.
		if _, err := n.c.Runtime.ContainerStatus(t.Context(),
			&runtimeapi.ContainerStatusRequest{ContainerId: gone}); err == nil {
			t.Error("the container with two damaged records is still listed")
		}
		n.stop()
	}
	if kept, err := os.ReadDir(filepath.Join(n.cfg.Dir, "damaged")); err != nil || len(kept) != 4 {
		t.Errorf("kept for inspection: got %v, %v, want 4 files", kept, err)
	}
	for _, want := range []string{"damaged record restored from its copy", "damaged record has no good copy"} {
		if got := strings.Count(n.logs.String(), want); got != 2 {
			t.Errorf("log: %q %d times, want 2", want, got)
		}
	}
	n.start()
}

// TestSupervisorsDamagedStateCostsNothing, when it is killed and another takes over.
func TestSupervisorsDamagedStateCostsNothing(t *testing.T) {
	n := newNode(t)
	_, id := n.run("lives")
	c := shim.New(filepath.Join(n.cfg.Dir, "shim"))
	killed, err := c.SupervisorPID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pid := firstProcess(t, n, id)
	spoil(t, filepath.Join(n.cfg.Dir, "shim", shim.ContainersDir, id, shim.StateName))
	if err := unix.Kill(killed, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "another supervisor knows the container", func() bool {
		st, err := c.State(t.Context(), id)
		return err == nil && st.PID == pid && st.Running()
	})
	n.wantAlive(id)
}

// TestRemoveTakesTheCgroupOfAnInterruptedStart: a supervisor that is killed in the middle leaves one that nobody knows.
func TestRemoveTakesTheCgroupOfAnInterruptedStart(t *testing.T) {
	n := newNode(t)
	_, id := n.run("interrupted")
	ctx := t.Context()
	if _, err := n.c.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	facts, err := linux.Detect()
	if err != nil {
		t.Fatal(err)
	}
	dirs, err := linux.CgroupDirs(facts.Cgroups, "/keelson-"+n.cfg.ID+"/"+id)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		waittest.Until(t, "the supervisor has removed its cgroup "+d, func() bool {
			_, err := os.Stat(d)
			return os.IsNotExist(err)
		})
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.c.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if _, err := os.Stat(d); !os.IsNotExist(err) {
			t.Errorf("%s is left (%v)", d, err)
		}
	}
}
