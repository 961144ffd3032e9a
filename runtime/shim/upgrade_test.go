// SPDX-License-Identifier: Apache-2.0

package shim_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"keelson/runtime/shim"
	"keelson/runtime/shim/shimtest"
)

const counter = "i=0; while [ $i -lt 300 ]; do echo $i; i=$((i+1)); sleep 0.005; done; printf unfinished; exit 42"

// waitingCounter returns a command like counter that, before it prints the number before, waits for the signal USR1.
// The test must send the signal only after the first number is in the log: then the trap is set.
func waitingCounter(before int) string {
	return "trap go=1 USR1; " + strings.Replace(counter, "do ",
		fmt.Sprintf(`do while [ $i = %d ] && [ -z "$go" ]; do sleep 0.01; done; `, before), 1)
}

func wantCounted(t *testing.T, n *node, id string) {
	t.Helper()
	var want strings.Builder
	for i := range 300 {
		fmt.Fprintf(&want, "stdout:%d\n", i)
	}
	want.WriteString("stdout:unfinished\n")
	if got := n.log(id); got != want.String() {
		t.Errorf("log of %s: got %q, want every number once", id, got)
	}
}

// TestUpgrade replaces the program again and again while containers print, exit and run execs.
func TestUpgrade(t *testing.T) {
	node := newNode(t)
	node.run("counts", counter, nil)
	node.run("lives", "sleep 100", nil)
	p := node.spec("sleep 1; exit 6").Process
	session, err := node.c.Exec(t.Context(), "lives", shim.Exec{Process: p})
	if err != nil {
		t.Fatal(err)
	}
	before, err := node.c.Hello(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		// Another program: the same with a few bytes at its end.
		body, err := os.ReadFile(shimtest.Shim(t))
		if err != nil {
			t.Fatal(err)
		}
		next := filepath.Join(node.dir, "next")
		if err := os.WriteFile(next, append(body, make([]byte, i+1)...), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := shim.Ensure(t.Context(), node.dir, next, nil); err != nil {
			t.Fatalf("upgrade %d: %v", i, err)
		}
		node.run(fmt.Sprintf("after-%d", i), "exit 1", nil)
	}
	after, err := node.c.Hello(t.Context())
	if err != nil || after.PID != before.PID || after.Binary == before.Binary {
		t.Errorf("after the upgrades: got %+v, %v, before %+v", after, err, before)
	}
	if code, err := session.Wait(t.Context()); err != nil || code != 6 {
		t.Errorf("exec that ran meanwhile: got %d, %v, want 6", code, err)
	}
	if st := node.wait("counts"); st.ExitCode != 42 || st.Lost {
		t.Errorf("counter: got %+v, want code 42", st)
	}
	wantCounted(t, node, "counts")
	if st, err := node.c.State(t.Context(), "lives"); err != nil || !st.Running() {
		t.Errorf("the other container: got %+v, %v", st, err)
	}
}

// TestUpgradeLosesNoCall: every call during an upgrade gets a reply, and is executed exactly once.
func TestUpgradeLosesNoCall(t *testing.T) {
	node := newNode(t)
	node.run("lives", "sleep 1000", nil)
	body, err := os.ReadFile(shimtest.Shim(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var calls [3]atomic.Int64
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	caller := func(k int, call func(i int) error) {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if err := call(i); err != nil {
					t.Errorf("caller %d, call %d: %v", k, i, err)
					return
				}
				calls[k].Add(1)
			}
		})
	}
	caller(0, func(int) error {
		_, err := node.c.State(t.Context(), "lives")
		return err
	})
	caller(1, func(int) error { return node.c.Kill(t.Context(), "lives", shim.Kill{Signal: int(syscall.SIGCONT)}) })
	caller(2, func(i int) error {
		id := fmt.Sprintf("hold-%d", i)
		if _, err := node.c.Hold(t.Context(), id, shim.Hold{Name: "hold"}); err != nil {
			return err
		}
		if _, err := node.c.Hold(t.Context(), id, shim.Hold{Name: "hold"}); !errors.Is(err, shim.ErrExists) {
			return fmt.Errorf("the second of %s: got %w, want exists", id, err)
		}
		return node.c.Delete(t.Context(), id)
	})
	for i := range 10 {
		next := filepath.Join(node.dir, "next")
		if err := os.WriteFile(next, slices.Concat(body, make([]byte, i+1)), 0o755); err != nil {
			t.Fatal(err)
		}
		var at [3]int64
		for k := range calls {
			at[k] = calls[k].Load()
		}
		if _, err := shim.Ensure(t.Context(), node.dir, next, nil); err != nil {
			t.Fatalf("upgrade %d: %v", i, err)
		}
		// every caller has made a call since, so that each upgrade happens during calls of all kinds
		pollUntil(t, func() bool {
			return t.Failed() || calls[0].Load() > at[0] && calls[1].Load() > at[1] && calls[2].Load() > at[2]
		})
	}
}

// TestQuitRefusesWhileContainersRun: also if a container is started at the same time.
func TestQuitRefusesWhileContainersRun(t *testing.T) {
	n := newNode(t)
	n.run("lives", "sleep 1000", nil)
	if err := n.c.Quit(t.Context()); err == nil || !strings.Contains(err.Error(), "container lives is running") {
		t.Errorf("quit: got %v, want a refusal", err)
	}
	if _, err := n.c.State(t.Context(), "lives"); err != nil { // and the gate is open again
		t.Error(err)
	}
}

// wantCountedOnce is wantCounted but allows one gap: output that the killed supervisor had read but not yet written.
func wantCountedOnce(t *testing.T, n *node, id string) {
	t.Helper()
	gaps := 0
	last := -1
	lines := strings.Split(strings.TrimSuffix(n.log(id), "\n"), "\n")
	for _, line := range lines[:len(lines)-1] {
		i, err := strconv.Atoi(strings.TrimPrefix(line, "stdout:"))
		if err != nil || i <= last {
			t.Fatalf("log of %s: line %q after %d, want numbers that rise", id, line, last)
		}
		if i != last+1 {
			gaps++
		}
		last = i
	}
	if end := lines[len(lines)-1]; gaps > 1 || last < 290 || end != "stdout:unfinished" {
		t.Errorf("log of %s: %d gaps, last number %d, end %q; want at most one gap and all the rest", id, gaps, last,
			end)
	}
}

// TestKilledSupervisor: killing the supervisor loses no container, no output except what the supervisor had read but
// not yet written, and on a recent kernel no exit code.
func TestKilledSupervisor(t *testing.T) {
	node := newNode(t)
	node.run("counts", waitingCounter(150), nil) // the next supervisor reads the second half
	h, err := node.c.Hello(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(h.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitGone(t, h.PID)
	if _, err := node.c.Hello(t.Context()); !errors.Is(err, shim.ErrDown) {
		t.Errorf("call without a supervisor: got %v, want down", err)
	}
	if _, err := shim.Ensure(t.Context(), node.dir, shimtest.Shim(t), nil); err != nil {
		t.Fatal(err)
	}
	pollUntil(t, func() bool { return node.log("counts") != "" })
	if err := node.c.Kill(t.Context(), "counts", shim.Kill{Signal: int(syscall.SIGUSR1)}); err != nil {
		t.Fatal(err)
	}
	st := node.wait("counts")
	if st.ExitCode != 42 && (!st.Lost || st.ExitCode != 255) {
		t.Errorf("counter: got %+v, want code 42, or 255 and lost on an old kernel", st)
	}
	wantCountedOnce(t, node, "counts")
}

func TestEnsureRefusesASecond(t *testing.T) {
	n := newNode(t)
	out, err := exec.Command(shimtest.Shim(t), "supervise", n.dir).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another supervisor") {
		t.Errorf("a second supervisor: got %q, %v", out, err)
	}
}

func TestReopen(t *testing.T) {
	node := newNode(t)
	node.run("rotate", waitingCounter(150), nil) // until the log was opened again
	log := filepath.Join(node.dir, "rotate.log")
	pollUntil(t, func() bool {
		fi, err := os.Stat(log)
		return err == nil && fi.Size() > 100
	})
	if err := os.Rename(log, log+".1"); err != nil {
		t.Fatal(err)
	}
	if err := node.c.Reopen(t.Context(), "rotate"); err != nil {
		t.Fatal(err)
	}
	if err := node.c.Kill(t.Context(), "rotate", shim.Kill{Signal: int(syscall.SIGUSR1)}); err != nil {
		t.Fatal(err)
	}
	node.wait("rotate")
	first, err := os.ReadFile(log + ".1")
	if err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, append(first, second...), 0o600); err != nil {
		t.Fatal(err)
	}
	wantCounted(t, node, "rotate")
}

// BenchmarkRun measures the start and end of a container through the Client.
func BenchmarkRun(b *testing.B) {
	node := newNode(b)
	i := 0
	for b.Loop() {
		i++
		id := strconv.Itoa(i)
		b.StopTimer()
		r := shim.Run{Spec: node.spec("sleep 100")}
		b.StartTimer()
		if _, err := node.c.Run(b.Context(), id, r); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := node.c.Delete(b.Context(), id); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkSupervisorMemory reports the supervisor's resident memory with 50 containers.
func BenchmarkSupervisorMemory(b *testing.B) {
	n := newNode(b)
	h, err := n.c.Hello(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for i := range 50 {
		n.run(fmt.Sprintf("m%d", i), "sleep 100", nil)
	}
	for b.Loop() {
		residentKB(b, h.PID)
	}
	b.ReportMetric(float64(residentKB(b, h.PID))/1024, "MB")
}
