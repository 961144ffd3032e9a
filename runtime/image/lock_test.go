// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"keelson/runtime/image/imagetest"
)

const lockEnv = "KEELSON_TEST_IMAGE_LOCK"

// holdStopped is a process that is stopped while it holds a lock.
func holdStopped(path string) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = flock(file, unix.LOCK_EX)
	}
	fmt.Println("locked:", err)
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	os.Exit(1)
}

// stoppedHolder starts one for a lock of the store.
func stoppedHolder(t *testing.T, s *Store, name string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), lockEnv+"="+s.path(name))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "locked: <nil>\n" {
		t.Fatalf("the lock's holder: %q, %v", line, err)
	}
	return cmd
}

// impatient waits for locks as short as a test can bear.
func impatient(c *Config) { c.lockPatience = 300 * time.Millisecond }

// TestStoppedStrangerHoldsALock: a caller that waits for a lock gets an error that names the process that holds it, and
// continues when that has ended.
func TestStoppedStrangerHoldsALock(t *testing.T) {
	store := newStore(t, impatient)
	holder := stoppedHolder(t, store, "busy.lock")
	err := store.GC(t.Context())
	if !errors.Is(err, errLocked) || !strings.Contains(err.Error(), fmt.Sprint("process ", holder.Process.Pid, " ")) {
		t.Errorf("got %v, want an error with process %d", err, holder.Process.Pid)
	}
	if err := store.Hold("lease", nil); !errors.Is(err, errLocked) {
		t.Errorf("hold: got %v, want %v", err, errLocked)
	}
	if alive := holder.Process.Signal(syscall.Signal(0)); alive != nil {
		t.Errorf("a process that is no helper was killed: %v", alive)
	}
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = holder.Wait()
	if err := store.GC(t.Context()); err != nil {
		t.Errorf("after its end: %v", err)
	}
}

// TestStoppedHelperHoldsALock: a helper that is stopped with a lock is killed: containers start, and pulls of
// others go on.
func TestStoppedHelperHoldsALock(t *testing.T) {
	host := imagetest.NewRegistry(t)
	imagetest.Push(t, host+"/app:1", imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "1"))))
	for _, name := range []string{"busy.lock", "index.lock"} {
		t.Setenv(helperEnv, "1")
		store := newStore(t, impatient, func(c *Config) { c.Helper = []string{"/proc/self/exe"} })
		t.Cleanup(store.Close)
		register := func() {
			stopped := &helper{cmd: stoppedHolder(t, store, name), calls: map[int64]*call{}}
			store.locks.processes.mu.Lock()
			defer store.locks.processes.mu.Unlock()
			clear(store.locks.processes.running)
			store.locks.processes.running[stopped] = struct{}{}
		}
		register()
		if name == "busy.lock" {
			if err := store.Hold("lease", nil); err != nil {
				t.Errorf("hold layers: %v", err)
			}
			register()
		}
		if _, err := store.Pull(t.Context(), Request{Ref: host + "/app:1", Tenant: "another"}); err != nil {
			t.Errorf("%s: pull of another namespace: %v", name, err)
		}
		store.locks.processes.mu.Lock()
		for h := range store.locks.processes.running {
			if h.stuck.Load() { // it is none of its own, so Close must not wait for it
				delete(store.locks.processes.running, h)
			}
		}
		store.locks.processes.mu.Unlock()
	}
}
