// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"keelson/lib/waittest"
	"keelson/runtime/image/imagetest"
	"keelson/runtime/image/manifest"
	"keelson/runtime/image/registry"
)

const helperEnv = "KEELSON_TEST_IMAGE_HELPER"

// TestMain also is the helper process of the tests.
func TestMain(m *testing.M) {
	if path := os.Getenv(lockEnv); path != "" {
		holdStopped(path)
	}
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

// TestPullByHelper: an image that a helper pulled is in the store, its errors are those of a pull without one, and it
// ends when it is idle.
func TestPullByHelper(t *testing.T) {
	host := imagetest.NewRegistry(t)
	img := imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "1")), bigLayer(t, 300_000))
	imagetest.Push(t, host+"/app:1", img)
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
	if err != nil || got.ID != imagetest.IDOf(t, img) || len(got.Layers) != 2 {
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
		host + "/app:2":        manifest.ErrNotFound,
		"127.0.0.1:1/app:1":    manifest.ErrUnavailable,
		"UPPER/case":           manifest.ErrReference,
		host + "/none:1":       manifest.ErrNotFound,
		"127.0.0.1:1/app:oops": registry.ErrUnreachable,
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
	host := imagetest.NewRegistry(t)
	imagetest.Push(t, host+"/bomb:1", imagetest.NewImage(t, imagetest.WideFrame(imagetest.LayerTar(t, imagetest.File("bomb", "1")))))
	imagetest.Push(t, host+"/good:1", imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "1"))))
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
			host := imagetest.Front(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/slow/manifests/") {
					begun <- struct{}{}
					<-r.Context().Done()
					ended <- struct{}{}
					return
				}
				next.ServeHTTP(w, r)
			})
			imagetest.Push(t, host+"/good:1", imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "1"))))
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

// TestHelperDoesNotStart: a pull for which no helper can be started is not the image's fault, and its error says why.
func TestHelperDoesNotStart(t *testing.T) {
	host := imagetest.NewRegistry(t)
	imagetest.Push(t, host+"/good:1", imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "1"))))
	for name, c := range map[string]struct {
		command []string
		why     string
	}{
		"no program":  {[]string{"/nonexistent/keelson"}, "no such file or directory"},
		"no threads":  {[]string{"/bin/sh", "-c", "echo out of threads >&2; exit 2"}, "exit status 2: out of threads"},
		"killed":      {[]string{"/bin/sh", "-c", "kill -9 $$"}, "signal: killed"},
		"ends itself": {[]string{"/bin/sh", "-c", "exit 0"}, "the runtime stops"},
	} {
		t.Run(name, func(t *testing.T) {
			store := helped(t, helperMemory)
			store.helpers.command = c.command
			_, err := store.Pull(t.Context(), Request{Ref: host + "/good:1"})
			if !errors.Is(err, ErrNoHelper) || errors.Is(err, ErrHelper) || !strings.Contains(err.Error(), c.why) ||
				strings.Contains(err.Error(), "MiB") {
				t.Errorf("got %v, want %v: %s", err, ErrNoHelper, c.why)
			}
			store.helpers.command = []string{"/proc/self/exe"}
			if _, err := store.Pull(t.Context(), Request{Ref: host + "/good:1"}); err != nil {
				t.Errorf("the next pull: %v", err)
			}
		})
	}
}

// TestPullGoesToAnotherHelper: a pull handed to a helper that ends before it takes it begins again in another one. One
// that was taken fails, since the image may be the cause.
func TestPullGoesToAnotherHelper(t *testing.T) {
	host, stalled, _ := stalling(t)
	imagetest.Push(t, host+"/good:1", imagetest.NewImage(t, imagetest.LayerTar(t, imagetest.File("a", "1"))))
	imagetest.Push(t, host+"/slow:1", imagetest.NewImage(t, bigLayer(t, 300_000)))
	store := helped(t, helperMemory)
	pull := func(name string) chan error {
		done := make(chan error, 1)
		go func() { // ends with the helper
			_, err := store.Pull(t.Context(), Request{Ref: host + name})
			done <- err
		}()
		return done
	}
	if err := <-pull("/good:1"); err != nil {
		t.Fatal(err)
	}
	pid := store.pids()[""]
	store.suspend(t, pid)
	lost := pull("/good:1")
	waittest.Until(t, "the pull is handed over", func() bool {
		store.helpers.mu.Lock()
		defer store.helpers.mu.Unlock()
		return len(store.helpers.byTenant[""].calls) == 1
	})
	kill(t, pid)
	if err := <-lost; err != nil {
		t.Errorf("a pull that its helper did not take: %v", err)
	}
	taken := pull("/slow:1")
	<-stalled
	kill(t, store.pids()[""])
	if err := <-taken; !errors.Is(err, ErrHelper) || errors.Is(err, ErrNoHelper) {
		t.Errorf("a pull that its helper took: got %v, want %v", err, ErrHelper)
	}
	store.Close()
	if left, err := os.ReadDir(store.path("tmp")); err != nil || len(left) > 0 {
		t.Errorf("left by the helper: %v, %v", left, err)
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestCloseWaitsForCleanUp: after Close nothing is left of pulls that no caller waits for any more, nor of those that
// a caller waits for: no file, no descriptor, no process.
func TestCloseWaitsForCleanUp(t *testing.T) {
	for name, open := range map[string]func(*testing.T) *Store{
		"in this process": func(t *testing.T) *Store { return newStore(t) },
		"by a helper":     func(t *testing.T) *Store { return helped(t, helperMemory) },
	} {
		t.Run(name, func(t *testing.T) {
			host, stalled, _ := stalling(t)
			imagetest.Push(t, host+"/slow:1", imagetest.NewImage(t, manyFiles(t, 10_000)))
			imagetest.Push(t, host+"/slow:2", imagetest.NewImage(t, bigLayer(t, 300_000)))
			store := open(t)
			before := descriptors(t)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 2)
			pull := func(ctx context.Context, ref string) { // ends with its context, or the store
				_, err := store.Pull(ctx, Request{Ref: host + ref})
				ended <- err
			}
			go pull(ctx, "/slow:1")
			<-stalled
			go pull(t.Context(), "/slow:2")
			<-stalled
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled: got %v", err)
			}
			store.Close()
			if left := left(t, store); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("the other: got %v", err)
			}
			for _, now := range descriptors(t) {
				if strings.HasPrefix(now, store.dir) || strings.HasPrefix(now, "pipe:") && !slices.Contains(before, now) {
					t.Errorf("descriptor of %s is open", now)
				}
			}
		})
	}
}

// manyFiles is a layer of files that do not compress to little, so that the removal of half of them takes a while.
func manyFiles(t *testing.T, n int) []byte {
	t.Helper()
	x := uint32(1)
	var entries []imagetest.Entry
	for range n {
		x = x*1664525 + 1013904223
		entries = append(entries, imagetest.File(fmt.Sprint("f", x), fmt.Sprint(x*x, x>>3)))
	}
	return imagetest.LayerTar(t, entries...)
}

// descriptors lists what this process has open.
func descriptors(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			out = append(out, to)
		}
	}
	return out
}
