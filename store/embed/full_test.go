// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"keelson/lib/waittest"
	"keelson/store"
)

// TestFullDisk fills a real file system: the store must say so, go on reading, and take writes again by itself when
// there is room; nothing confirmed is lost and a watch misses nothing.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: not root, cannot mount a small tmpfs")
	}
	dir := t.TempDir()
	if err := syscall.Mount("keelson-test", dir, "tmpfs", 0, "size=96m"); err != nil {
		t.Skipf("SKIPPED: cannot mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 86<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := Open(Options{Dir: filepath.Join(dir, "store")})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	watcher, err := st.Watch(ctx, "/", st.durable.Load())
	if err != nil {
		t.Fatal(err)
	}
	value := make([]byte, 32<<10)
	for i := range value {
		value[i] = byte(rand.IntN(256)) // does not compress
	}
	var confirmed []string
	var full *store.UnavailableError
	for i := 0; full == nil; i++ {
		key := fmt.Sprintf("/k%04d", i)
		switch _, err := st.Create(ctx, key, value); {
		case err == nil:
			confirmed = append(confirmed, key)
		case !errors.As(err, &full) || !full.Full || full.Lasting || !strings.Contains(err.Error(), "disk is full"):
			t.Fatalf("Create on a full disk: got %v, want an UnavailableError that says so", err)
		}
	}
	t.Logf("%d writes fitted; then: %v", len(confirmed), full)
	if kv, _, err := st.Get(ctx, confirmed[0], 0); err != nil || len(kv.Value) != len(value) {
		t.Errorf("Get on a full disk: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the store is healthy when there is room again", func() bool { return st.Health(ctx) == nil })
	if _, err := st.Create(ctx, "/after", nil); err != nil {
		t.Errorf("Create when there is room again: %v", err)
	}
	next := int64(firstRevision + 1)
	for last := st.durable.Load(); next <= last; {
		for _, e := range <-watcher.Events() {
			if e.KV.Revision != next {
				t.Fatalf("watch: got revision %d, want %d", e.KV.Revision, next)
			}
			next++
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	st = open(t, Options{Dir: filepath.Join(dir, "store")})
	for _, key := range append(confirmed, "/after") {
		if _, _, err := st.Get(ctx, key, 0); err != nil {
			t.Errorf("Get(%s) after opening again: %v", key, err)
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkWriteDuringCompaction measures how long single writes take while 16 writers update and history is forgotten
// all the time, in comparison with no compaction at all.
func BenchmarkWriteDuringCompaction(b *testing.B) {
	for _, c := range []struct {
		name string
		o    Options
	}{
		{"none", Options{HistoryAge: time.Hour, HistoryBytes: 1 << 40}},
		{"steady", Options{HistoryAge: time.Second, HistoryBytes: 1 << 20}},
	} {
		b.Run(c.name, func(b *testing.B) {
			c.o.Dir = b.TempDir()
			st, err := Open(c.o)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = st.Close() }()
			const writers = 16
			var left atomic.Int64
			left.Store(int64(b.N))
			took := make([][]time.Duration, writers)
			var wg sync.WaitGroup
			b.ResetTimer()
			for i := range writers {
				wg.Go(func() {
					key := fmt.Sprintf("/w%d", i)
					rev := int64(0)
					value := make([]byte, 2048)
					for left.Add(-1) >= 0 {
						begin := time.Now()
						var written store.Written
						var err error
						if rev == 0 {
							written, err = st.Create(b.Context(), key, value)
						} else {
							written, err = st.Update(b.Context(), key, value, rev)
						}
						if err != nil {
							b.Error(err)
							return
						}
						rev = written.Revision
						took[i] = append(took[i], time.Since(begin))
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			all := slices.Concat(took...)
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
			b.ReportMetric(float64(all[len(all)-1].Microseconds()), "max-µs")
			b.ReportMetric(float64(st.compacted.Load())/float64(st.durable.Load()), "forgotten")
		})
	}
}
