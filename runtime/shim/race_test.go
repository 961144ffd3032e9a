// SPDX-License-Identifier: Apache-2.0

package shim_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"keelson/runtime/shim"
)

// raceRounds returns the number of rounds of TestExecAgainstTheEnd; KEELSON_TEST_EXEC_ROUNDS overrides it.
func raceRounds(t *testing.T) int {
	if v := os.Getenv("KEELSON_TEST_EXEC_ROUNDS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("KEELSON_TEST_EXEC_ROUNDS: %v", err)
		}
		return n
	}
	return 12
}

// endLimit is the maximum time until a killed container is gone, on a busy machine.
const endLimit = 20 * time.Second

// TestExecAgainstTheEnd: a container that ends while execs start in it leaves no process behind, not even a zombie: a
// zombie in its PID namespace would prevent the end of the container's first process.
func TestExecAgainstTheEnd(t *testing.T) {
	node := newNode(t)
	supervisor := supervisorPID(node)
	ways := []struct {
		name, command string
		end           func(id string) error
	}{
		{"kill", "while :; do sleep 1000; done", func(id string) error {
			return node.c.Kill(t.Context(), id, shim.Kill{Signal: int(unix.SIGKILL)})
		}},
		{"stop", "trap 'exit 3' TERM; while :; do sleep 0.02; done", func(id string) error {
			return node.c.Kill(t.Context(), id, shim.Kill{Signal: int(unix.SIGTERM)})
		}},
		{"oom", "trap 'tail /dev/zero; exit 9' USR1; while :; do sleep 0.02; done", func(id string) error {
			return node.c.Kill(t.Context(), id, shim.Kill{Signal: int(unix.SIGUSR1)})
		}},
		{"delete", "while :; do sleep 1000; done", func(string) error { return nil }},
	}
	for i := range raceRounds(t) {
		way := ways[i%len(ways)]
		id := fmt.Sprintf("%s-%d", way.name, i)
		node.run(id, way.command, func(r *shim.Run) {
			r.Spec.Linux.CgroupsPath = fmt.Sprintf("%s/r%d", node.cgroup, i)
			if way.name == "oom" {
				limit := int64(48 << 20)
				r.Spec.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &limit, Swap: &limit}
			}
		})
		execAlong(node, id, func() {
			// so that the end coincides with every stage of an exec
			time.Sleep(time.Duration(i%17) * 2 * time.Millisecond)
			if err := way.end(id); err != nil {
				t.Errorf("%s: %v", id, err)
			}
			began := time.Now()
			if err := deleteWithin(node, id, way.name == "oom"); err != nil {
				t.Fatalf("%s: not gone after %s: %v; children of the supervisor: %q", id, time.Since(began), err,
					describe(childrenOf(t, supervisor)))
			}
		})
		_ = os.RemoveAll(filepath.Join(node.dir, "rootfs-"+strconv.Itoa(node.seq)))
	}
	// The last sweep is a signal away.
	end := time.Now().Add(endLimit)
	for len(childrenOf(t, supervisor)) > 0 && time.Now().Before(end) {
		time.Sleep(10 * time.Millisecond)
	}
	if left := childrenOf(t, supervisor); len(left) > 0 {
		t.Errorf("children of the supervisor are left: %q", describe(left))
	}
}

// restlessEnv makes the test binary a program that executes itself over and over, from a thread that is not its first.
const restlessEnv = "KEELSON_TEST_RESTLESS"

// restless has many threads, so that each execve takes long: the kernel ends the other threads first.
func restless() {
	goruntime.LockOSThread() // the first thread, which TestMain runs on
	for range 30 {
		go func() { // ends with the program
			goruntime.LockOSThread()
			select {}
		}()
	}
	go func() { // ends with the program
		goruntime.LockOSThread()
		time.Sleep(time.Millisecond)
		panic(syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
	}()
	select {}
}

// TestExecDuringExecve: an exec into a container succeeds at any time, even while its first process executes execve
// again and again.
func TestExecDuringExecve(t *testing.T) {
	node := newNode(t)
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	node.run("restless", "", func(r *shim.Run) {
		if err := os.WriteFile(filepath.Join(r.Spec.Root.Path, "restless"), self, 0o755); err != nil { // a program
			t.Fatal(err)
		}
		r.Spec.Process.Args = []string{"/restless"}
		r.Spec.Process.Env = append(r.Spec.Process.Env, restlessEnv+"=1")
	})
	p := node.spec("").Process
	p.Args = []string{"/bin/true"}
	for i := range 50 {
		x, err := node.c.Exec(t.Context(), "restless", shim.Exec{Process: p})
		if err != nil {
			t.Fatalf("exec %d: %v", i, err)
		}
		if code, err := x.Wait(t.Context()); err != nil || code != 0 {
			t.Fatalf("exec %d: got exit %v, %v", i, code, err)
		}
		_ = x.Close() // nothing was written
	}
}

// execAlong runs execs in the container continuously while f runs, and afterwards until they are refused.
func execAlong(n *node, id string, f func()) {
	var wg sync.WaitGroup
	stop := make(chan struct{})
	process := n.spec("").Process
	process.Args = []string{"/bin/true"}
	for range 16 { // waitid reports one ended child only: many of them hide each other (see package reaper)
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
				if err != nil {
					n.t.Error(err)
					return
				}
				x, err := n.c.Exec(n.t.Context(), id, shim.Exec{
					Process: process,
					Stdin:   true,
					Stdout:  true,
					Stderr:  true,
				}, null, null, null)
				_ = null.Close()
				if err == nil {
					_, _ = x.Wait(n.t.Context()) // how it ended depends on the race
					_ = x.Close()
				}
				if errors.Is(err, shim.ErrNotRunning) || errors.Is(err, shim.ErrNotFound) {
					return
				}
			}
		})
	}
	defer wg.Wait()
	defer close(stop)
	f()
}

// deleteWithin deletes the container within endLimit. With wait it first waits for the container to end by itself.
func deleteWithin(n *node, id string, wait bool) error {
	// The signal may have come before the trap was set.
	for end := time.Now().Add(3 * time.Second); wait && time.Now().Before(end); {
		if st, err := n.c.State(n.t.Context(), id); err != nil || !st.Running() {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	done := make(chan error, 1)
	go func() { done <- n.c.Delete(n.t.Context(), id) }() // ends with the test
	select {
	case err := <-done:
		return err
	case <-time.After(endLimit):
		return errors.New("delete did not return")
	}
}

// describe returns the processes as ps shows them.
func describe(pids []string) []string {
	var out []string
	for _, p := range pids {
		raw, _ := os.ReadFile("/proc/" + p + "/stat") // it may have ended meanwhile
		out = append(out, strings.Join(strings.Fields(string(raw))[:min(3, len(strings.Fields(string(raw))))], " "))
	}
	return out
}
