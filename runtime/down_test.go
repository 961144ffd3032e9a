// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"keelson/lib/linux"
	"keelson/runtime"
	"keelson/runtime/shim"
)

// freeze stops every process of a container where even SIGKILL waits: in a version 1 freezer.
func freeze(t *testing.T, n *node, id string) {
	t.Helper()
	facts, err := linux.Detect()
	if err != nil {
		t.Fatal(err)
	}
	file := "freezer.state"
	value := "FROZEN"
	if facts.Cgroups == linux.CgroupV2 {
		file = "cgroup.freeze"
		value = "1"
	}
	dirs, err := linux.CgroupDirs(facts.Cgroups, "/keelson-"+n.cfg.ID+"/"+id)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if _, err := os.Stat(filepath.Join(d, file)); err == nil {
			if err := os.WriteFile(filepath.Join(d, file), []byte(value), 0); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no %s in %q", file, dirs)
}

// TestDownEndsWhatDoesNotEnd: containers that a signal does not end, and a supervisor that does not answer, hold
// nothing up for long, and are reported. The node's own checks fail if something is left.
func TestDownEndsWhatDoesNotEnd(t *testing.T) {
	for name, hurt := range map[string]func(t *testing.T, n *node, id string){
		"frozen container": freeze,
		"stopped supervisor": func(t *testing.T, n *node, _ string) {
			pid, err := shim.New(filepath.Join(n.cfg.Dir, "shim")).SupervisorPID(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			_, id := n.run("stuck")
			n.run("other")
			n.stop()
			hurt(t, n, id)
			var mu sync.Mutex
			var said []string
			cfg := n.cfg
			cfg.Waiting = func(what string) {
				mu.Lock()
				defer mu.Unlock()
				said = append(said, what)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := runtime.Down(ctx, cfg); err != nil {
				t.Fatalf("down: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			if got := strings.Join(said, "\n"); !strings.Contains(got, "killed because") {
				t.Errorf("what it waited for: got %q, want what was killed and why", got)
			}
			if _, err := shim.New(filepath.Join(n.cfg.Dir, "shim")).Hello(ctx); err == nil {
				t.Error("the supervisor is still there")
			}
		})
	}
}
