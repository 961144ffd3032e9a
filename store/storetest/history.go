// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"keelson/store"
)

// model is a store that is nothing but its log.
type model struct {
	first     int64 // revision before log[0]
	compacted int64
	log       []store.Event
}

func (m *model) revision() int64 { return m.first + int64(len(m.log)) }

// at is the state at revision rev.
func (m *model) at(rev int64) map[string]store.KV {
	state := map[string]store.KV{}
	for _, e := range m.log[:rev-m.first] {
		if e.Type == store.Deleted {
			delete(state, e.KV.Key)
			continue
		}
		state[e.KV.Key] = e.KV
	}
	return state
}

func (m *model) write(typ store.EventType, key, value string, prev store.KV) {
	e := store.Event{Type: typ, KV: kv(key, value, m.revision()+1), Prev: prev.Value}
	switch typ {
	case store.Updated:
		e.KV = again(prev, value, m.revision()+1)
	case store.Deleted:
		e.KV = prev
		e.KV.Revision = m.revision() + 1
	}
	m.log = append(m.log, e)
}

func (m *model) list(rng store.Range) (items []store.KV, remaining int64, err error) {
	switch {
	case rng.Revision == 0:
		rng.Revision = m.revision()
	case rng.Revision > m.revision():
		return nil, 0, store.ErrFuture
	case rng.Revision < m.compacted:
		return nil, 0, store.ErrCompacted
	}
	for _, kv := range m.at(rng.Revision) {
		if strings.HasPrefix(kv.Key, rng.Prefix) && kv.Key >= rng.From {
			items = append(items, kv)
		}
	}
	slices.SortFunc(items, func(a, b store.KV) int { return strings.Compare(a.Key, b.Key) })
	if rng.Limit > 0 && len(items) > rng.Limit {
		remaining = int64(len(items) - rng.Limit)
		items = items[:rng.Limit]
	}
	return items, remaining, nil
}

// testHistory plays seeded random histories against the store and the model.
func testHistory(t *testing.T, s store.Store) {
	seed := uint64(time.Now().UnixNano())
	Play(t, s, seed, 1500)
}

// Play runs one random history of n steps. The seed is printed on failure, so that it can be played again.
func Play(t *testing.T, st store.Store, seed uint64, n int) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("history failed with seed %d", seed)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	rng := rand.New(rand.NewPCG(seed, 0))
	start := revision(t, st)
	m := &model{first: start, compacted: start}
	for i := 0; i < n && !t.Failed(); i++ {
		step(ctx, t, st, m, rng)
	}
	for range 5 {
		checkWatch(ctx, t, st, m, rng)
	}
}

func step(ctx context.Context, t *testing.T, st store.Store, m *model, rng *rand.Rand) {
	key := fmt.Sprintf("/%c/%d", 'a'+rng.IntN(3), rng.IntN(6))
	value := fmt.Sprint(rng.IntN(1000))
	cur, found := m.at(m.revision())[key]
	switch n := rng.IntN(100); {
	case n < 25:
		w, err := st.Create(ctx, key, []byte(value))
		outcome(t, "Create "+key, err, found, store.ErrExists)
		if !found {
			m.write(store.Created, key, value, store.KV{})
			wantRevision(t, m, w)
		}
	case n < 55:
		w, err := st.Update(ctx, key, []byte(value), expected(rng, cur))
		if checkGuarded(t, "Update "+key, err, found, cur) {
			m.write(store.Updated, key, value, cur)
			wantRevision(t, m, w)
		}
	case n < 70:
		old, w, err := st.Delete(ctx, key, expected(rng, cur))
		if checkGuarded(t, "Delete "+key, err, found, cur) {
			wantItems(t, "Delete "+key, []store.KV{old}, cur)
			m.write(store.Deleted, key, "", cur)
			wantRevision(t, m, w)
		}
	case n < 95:
		checkReads(ctx, t, st, m, rng, key)
	case n < 98:
		checkWatch(ctx, t, st, m, rng)
	default:
		rev := m.compacted + rng.Int64N(m.revision()-m.compacted+1)
		if err := st.Compact(ctx, rev); err != nil {
			t.Errorf("Compact(%d): %v", rev, err)
		}
		m.compacted = max(m.compacted, rev)
	}
}

// expected is mostly the right revision, sometimes a wrong one.
func expected(rng *rand.Rand, cur store.KV) int64 {
	if rng.IntN(4) == 0 {
		return cur.Revision + 1
	}
	return max(cur.Revision, 1)
}

func outcome(t *testing.T, what string, err error, refused bool, why error) {
	t.Helper()
	if refused {
		wantErr(t, what, err, why)
	} else if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// checkGuarded reports whether a write with an expected revision went through, after checking that it was right.
func checkGuarded(t *testing.T, what string, err error, found bool, cur store.KV) bool {
	t.Helper()
	var c *store.ConflictError
	switch {
	case !found:
		wantErr(t, what, err, store.ErrNotFound)
	case errors.As(err, &c):
		wantItems(t, what+" conflict", []store.KV{c.Current}, cur)
		if c.Expected == cur.Revision {
			t.Errorf("%s: conflict though %d was expected", what, cur.Revision)
		}
	case err != nil:
		t.Errorf("%s: %v", what, err)
	default:
		return true
	}
	return false
}

func wantRevision(t *testing.T, m *model, w store.Written) {
	t.Helper()
	if w.Revision != m.revision() {
		t.Errorf("write: got revision %d, want %d", w.Revision, m.revision())
	}
}

func checkReads(ctx context.Context, t *testing.T, st store.Store, m *model, rng *rand.Rand, key string) {
	rev := m.first + rng.Int64N(m.revision()-m.first+3)
	if rng.IntN(3) == 0 {
		rev = 0
	}
	r := store.Range{Prefix: []string{"/", "/a/", "/b/", "/c/3"}[rng.IntN(4)], Revision: rev, Limit: rng.IntN(8)}
	if rng.IntN(3) == 0 {
		r.From = key
	}
	want, remaining, wantE := m.list(r)
	got, err := st.List(ctx, r)
	if !errors.Is(err, wantE) {
		t.Errorf("List(%+v): got error %v, want %v", r, err, wantE)
		return
	}
	wantItems(t, fmt.Sprintf("List(%+v)", r), got.Items, want...)
	if got.Remaining != remaining || got.More != (remaining > 0) {
		t.Errorf("List(%+v): got remaining %d, more %v; want %d", r, got.Remaining, got.More, remaining)
	}
	one, at, err := st.Get(ctx, key, rev)
	if wantE != nil {
		wantErr(t, fmt.Sprintf("Get(%s, %d)", key, rev), err, wantE)
		return
	}
	if rev == 0 {
		rev = m.revision()
	}
	wantKV, found := m.at(rev)[key]
	if !found {
		wantErr(t, fmt.Sprintf("Get(%s, %d)", key, rev), err, store.ErrNotFound)
	} else {
		wantItems(t, fmt.Sprintf("Get(%s, %d)", key, rev), []store.KV{one}, wantKV)
	}
	if at != m.revision() {
		t.Errorf("Get(%s, %d): got store revision %d, want %d", key, rev, at, m.revision())
	}
}

func checkWatch(ctx context.Context, t *testing.T, s store.Store, m *model, rng *rand.Rand) {
	prefix := []string{"/", "/a/", "/b/2"}[rng.IntN(3)]
	from := m.compacted + rng.Int64N(m.revision()-m.compacted+1)
	var want []store.Event
	for _, e := range m.log[from-m.first:] {
		if strings.HasPrefix(e.KV.Key, prefix) {
			want = append(want, e)
		}
	}
	w, err := s.Watch(ctx, prefix, from)
	if err != nil {
		t.Errorf("Watch(%s, %d): %v", prefix, from, err)
		return
	}
	defer w.Stop()
	got := take(t, w, len(want))
	if showEvents(got) != showEvents(want) || showWritten(got) != showWritten(want) {
		t.Errorf("Watch(%s, %d): got %s, %s, want %s, %s", prefix, from, showEvents(got), showWritten(got),
			showEvents(want), showWritten(want))
	}
}
