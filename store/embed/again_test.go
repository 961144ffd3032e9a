// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"keelson/store"
)

// TestCompactionAgainAfterAnError: a compaction is confirmed when its mark is on disk, also when an earlier try was
// refused because the disk was broken.
func TestCompactionAgainAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		mem := vfs.NewCrashableMem()
		var broken atomic.Bool
		st, err := Open(Options{
			Dir:        "data",
			HistoryAge: time.Hour,
			FS: errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind == errorfs.OpFileWrite && broken.Load() {
					return syscall.EIO
				}
				return nil
			})),
		})
		if err != nil {
			t.Fatal(err)
		}
		var rev int64
		for i := range 5 {
			w, err := st.Create(ctx, fmt.Sprintf("/k%d", i), []byte("x"))
			if err != nil {
				t.Fatal(err)
			}
			rev = w.Revision
		}
		broken.Store(true)
		if _, fault := errors.AsType[*store.UnavailableError](second(st.Create(ctx, "/held", nil))); !fault {
			t.Error("a write that could not be written was confirmed")
		}
		if _, fault := errors.AsType[*store.UnavailableError](st.Compact(ctx, rev)); !fault {
			t.Error("a compaction whose mark could not be written was confirmed")
		}
		broken.Store(false)
		for end := time.Now().Add(time.Minute); st.Health(ctx) != nil && time.Now().Before(end); {
			time.Sleep(time.Second) // of the bubble's time
		}
		if err := st.Compact(ctx, rev); err != nil {
			t.Fatal(err)
		}
		left := mem.CrashClone(vfs.CrashCloneCfg{})
		if err := st.Close(); err != nil {
			t.Error(err)
		}
		again, err := Open(Options{Dir: "data", FS: left})
		if err != nil {
			t.Fatal(err)
		}
		if got := again.compacted.Load(); got != rev {
			t.Errorf("after power loss history begins at %d, want %d as confirmed", got, rev)
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	})
}

func second[A, B any](_ A, b B) B { return b }
