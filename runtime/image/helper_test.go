// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"keelson/lib/waittest"
)

const helperEnv = "KEELSON_TEST_IMAGE_HELPER"

// TestMain also is the helper process of the tests.
func TestMain(m *testing.M) {
	if os.Getenv(helperEnv) == "" {
		os.Exit(m.Run())
	}
	if err := ServeHelper(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// helped opens a store whose pulls run in helper processes.
func helped(t *testing.T, memory int64) *Store {
	t.Helper()
	t.Setenv(helperEnv, "1")
	s := newStore(t, func(c *Config) { c.Helper = []string{"/proc/self/exe"} })
	t.Cleanup(s.Close)
	s.helpers.setup.Memory = memory
	return s
}

// pids are the processes of the helpers, by tenant.
func (s *Store) pids() map[string]int {
	s.helpers.mu.Lock()
	defer s.helpers.mu.Unlock()
	out := map[string]int{}
	for tenant, h := range s.helpers.byTenant {
		out[tenant] = h.cmd.Process.Pid
	}
	return out
}

func alive(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return err == nil
}

// TestPullByHelper: what a helper pulls is here, its errors are those of a pull without one, and it ends when it is
// idle.
func TestPullByHelper(t *testing.T) {
	host := newRegistry(t)
	img := newImage(t, layerTar(t, file("a", "1")), bigLayer(t, 300_000))
	push(t, host+"/app:1", img)
	store := helped(t, helperMemory)
	var done, total atomic.Int64
	got, err := store.Pull(t.Context(), Request{
		Ref:    host + "/app:1",
		Tenant: "one",
		Progress: func(d, all int64) {
			done.Store(d)
			total.Store(all)
		},
	})
	if err != nil || got.ID != idOf(t, img) || len(got.Layers) != 2 {
		t.Fatalf("got %+v, %v", got, err)
	}
	if have, ok := store.Get(host + "/app:1"); !ok || have.ID != got.ID {
		t.Errorf("the store has %s, %v", have.ID, ok)
	}
	if done.Load() < 300_000 || done.Load() != total.Load() {
		t.Errorf("progress ended with %d of %d bytes", done.Load(), total.Load())
	}
	first := store.pids()["one"]
	for ref, want := range map[string]error{
		host + "/app:2":        ErrNotFound,
		"127.0.0.1:1/app:1":    ErrUnavailable,
		"UPPER/case":           ErrReference,
		host + "/none:1":       ErrNotFound,
		"127.0.0.1:1/app:oops": errUnreachable,
	} {
		if _, err := store.Pull(t.Context(), Request{Ref: ref, Tenant: "one"}); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", ref, err, want)
		}
	}
	if _, err := store.Pull(t.Context(), Request{Ref: host + "/app:1", Tenant: "two"}); err != nil {
		t.Error(err)
	}
	pids := store.pids()
	if len(pids) != 2 || pids["one"] != first || pids["two"] == first {
		t.Errorf("helpers: %v, the first was %d", pids, first)
	}
	store.helpers.idle = 0
	if _, err := store.Pull(t.Context(), Request{Ref: host + "/app:1", Tenant: "one"}); err != nil {
		t.Error(err)
	}
	waittest.Until(t, "the idle helper ends", func() bool { return !alive(first) })
	store.Close()
	if alive(pids["two"]) || len(store.pids()) != 0 {
		t.Errorf("after Close: %v, process %d lives: %v", store.pids(), pids["two"], alive(pids["two"]))
	}
}

// wideFrame packs content (RFC 8878) in a zstd frame of one raw block that asks for the largest window, 128 MiB.
func wideFrame(content []byte) []byte {
	const windowLog27 = 17 << 3
	out := append(bytes.Clone(zstdMagic), 0, windowLog27)
	block := uint32(len(content))<<3 | 1 // the last one, raw
	out = append(out, byte(block), byte(block>>8), byte(block>>16))
	return append(out, content...)
}

// TestHelpersAreBounded: pulls of many namespaces that fail at once leave no more helpers than may run.
func TestHelpersAreBounded(t *testing.T) {
	store := helped(t, helperMemory)
	most := store.helpers.setup.Downloads + maxTenants
	for i := range most + 3 {
		_, err := store.Pull(t.Context(), Request{Ref: "127.0.0.1:1/none:1", Tenant: fmt.Sprint("ns-", i)})
		if err == nil {
			t.Fatal("an image of no registry was pulled")
		}
	}
	if got := len(store.pids()); got != most {
		t.Errorf("%d helpers, want %d", got, most)
	}
}

// TestHelperOutOfMemory: an image that takes more memory than a helper may have ends that helper. Others' pulls go on,
// the next pull gets a new one, and nothing is left in the store.
func TestHelperOutOfMemory(t *testing.T) {
	host := newRegistry(t)
	push(t, host+"/bomb:1", newImage(t, wideFrame(layerTar(t, file("bomb", "1")))))
	push(t, host+"/good:1", newImage(t, layerTar(t, file("a", "1"))))
	store := helped(t, 96<<20)
	good := func(tenant string) {
		t.Helper()
		if _, err := store.Pull(t.Context(), Request{Ref: host + "/good:1", Tenant: tenant}); err != nil {
			t.Errorf("a good image of %q: %v", tenant, err)
		}
	}
	good("other")
	other := store.pids()["other"]
	_, err := store.Pull(t.Context(), Request{Ref: host + "/bomb:1", Tenant: "one"})
	if !errors.Is(err, ErrHelper) || !strings.Contains(err.Error(), "96 MiB") {
		t.Errorf("got %v, want %v", err, ErrHelper)
	}
	good("one")
	good("other")
	if got := store.pids()["other"]; got != other {
		t.Errorf("the other tenant's helper was %d, now it is %d", other, got)
	}
	for _, dir := range []string{"tmp", "trash"} {
		if left, err := os.ReadDir(store.path(dir)); err != nil || len(left) > 0 {
			t.Errorf("left in %s: %v, %v", dir, left, err)
		}
	}
}

// TestHelperCancels: a pull whose last caller leaves ends in the helper, too, and the helper serves the next one. A
// helper that does not end it is killed.
func TestHelperCancels(t *testing.T) {
	for name, stop := range map[string]bool{"it ends the pull": false, "it does not": true} {
		t.Run(name, func(t *testing.T) {
			begun := make(chan struct{}, 1)
			ended := make(chan struct{}, 1)
			host := front(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/slow/manifests/") {
					begun <- struct{}{}
					<-r.Context().Done()
					ended <- struct{}{}
					return
				}
				next.ServeHTTP(w, r)
			})
			push(t, host+"/good:1", newImage(t, layerTar(t, file("a", "1"))))
			store := helped(t, helperMemory)
			ctx, cancel := context.WithCancel(t.Context())
			failed := make(chan error)
			go func() { // ends when ctx is cancelled below
				_, err := store.Pull(ctx, Request{Ref: host + "/slow:1"})
				failed <- err
			}()
			<-begun
			pid := store.pids()[""]
			if stop {
				store.suspend(t, pid)
			}
			begin := time.Now()
			cancel()
			if err := <-failed; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			<-ended
			if took := time.Since(begin); took > 2*helperGrace {
				t.Errorf("the registry saw the end after %v", took)
			}
			if _, err := store.Pull(t.Context(), Request{Ref: host + "/good:1"}); err != nil {
				t.Error(err)
			}
			if got := store.pids()[""]; (got == pid) == stop {
				t.Errorf("the helper was %d, now it is %d", pid, got)
			}
		})
	}
}

// suspend stops a process as a debugger would.
func (s *Store) suspend(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Signal(syscall.SIGSTOP)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestWindowsAreCountedTogether: a zstd stream waits while others have the windows, and gives its own back.
func TestWindowsAreCountedTogether(t *testing.T) {
	all := newWindows()
	first, err := decompress(t.Context(), bytes.NewReader(wideFrame([]byte("x"))), all)
	if err != nil {
		t.Fatal(err)
	}
	if all.TryAcquire(1) {
		t.Error("the largest window leaves room for others")
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if !all.TryAcquire(maxWindow) {
		t.Error("the window was not given back")
	}
}
