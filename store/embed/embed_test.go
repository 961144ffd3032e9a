// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"keelson/store"
	"keelson/store/storetest"
)

func open(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func TestSuiteInMemory(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return open(t, Options{Dir: "data", FS: vfs.NewMem()}) })
}

func TestSuiteOnDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("syncs to disk thousands of times")
	}
	storetest.Run(t, func(t *testing.T) store.Store { return open(t, Options{Dir: t.TempDir()}) })
}

func TestReopen(t *testing.T) {
	fs := vfs.NewMem()
	ctx := t.Context()
	st := open(t, Options{Dir: "data", FS: fs})
	first, err := st.Create(ctx, "/a", []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Update(ctx, "/a", []byte("2"), first.Revision); err != nil {
		t.Fatal(err)
	}
	if err := st.Compact(ctx, first.Revision+1); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	st = open(t, Options{Dir: "data", FS: fs})
	kv, rev, err := st.Get(ctx, "/a", 0)
	if err != nil || string(kv.Value) != "2" || rev != first.Revision+1 {
		t.Errorf("Get after reopening: got %s at %d, %v; want 2 at %d", kv.Value, rev, err, first.Revision+1)
	}
	if _, _, err := st.Get(ctx, "/a", first.Revision); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("Get before the compacted revision after reopening: got %v, want ErrCompacted", err)
	}
	w, err := st.Create(ctx, "/b", nil)
	if err != nil || w.Revision != rev+1 {
		t.Errorf("Create after reopening: got revision %d, %v; want %d", w.Revision, err, rev+1)
	}
}

func TestSecondOpener(t *testing.T) {
	dir := t.TempDir()
	open(t, Options{Dir: dir})
	_, err := Open(Options{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "another process has it open") ||
		!strings.Contains(err.Error(), dir) {
		t.Errorf("second Open: got %v, want a sentence that names the directory and its owner", err)
	}
}

func TestUnknownFormat(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, Options{Dir: "data", FS: fs})
	if err := s.db.Set(keyFormat, putNumber(7), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Options{Dir: "data", FS: fs})
	if err == nil || !strings.Contains(err.Error(), "a newer version of this program wrote it (format 7, ") {
		t.Errorf("Open of a newer format: got %v", err)
	}
}

// TestNewerEngine: a store of a later engine is refused as that, not as damaged, and stays as it is.
func TestNewerEngine(t *testing.T) {
	fs := vfs.NewMem()
	if err := open(t, Options{Dir: "data", FS: fs}).Close(); err != nil {
		t.Fatal(err)
	}
	names, err := fs.List("data")
	if err != nil {
		t.Fatal(err)
	}
	own := fmt.Sprintf(".%03d", pebble.FormatNewest)
	newer := ""
	for _, name := range names {
		base, ok := strings.CutSuffix(name, own)
		if !ok || !strings.HasPrefix(name, "marker.format-version.") {
			continue
		}
		newer = fs.PathJoin("data", base+".999")
		if err := fs.Rename(fs.PathJoin("data", name), newer); err != nil {
			t.Fatal(err)
		}
	}
	_, err = Open(Options{Dir: "data", FS: fs})
	if err == nil || !strings.Contains(err.Error(), "a newer version of this program wrote it (engine format 999, ") {
		t.Errorf("Open: got %v", err)
	}
	for _, path := range []string{newer, fs.PathJoin("data", cleanStopFile)} {
		if _, err := fs.Stat(path); err != nil {
			t.Errorf("after the refusal: %v", err)
		}
	}
}

// TestOlderFormat: what format 1 wrote is read, says nothing of how a key came to be where it does not know, and is
// format 2 from then on.
func TestOlderFormat(t *testing.T) {
	fs := vfs.NewMem()
	st := open(t, Options{Dir: "data", FS: fs})
	a := must(t)(st.Create(t.Context(), "/a", []byte("1")))
	b := must(t)(st.Create(t.Context(), "/b", []byte("1")))
	must(t)(st.Update(t.Context(), "/b", []byte("2"), b))
	err := errors.Join(st.db.Set(keyFormat, putNumber(1), pebble.Sync),
		st.db.Set(putVersionKey(nil, "/b", b+1), []byte("\x022"), pebble.Sync), st.Close())
	if err != nil {
		t.Fatal(err)
	}
	st = open(t, Options{Dir: "data", FS: fs})
	must(t)(st.Update(t.Context(), "/a", []byte("2"), a))
	must(t)(st.Update(t.Context(), "/b", []byte("3"), b+1))
	p, err := st.List(t.Context(), store.Range{})
	want := []store.KV{
		{
			Key:      "/a",
			Value:    []byte("2"),
			Revision: b + 2,
			Created:  a,
			Version:  2,
		}, {Key: "/b", Value: []byte("3"), Revision: b + 3},
	}
	if diff := cmp.Diff(want, p.Items); err != nil || diff != "" {
		t.Errorf("List: %v, %s", err, diff)
	}
	if n, err := readNumber(st.db, keyFormat); err != nil || n != 2 {
		t.Errorf("format after opening: %d, %v; want 2", n, err)
	}
}

// TestImportKeepsFacts: an imported key keeps its revisions.
func TestImportKeepsFacts(t *testing.T) {
	want := []store.KV{
		{
			Key:      "/new",
			Value:    []byte("1"),
			Revision: 9,
			Created:  9,
			Version:  1,
		},
		{
			Key:      "/old",
			Value:    []byte("1"),
			Revision: 8,
			Created:  3,
			Version:  4,
		},
		{Key: "/unknown", Value: []byte("1"), Revision: 7},
	}
	o := Options{Dir: "data", FS: vfs.NewMem()}
	err := Import(t.Context(), o, func(put func(store.KV) error) (int64, error) {
		return 9, errors.Join(put(want[0]), put(want[1]), put(want[2]))
	})
	if err != nil {
		t.Fatal(err)
	}
	p, err := open(t, o).List(t.Context(), store.Range{})
	if diff := cmp.Diff(want, p.Items); err != nil || diff != "" {
		t.Errorf("List: %v, %s", err, diff)
	}
}

func must(t *testing.T) func(store.Written, error) int64 {
	t.Helper()
	return func(w store.Written, err error) int64 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return w.Revision
	}
}

func TestBadKeys(t *testing.T) {
	s := open(t, Options{Dir: "data", FS: vfs.NewMem()})
	for _, key := range []string{"", "/a\x00b"} {
		if _, err := s.Create(t.Context(), key, nil); err == nil {
			t.Errorf("Create(%q): got no error", key)
		}
	}
}

// TestHistoryIsBounded drives the clock by hand: history goes when it is old or large, and only when something is
// written.
func TestHistoryIsBounded(t *testing.T) {
	now := time.Unix(0, 0)
	st := open(t, Options{
		Dir:          "data",
		FS:           vfs.NewMem(),
		HistoryAge:   time.Minute,
		HistoryBytes: 64 << 10,
	})
	st.now = func() time.Time { return now }
	st.compaction.history.samples[0].at = now
	ctx := t.Context()
	written, err := st.Create(ctx, "/k", nil)
	if err != nil {
		t.Fatal(err)
	}
	write := func(n, size int) {
		for range n {
			if written, err = st.Update(ctx, "/k", make([]byte, size), written.Revision); err != nil {
				t.Fatal(err)
			}
		}
		st.background.Wait()
	}
	write(10, 10)
	if got := st.compacted.Load(); got != 0 {
		t.Errorf("compacted to %d while history is young and small", got)
	}
	mark := written.Revision
	now = now.Add(2 * time.Minute)
	write(1, 10)
	if got := st.compacted.Load(); got == 0 || got > mark {
		t.Errorf("compacted to %d after two minutes, want up to %d", got, mark)
	}
	for range 20 {
		write(5, 4<<10)
	}
	oldest := st.compacted.Load()
	if kept := written.Revision - oldest; kept > 40 {
		t.Errorf("kept %d versions of 4 KB, want about 64 KB of them", kept)
	}
	if _, _, err := st.Get(ctx, "/k", oldest); err != nil {
		t.Errorf("Get at the oldest kept revision: %v", err)
	}
	it, err := st.db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for ok := it.First(); ok; ok = it.Next() {
		n++
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	if n > 100 {
		t.Errorf("the database holds %d records, want what the kept history needs", n)
	}
}

func TestRingHandsOutStableSlices(t *testing.T) {
	var r ring
	r.reset(1)
	next := int64(1)
	add := func(n int) {
		var events []store.Event
		for range n {
			events = append(events, store.Event{KV: store.KV{Revision: next, Value: make([]byte, 1000)}})
			next++
		}
		r.add(events)
	}
	add(100)
	got, ok := r.after(10)
	if !ok || len(got) != 90 || got[0].KV.Revision != 11 {
		t.Fatalf("after(10): got %d events, %v", len(got), ok)
	}
	for range 200 {
		add(100)
	}
	if got[0].KV.Revision != 11 || got[89].KV.Revision != 100 {
		t.Error("a slice handed out earlier has changed")
	}
	if _, ok := r.after(10); ok {
		t.Error("after(10): the ring still claims to reach back")
	}
	if r.bytes > ringBytes || len(r.events) > ringEvents {
		t.Errorf("ring holds %d events, %d bytes", len(r.events), r.bytes)
	}
	if got, ok := r.after(next - 1); !ok || len(got) != 0 {
		t.Errorf("after the last: got %d events, %v", len(got), ok)
	}
}

func FuzzLayout(f *testing.F) {
	f.Add("/registry/pods/a/b", int64(7), []byte("x"))
	f.Add("a", int64(1)<<62, putVersionKey(nil, "/registry/x", 9))
	f.Add("/registry/é", int64(0), putLogEntry(nil, logEntry{store.Deleted, 3, "/registry/x"}))
	f.Fuzz(func(t *testing.T, key string, rev int64, raw []byte) {
		_, _, _ = splitVersionKey(raw)
		_, _ = splitLogKey(raw)
		_, _ = splitLogEntry(raw)
		_, _, _ = splitVersion(raw, key, rev)
		if rev < 0 {
			return // no store has such revisions
		}
		kv := store.KV{
			Key:      key,
			Value:    raw,
			Revision: rev,
			Created:  rev / 2,
			Version:  1 + rev/3,
		}
		b := putVersion(nil, store.Updated, kv)
		got, typ, err := splitVersion(b, key, rev)
		if diff := cmp.Diff(kv, got, cmpopts.EquateEmpty()); err != nil || typ != store.Updated || diff != "" ||
			len(b) != sizeOfVersion(typ, kv) {
			t.Errorf("version of %q@%d: %d, %v, length %d: %s", key, rev, typ, err, len(b), diff)
		}
		if checkKey(key) != nil {
			return
		}
		k, r, err := splitVersionKey(putVersionKey(nil, key, rev))
		if err != nil || string(k) != key || r != rev {
			t.Errorf("version key of %q@%d came back as %q@%d, %v", key, rev, k, r, err)
		}
		e, err := splitLogEntry(putLogEntry(nil, logEntry{store.Updated, rev, key}))
		if err != nil || e.key != key || e.previous != rev || e.typ != store.Updated {
			t.Errorf("log entry of %q came back as %+v, %v", key, e, err)
		}
	})
}

func BenchmarkCreate(b *testing.B) {
	for _, writers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			st, err := Open(Options{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = st.Close() }()
			value := make([]byte, 2048)
			work := make(chan int)
			done := make(chan error, writers)
			b.ResetTimer()
			for range writers {
				go func() { // ends when work is closed
					for i := range work {
						if _, err := st.Create(context.Background(), fmt.Sprintf("/registry/pods/default/pod-%d", i),
							value); err != nil {
							done <- err
							return
						}
					}
					done <- nil
				}()
			}
			for i := range b.N {
				work <- i
			}
			close(work)
			for range writers {
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkList5000(b *testing.B) {
	st, err := Open(Options{Dir: "data", FS: vfs.NewMem()})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	for i := range 5000 {
		if _, err := st.Create(b.Context(), fmt.Sprintf("/registry/pods/default/pod-%d", i),
			make([]byte, 2048)); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		p, err := st.List(b.Context(), store.Range{Prefix: "/registry/pods/"})
		if err != nil || len(p.Items) != 5000 {
			b.Fatalf("List: %d items, %v", len(p.Items), err)
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		s, err := Open(Options{Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
