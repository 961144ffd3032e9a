// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"keelson/lib/waittest"
)

// TestCompactionDoesNotStallWriters lets syncs of the log through one by one: a write that comes amid a long compaction
// is on disk after the sync under way and its own, not after the compaction.
func TestCompactionDoesNotStallWriters(t *testing.T) {
	var gated atomic.Bool
	arrived := make(chan struct{}, 1000)
	pass := make(chan struct{})
	fs := onFiles(vfs.NewCrashableMem(), "wal", func(op errorfs.Op) error {
		if isSync(op.Kind) && gated.Load() {
			arrived <- struct{}{}
			<-pass
		}
		return nil
	})
	store := open(t, Options{Dir: "data", FS: fs, HistoryAge: time.Hour})
	w, err := store.Create(t.Context(), "/k", nil)
	if err != nil {
		t.Fatal(err)
	}
	const batches = 40
	for i := range batches * compactBatch {
		if w, err = store.Update(t.Context(), "/k", []byte(fmt.Sprint(i)), w.Revision); err != nil {
			t.Fatal(err)
		}
	}
	gated.Store(true)
	compacted := make(chan error, 1)
	written := make(chan error, 1)
	go func() { compacted <- store.Compact(t.Context(), w.Revision) }() // ends when the gate is open
	await := func(what string, c <-chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(time.Minute):
			t.Fatalf("%s: not within a minute", what)
		}
	}
	for range 3 { // some batches in
		await("a sync of the compaction", arrived)
		pass <- struct{}{}
	}
	await("a sync of the compaction", arrived)
	go func() { // ends when the gate is open
		_, err := store.Create(t.Context(), "/new", nil)
		written <- err
	}()
	waittest.Until(t, "the write is in the queue", func() bool {
		store.queue.mu.Lock()
		defer store.queue.mu.Unlock()
		for _, r := range store.queue.in {
			if r.key == "/new" {
				return true
			}
		}
		return false
	})
	syncs := 0
	for done := false; !done; {
		select {
		case pass <- struct{}{}:
			syncs++
		case err := <-written:
			if err != nil {
				t.Fatal(err)
			}
			done = true
		case <-time.After(time.Minute):
			t.Fatal("the write is not done after a minute")
		}
	}
	if len(compacted) > 0 || syncs > batches/4 {
		t.Errorf("the write waited for %d syncs; of the compaction there are %d", syncs, batches)
	}
	gated.Store(false)
	close(pass)
	if err := <-compacted; err != nil {
		t.Error(err)
	}
}
