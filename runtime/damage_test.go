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

// TestDamagedRecordsCostNothing: running containers keep running and are listed as before; the damage is logged and
// kept.
func TestDamagedRecordsCostNothing(t *testing.T) {
	node := newNode(t)
	pod, id := node.run("lives")
	other, gone := node.run("doomed")
	before := node.status(id)
	pid := firstProcess(t, node, id)
	node.stop()
	record := filepath.Join(node.cfg.Dir, "containers", id, "container.json")
	spoil(t, record, filepath.Join(node.cfg.Dir, "sandboxes", pod, "sandbox.json"))
	lost := filepath.Join(node.cfg.Dir, "containers", gone, "container.json")
	spoil(t, lost, lost+".copy")
	for range 2 { // the second start finds nothing wrong any more
		node.start()
		node.wantAlive(id)
		after := node.status(id)
		if after.GetStartedAt() != before.GetStartedAt() || after.GetMetadata().GetName() != "c" ||
			after.GetImageRef() != before.GetImageRef() || firstProcess(t, node, id) != pid {
			t.Errorf("status: got %v, want %v", after, before)
		}
		boxes, err := node.c.Runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		if err != nil || len(boxes.GetItems()) != 2 {
			t.Fatalf("pod sandboxes: got %v, %v", boxes, err)
		}
		for _, b := range boxes.GetItems() {
			if b.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY || b.GetId() != pod && b.GetId() != other {
				t.Errorf("pod sandbox: got %v, want both ready", b)
			}
		}
		// No record says what this one was, so no client could ever ask for its end.
		if _, err := node.c.Runtime.ContainerStatus(t.Context(),
			&runtimeapi.ContainerStatusRequest{ContainerId: gone}); err == nil {
			t.Error("the container with two damaged records is still listed")
		}
		node.stop()
	}
	if kept, err := os.ReadDir(filepath.Join(node.cfg.Dir, "damaged")); err != nil || len(kept) != 4 {
		t.Errorf("kept for inspection: got %v, %v, want 4 files", kept, err)
	}
	for _, want := range []string{"damaged record restored from its copy", "damaged record has no good copy"} {
		if got := strings.Count(node.logs.String(), want); got != 2 {
			t.Errorf("log: %q %d times, want 2", want, got)
		}
	}
	node.start()
}

// TestSupervisorsDamagedStateCostsNothing, when it is killed and another takes over.
func TestSupervisorsDamagedStateCostsNothing(t *testing.T) {
	node := newNode(t)
	_, id := node.run("lives")
	client := shim.New(filepath.Join(node.cfg.Dir, "shim"))
	killed, err := client.SupervisorPID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pid := firstProcess(t, node, id)
	spoil(t, filepath.Join(node.cfg.Dir, "shim", shim.ContainersDir, id, shim.StateName))
	if err := unix.Kill(killed, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "another supervisor knows the container", func() bool {
		st, err := client.State(t.Context(), id)
		return err == nil && st.PID == pid && st.Running()
	})
	node.wantAlive(id)
}

// TestRemoveTakesTheCgroupOfAnInterruptedStart: a supervisor that is killed in the middle leaves one without a record.
func TestRemoveTakesTheCgroupOfAnInterruptedStart(t *testing.T) {
	node := newNode(t)
	_, id := node.run("interrupted")
	ctx := t.Context()
	if _, err := node.c.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	facts, err := linux.Detect()
	if err != nil {
		t.Fatal(err)
	}
	dirs, err := linux.CgroupDirs(facts.Cgroups, "/keelson-"+node.cfg.ID+"/"+id)
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
	if _, err := node.c.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if _, err := os.Stat(d); !os.IsNotExist(err) {
			t.Errorf("%s is left (%v)", d, err)
		}
	}
}
