// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"keelson/store"
)

// fillToQuota creates keys of 1 kB until the store refuses one, and returns how many there are.
func fillToQuota(t *testing.T, s *Store) int {
	t.Helper()
	for n := range 10_000 {
		_, err := s.Create(t.Context(), fmt.Sprintf("/a/%05d", n), make([]byte, 1000))
		if errors.Is(err, store.ErrNoSpace) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("10,000 keys were within the quota")
	return 0
}

// TestQuota: above the quota nothing becomes larger but by writes that may use the reserve; what takes no room goes
// on, also after a restart, and with a smaller quota than what is there.
func TestQuota(t *testing.T) {
	var log bytes.Buffer
	opts := Options{Dir: t.TempDir(), Quota: 100_000, Log: slog.New(slog.NewTextHandler(&log, nil))}
	open := func() *Store {
		s, err := Open(opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	st := open()
	n := fillToQuota(t, st)
	if used, quota := st.Usage(); used > quota || quota-used > 1000+keyOverhead+16 || n < 70 {
		t.Errorf("%d keys take %d of %d", n, used, quota)
	}
	if warned, refused := strings.Count(log.String(), "nearly reached its quota"),
		strings.Count(log.String(), "has reached its quota"); warned != 1 || refused != 1 {
		t.Errorf("the log warns %d times and reports refusals %d times, want each once:\n%s", warned, refused,
			log.String())
	}
	works := func(s *Store) {
		t.Helper()
		ctx := t.Context()
		kv, _, err := s.Get(ctx, "/a/00001", 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Update(ctx, "/a/00001", make([]byte, len(kv.Value)+1500), kv.Revision); !errors.Is(err,
			store.ErrNoSpace) {
			t.Errorf("a larger value: %v, want %v", err, store.ErrNoSpace)
		}
		w, err := s.Update(ctx, "/a/00001", bytes.Repeat([]byte{2}, len(kv.Value)), kv.Revision)
		if err != nil {
			t.Errorf("a value of the same size: %v", err)
		}
		if _, err := s.Create(ctx, "/b", make([]byte, 2000)); !errors.Is(err, store.ErrNoSpace) {
			t.Errorf("a new key: %v, want %v", err, store.ErrNoSpace)
		}
		if _, err := s.Create(ctx, "/a/00001", nil); !errors.Is(err, store.ErrExists) {
			t.Errorf("a key that is there: %v, want %v", err, store.ErrExists)
		}
		if _, err = s.Update(store.UseReserve(ctx, store.FullReserve), "/a/00001", make([]byte, 3000), w.Revision); err != nil {
			t.Errorf("a larger value with the reserve: %v", err)
		}
		_, quota := s.Usage()
		if _, err := s.Create(store.UseReserve(ctx, store.SmallReserve), "/b", make([]byte, quota/8)); !errors.Is(err,
			store.ErrNoSpace) {
			t.Errorf("more than the small reserve: %v, want %v", err, store.ErrNoSpace)
		}
		if _, _, err := s.Delete(ctx, "/a/00001", 0); err != nil {
			t.Errorf("a deletion: %v", err)
		}
		if _, err := s.Create(store.UseReserve(ctx, store.FullReserve), "/a/00001", kv.Value); err != nil {
			t.Errorf("a new key with the reserve: %v", err)
		}
	}
	works(st)
	if _, err := st.Create(store.UseReserve(t.Context(), store.SmallReserve), "/small", make([]byte,
		10_000)); err != nil {
		t.Errorf("a new key with the small reserve: %v", err)
	}
	if _, _, err := st.Delete(t.Context(), "/small", 0); err != nil {
		t.Fatal(err)
	}
	before, _ := st.Usage()
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	opts.Quota = 50_000
	st = open()
	if used, _ := st.Usage(); used != before {
		t.Errorf("after a restart %d bytes are used, before %d", used, before)
	}
	works(st)
	for i := range n / 2 {
		if _, _, err := st.Delete(t.Context(), fmt.Sprintf("/a/%05d", i), 0); err != nil {
			t.Fatal(err)
		}
	}
	for i := n / 2; i < n; i += 4 {
		if _, _, err := st.Delete(t.Context(), fmt.Sprintf("/a/%05d", i), 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := st.Create(t.Context(), "/b", make([]byte, 2000)); err != nil {
		t.Errorf("a new key after deletions: %v", err)
	}
	used, quota := st.Usage()
	most := quota - quota/8
	event := make([]byte, most-used-keyOverhead-int64(len("/event")))
	leave := store.UseReserve(t.Context(), store.LeaveRoom)
	if _, err := st.Create(leave, "/event", append(event, 1)); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("a key that leaves less than the last eighth of the quota: %v, want %v", err, store.ErrNoSpace)
	}
	if _, err := st.Create(leave, "/event", event); err != nil {
		t.Errorf("a key that leaves the last eighth of the quota: %v", err)
	}
}

// TestUsageIsCounted: a sum that is absent, or of another revision, is counted again; it is the one that the committer
// kept.
func TestUsageIsCounted(t *testing.T) {
	opts := Options{Dir: t.TempDir()}
	st, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for i := range 300 {
		key := fmt.Sprintf("/k/%d", i%40)
		kv, _, err := st.Get(ctx, key, 0)
		switch {
		case errors.Is(err, store.ErrNotFound):
			_, err = st.Create(ctx, key, make([]byte, i))
		case err == nil && i%7 == 0:
			_, _, err = st.Delete(ctx, key, 0)
		case err == nil:
			_, err = st.Update(ctx, key, make([]byte, i), kv.Revision)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	want, _ := st.Usage()
	for _, change := range []func() error{
		func() error { return nil },
		func() error { return st.db.Delete(keyUsed, nil) },
		func() error { return st.db.Set(keyUsed, putUsage(7, 3), nil) },
		func() error { return st.db.Set(keyUsed, []byte("damaged"), nil) },
	} {
		if err := errors.Join(change(), st.Close()); err != nil {
			t.Fatal(err)
		}
		if st, err = Open(opts); err != nil {
			t.Fatal(err)
		}
		if got, _ := st.Usage(); got != want {
			t.Errorf("counted %d, want %d", got, want)
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}
