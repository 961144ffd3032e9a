// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"keelson/store"
)

var errInjected = errors.New("injected disk error")

// isSync reports whether an operation must not be repeated.
func isSync(k errorfs.OpKind) bool {
	return k == errorfs.OpFileSync || k == errorfs.OpFileSyncData || k == errorfs.OpFileSyncTo
}

// onFiles wraps mem: fail is asked before each operation that changes one of the files named by what.
func onFiles(mem *vfs.MemFS, what string, fail func(errorfs.Op) error) vfs.FS {
	return errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsRead || op.Kind == errorfs.OpFileClose || op.Kind == errorfs.OpLock {
			return nil
		}
		base := filepath.Base(op.Path)
		if what == "everything" ||
			what == "wal" && strings.HasSuffix(base, ".log") ||
			what == "tables" && strings.HasSuffix(base, ".sst") ||
			what == "manifest" && strings.HasPrefix(base, "MANIFEST") {
			return fail(op)
		}
		return nil
	}))
}

var files = []string{"everything", "wal", "tables", "manifest"}

// TestDiskFails fails every operation that changes files from the n-th on, for good: the store must stop confirming
// writes, keep reading, close at once, free the directory, and lose nothing that it confirmed.
func TestDiskFails(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, what := range files {
		for n := int64(0); n < 400; n = n*4/3 + 1 {
			diskFails(t, what, n)
		}
	}
	goroutinesEnd(t, before)
}

func diskFails(t *testing.T, what string, n int64) {
	mem := vfs.NewCrashableMem()
	var count atomic.Int64
	fs := onFiles(mem, what, func(errorfs.Op) error {
		if count.Add(1) > n {
			return errInjected
		}
		return nil
	})
	st, err := Open(Options{Dir: "data", FS: fs})
	if err != nil {
		if !errors.Is(err, errInjected) {
			t.Errorf("%s %d: Open: %v, want the injected error", what, n, err)
		}
		verify(t, fmt.Sprintf("%s %d: after a failed Open", what, n), mem, nil)
		return
	}
	l := &load{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = l.run(ctx, st, 40, 8000)
	writes := l.confirmed()
	var fault *store.UnavailableError
	if health := st.Health(ctx); health != nil {
		if !errors.As(health, &fault) || !errors.Is(health, errInjected) {
			t.Errorf("%s %d: Health: %v, want an UnavailableError with the injected one", what, n, health)
		}
		if _, err := st.Create(ctx, "/more", nil); !errors.As(err, &fault) {
			t.Errorf("%s %d: Create on a failing store: %v, want an UnavailableError", what, n, err)
		}
	}
	if err != nil && !errors.As(err, &fault) {
		t.Errorf("%s %d: a write failed with %v, want an UnavailableError", what, n, err)
	}
	for _, w := range writes[max(0, len(writes)-4):] {
		if w.rev < st.compacted.Load() {
			continue
		}
		if kv, _, err := st.Get(ctx, w.key, w.rev); err != nil || string(kv.Value) != w.value {
			t.Errorf("%s %d: Get(%s, %d) after the disk error: %v", what, n, w.key, w.rev, err)
		}
	}
	clone := mem.CrashClone(vfs.CrashCloneCfg{})
	if err := st.Close(); err != nil && !errors.As(err, &fault) {
		t.Errorf("%s %d: Close: %v", what, n, err)
	}
	verify(t, fmt.Sprintf("%s %d: after power loss", what, n), clone, writes)
	// while the old engine may still be winding down
	verify(t, fmt.Sprintf("%s %d: opened again", what, n), mem, writes)
}

// TestDiskRecovers fails some operations in a row, none of them a sync, and then lets them be: nothing may be lost,
// every writer comes through by trying again, and a watch learns of everything once and in order.
func TestDiskRecovers(t *testing.T) {
	for _, what := range files {
		for n := int64(5); n < 400; n = n*5/3 + 1 {
			for _, failures := range []int64{1, 7} {
				synctest.Test(t, func(t *testing.T) { diskRecovers(t, what, n, failures) })
			}
		}
	}
}

func diskRecovers(t *testing.T, what string, n, failures int64) {
	name := fmt.Sprintf("%s %d+%d", what, n, failures)
	mem := vfs.NewCrashableMem()
	var count atomic.Int64
	var on atomic.Bool
	st, err := Open(Options{
		Dir: "data",
		FS: onFiles(mem, what, func(op errorfs.Op) error {
			if isSync(op.Kind) || op.Kind == errorfs.OpFilePreallocate || !on.Load() {
				return nil
			}
			if c := count.Add(1); c > n && c <= n+failures {
				return syscall.ENOSPC
			}
			return nil
		}),
	})
	if err != nil {
		t.Fatalf("%s: Open: %v", name, err)
	}
	on.Store(true)
	ctx := t.Context()
	start := st.durable.Load()
	watcher, err := st.Watch(ctx, "/", start)
	if err != nil {
		t.Fatal(err)
	}
	var refusals atomic.Int64
	l := &load{refused: func(err error) bool {
		var fault *store.UnavailableError
		if !errors.As(err, &fault) || !fault.Full || fault.Lasting || !strings.Contains(err.Error(), "disk is full") {
			return false
		}
		refusals.Add(1)
		time.Sleep(100 * time.Millisecond) // of the bubble's time
		return true
	}}
	if err := l.run(ctx, st, 40, 8000); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	synctest.Wait()
	for until := time.Now().Add(time.Minute); st.Health(ctx) != nil && time.Now().Before(until); {
		time.Sleep(time.Second)
	}
	if err := st.Health(ctx); err != nil {
		t.Errorf("%s: Health at the end: %v", name, err)
	}
	latest := st.durable.Load()
	next := start + 1
	for next <= latest {
		for _, e := range <-watcher.Events() {
			if e.KV.Revision != next {
				t.Fatalf("%s: watch: got revision %d, want %d", name, e.KV.Revision, next)
			}
			next++
		}
	}
	watcher.Stop()
	if got := len(l.confirmed()); got != 160 || latest != start+160 {
		t.Errorf("%s: %d writes were confirmed and the store went from %d to %d, want 160 of each", name, got, start,
			latest)
	}
	if c := count.Load(); what == "wal" && c > n && refusals.Load() == 0 {
		t.Errorf("%s: the disk failed, no write was refused", name)
	}
	clone := mem.CrashClone(vfs.CrashCloneCfg{})
	// how many operations it takes to come here depends on the schedule; TestDiskFails is about failures in Close
	on.Store(false)
	if err := st.Close(); err != nil {
		t.Errorf("%s: Close: %v", name, err)
	}
	verify(t, name, clone, l.confirmed())
}

// TestSyncFailsOnce: after a failed sync a later one may claim success for what the kernel has dropped.
func TestSyncFailsOnce(t *testing.T) {
	mem := vfs.NewCrashableMem()
	var once atomic.Bool
	st, err := Open(Options{
		Dir: "data",
		FS: onFiles(mem, "wal", func(op errorfs.Op) error {
			if isSync(op.Kind) && once.CompareAndSwap(true, false) {
				return syscall.EIO
			}
			return nil
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	written, err := st.Create(ctx, "/a", []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	once.Store(true)
	_, err = st.Update(ctx, "/a", []byte("2"), written.Revision)
	var fault *store.UnavailableError
	if !errors.As(err, &fault) || !fault.Lasting || !errors.Is(err, syscall.EIO) ||
		!strings.Contains(err.Error(), ".log") {
		t.Errorf("Update whose sync fails: got %v, want a lasting UnavailableError that names the log", err)
	}
	if kv, _, err := st.Get(ctx, "/a", 0); err != nil || string(kv.Value) != "1" {
		t.Errorf("Get: got %s, %v; want what was confirmed", kv.Value, err)
	}
	if _, err := st.Create(ctx, "/b", nil); !errors.As(err, &fault) {
		t.Errorf("Create after the failed sync: got %v", err)
	}
	if err := st.Close(); !errors.Is(err, syscall.EIO) {
		t.Errorf("Close: got %v, want the disk's error", err)
	}
	verify(t, "opened again", mem, []acked{{"/a", "1", written.Revision}})
}

// TestWriterIsNotHeldUp: the disk hangs without an error; a writer must come back when its context ends, and so must
// the one that waits behind it, which then has not happened.
func TestWriterIsNotHeldUp(t *testing.T) {
	mem := vfs.NewCrashableMem()
	var hang atomic.Bool
	hangs := make(chan struct{}, 1)
	release := make(chan struct{})
	st := open(t, Options{
		Dir: "data",
		FS: onFiles(mem, "wal", func(errorfs.Op) error {
			if hang.Load() {
				hangs <- struct{}{}
				<-release
			}
			return nil
		}),
	})
	hang.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	second := make(chan error, 1)
	go func() { // ends with ctx
		_, err := st.Create(ctx, "/first", nil)
		first <- err
	}()
	<-hangs
	go func() { // ends with ctx
		_, err := st.Create(ctx, "/second", nil)
		second <- err
	}()
	cancel()
	for _, c := range []chan error{first, second} {
		if err := <-c; !errors.Is(err, context.Canceled) {
			t.Errorf("Create on a hanging disk: got %v, want the context's error", err)
		}
	}
	hang.Store(false)
	close(release)
	if _, err := st.Create(t.Context(), "/third", nil); err != nil {
		t.Fatal(err)
	}
	page, err := st.List(t.Context(), store.Range{Prefix: "/"})
	if err != nil || len(page.Items) != 2 || page.Items[0].Key != "/first" || page.Items[1].Key != "/third" {
		t.Errorf("List: got %v, %v; want the first and the third", page.Items, err)
	}
}
