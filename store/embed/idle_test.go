// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"keelson/lib/waittest"
)

// TestIdleIsSilent lets an hour pass on a store that has been written to: nothing may touch the disk (P7).
func TestIdleIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var writes atomic.Int64
		fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
				writes.Add(1)
			}
			return nil
		}))
		store, err := Open(Options{Dir: "data", FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		watcher, err := store.Watch(t.Context(), "/", 0)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 300 {
			if _, err := store.Create(t.Context(), fmt.Sprintf("/k%d", i), make([]byte, 4000)); err != nil {
				t.Fatal(err)
			}
		}
		for got := 0; got < 300; {
			got += len(<-watcher.Events())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		before := writes.Load()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := writes.Load() - before; n != 0 {
			t.Errorf("%d operations wrote to the disk in an idle hour", n)
		}
		watcher.Stop()
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCloseReleasesGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 3 {
		s, err := Open(Options{Dir: "data", FS: vfs.NewMem()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Watch(t.Context(), "/", 0); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Create(t.Context(), "/a", nil); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	goroutinesEnd(t, before)
}

// goroutinesEnd waits until no more goroutines are left than before: the engine's last ones end a moment after Close.
func goroutinesEnd(t *testing.T, before int) {
	t.Helper()
	waittest.Right(t, "goroutines end", func() string {
		n := runtime.NumGoroutine()
		if n <= before {
			return ""
		}
		buf := make([]byte, 1<<20)
		return fmt.Sprintf("%d after Close, %d before\n%s", n, before, buf[:runtime.Stack(buf, true)])
	})
}
