// SPDX-License-Identifier: Apache-2.0

package shim_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"keelson/runtime/shim"
	"keelson/runtime/shim/shimtest"
)

// peekEnv makes the test binary look for a file of the host instead of testing.
const peekEnv = "KEELSON_TEST_PEEK"

// peek searches, in a busy loop, the root and working directories of all processes in its PID namespace for a file that
// only the host has. It prints at most three finds.
func peek(path string) {
	fmt.Println("looking")
	for seen := 0; ; {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, e := range entries {
			if _, err := strconv.Atoi(e.Name()); err != nil {
				continue
			}
			for _, way := range []string{"root", "cwd/../../../../../../../.."} {
				if _, err := os.Stat("/proc/" + e.Name() + "/" + way + path); err == nil && seen < 3 {
					comm, _ := os.ReadFile("/proc/" + e.Name() + "/comm")
					fmt.Printf("found by %s of %s\n", way, comm)
					seen++
				}
			}
		}
	}
}

// TestStartingContainerGivesNothingAway: until its start is complete, the first process of a container still has access
// to the host. Another container in the same PID namespace that may trace processes must not gain that access.
func TestStartingContainerGivesNothingAway(t *testing.T) {
	node := newNode(t)
	victim := filepath.Join(t.TempDir(), "of-the-host")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := node.c.Hold(t.Context(), "holder", shim.Hold{Name: "/pause"})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	share := func(r *shim.Run) { r.Spec.Linux.Namespaces[0].Path = fmt.Sprintf("/proc/%d/ns/pid", st.PID) }
	caps := []string{"CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"}
	node.run("peek", "", func(r *shim.Run) {
		share(r)
		r.Spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
		r.Spec.Mounts = append(r.Spec.Mounts, specs.Mount{
			Destination: "/test",
			Type:        "bind",
			Source:      self,
			Options:     []string{"bind", "ro"},
		})
		r.Spec.Process.Args = []string{"/test"}
		r.Spec.Process.Env = []string{peekEnv + "=" + victim}
	})
	pollUntil(t, func() bool { return strings.Contains(node.log("peek"), "looking") })
	for i := range 20 {
		id := fmt.Sprintf("guest%d", i)
		node.run(id, "sleep 1000", share)
		if _, code := execCode(node, id, "true"); code != 0 {
			t.Errorf("exec: code %d", code)
		}
		if err := node.c.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(50 * time.Millisecond)
	// The container with the tracer is frozen during the start only.
	if _, code := execCode(node, "peek", "true"); code != 0 {
		t.Errorf("exec in the container that may trace: code %d", code)
	}
	if got := node.log("peek"); strings.Contains(got, "found") {
		t.Errorf("it got hold of the host's files:\n%s", got)
	}
}

// TestStartingTracerFindsNoProcessOnTheWay: the same if the container that may trace processes starts while the start
// of the other one is in progress.
func TestStartingTracerFindsNoProcessOnTheWay(t *testing.T) {
	node := newNode(t)
	victim := filepath.Join(t.TempDir(), "of-the-host")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := node.c.Hold(t.Context(), "holder", shim.Hold{Name: "/pause"})
	if err != nil {
		t.Fatal(err)
	}
	share := func(r *shim.Run) { r.Spec.Linux.Namespaces[0].Path = fmt.Sprintf("/proc/%d/ns/pid", st.PID) }
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := make(chan struct{})
	defer close(stop)
	for g := range 3 {
		r := shim.Run{Spec: node.spec("sleep 1000")}
		share(&r)
		wg.Go(func() { // ends with stop
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				id := fmt.Sprintf("guest%d-%d", g, i)
				if _, err := node.c.Run(node.t.Context(), id, r); err != nil {
					t.Errorf("run %s: %v", id, err)
					return
				}
				if err := node.c.Delete(node.t.Context(), id); err != nil {
					t.Errorf("delete %s: %v", id, err)
					return
				}
			}
		})
	}
	caps := []string{"CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"}
	// A shell begins to search sooner after its start than a Go program.
	look := "for i in 1 2 3 4 5 6 7 8; do for p in /proc/[0-9]*; do [ -e $p/root" + victim +
		" ] && echo found by $p; done; done; echo looked; sleep 1000"
	for i := range 40 {
		id := fmt.Sprintf("peek%d", i)
		node.run(id, look, func(r *shim.Run) {
			share(r)
			r.Spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
		})
		pollUntil(t, func() bool { return strings.Contains(node.log(id), "looked") })
		if got := node.log(id); strings.Contains(got, "found") {
			t.Errorf("start %d: it got hold of the host's files:\n%s", i, got)
		}
		if err := node.c.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNextSupervisorThaws: the next supervisor thaws the containers that a killed supervisor left frozen.
func TestNextSupervisorThaws(t *testing.T) {
	node := newNode(t)
	caps := []string{"CAP_SYS_PTRACE"}
	node.run("tracer", "while :; do echo tick; sleep 0.01; done", func(r *shim.Run) {
		r.Spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
	})
	set := func() bool {
		for file, value := range map[string]string{
			"/sys/fs/cgroup/freezer" + node.cgroup + "/c1/freezer.state": "FROZEN",
			"/sys/fs/cgroup" + node.cgroup + "/c1/cgroup.freeze":         "1",
		} {
			if _, err := os.Stat(file); err == nil {
				return os.WriteFile(file, []byte(value), 0) == nil
			}
		}
		return false
	}
	if !set() {
		t.Fatal("the container could not be frozen")
	}
	pid := supervisorPID(node)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitGone(t, pid)
	before := node.log("tracer")
	if _, err := shim.Ensure(t.Context(), node.dir, shimtest.Shim(t), nil); err != nil {
		t.Fatal(err)
	}
	pollUntil(t, func() bool { return len(node.log("tracer")) > len(before)+20*len("stdout:tick\n") })
}
