// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keelson/store"
	"keelson/store/backup"
)

// script is a life of a store in which every write's revision is known before it begins: what a store that was cut off
// at any moment holds must be the state at some point of history.
type script struct {
	steps   []step
	history []store.Event // revision firstRevision+1 and on
}

// step is some writes, handed to the committer together, or one act.
type step struct {
	writes []store.Event // Prev is of no matter; an update or deletion expects the key's latest revision before
	expect []int64
	act    string
	to     int64 // of act "compact"
}

// newScript makes a script of n steps. Each kind of act comes once in a while: the engine's flush (a table, a new log),
// its compaction, forgetting history, a backup, closing and opening again.
func newScript(seed uint64, n int) *script {
	rng := rand.New(rand.NewPCG(seed, 1))
	sc := &script{}
	acts := []string{"flush", "compact", "backup", "flush", "merge", "compact", "reopen"}
	for i := range n {
		if i%4 == 3 {
			act := step{act: acts[i/4%len(acts)]}
			if act.act == "compact" {
				act.to = max(sc.revision()-int64(rng.IntN(10)), firstRevision)
			}
			sc.steps = append(sc.steps, act)
			continue
		}
		st := step{}
		for range 1 + rng.IntN(3)*rng.IntN(3) {
			sc.write(&st, rng)
		}
		sc.steps = append(sc.steps, st)
	}
	return sc
}

func (sc *script) revision() int64 { return firstRevision + int64(len(sc.history)) }

func (sc *script) write(st *step, rng *rand.Rand) {
	key := fmt.Sprintf("/k/%02d", rng.IntN(12))
	cur, there := sc.at(sc.revision())[key]
	rev := sc.revision() + 1
	value := fmt.Sprintf("%d:", rev) + strings.Repeat(string(rune('a'+rev%26)), rng.IntN(1500))
	ev := store.Event{
		Type: store.Created,
		KV: store.KV{
			Key:      key,
			Value:    []byte(value),
			Revision: rev,
			Created:  rev,
			Version:  1,
		},
	}
	if there {
		ev.Type = store.Updated
		ev.Prev = cur.Value
		ev.KV.Created = cur.Created
		ev.KV.Version = cur.Version + 1
		if rng.IntN(4) == 0 {
			ev.Type = store.Deleted
			ev.KV = cur
			ev.KV.Revision = rev
		}
	}
	sc.history = append(sc.history, ev)
	st.writes = append(st.writes, ev)
	st.expect = append(st.expect, cur.Revision)
}

// at is the state at revision rev.
func (sc *script) at(rev int64) map[string]store.KV {
	state := map[string]store.KV{}
	for _, e := range sc.history[:rev-firstRevision] {
		if e.Type == store.Deleted {
			delete(state, e.KV.Key)
			continue
		}
		state[e.KV.Key] = e.KV
	}
	return state
}

// list is the state at revision rev in the order of keys.
func (sc *script) list(rev int64) []store.KV {
	var out []store.KV
	for _, kv := range sc.at(rev) {
		out = append(out, kv)
	}
	slices.SortFunc(out, func(a, b store.KV) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// player plays a script.
type player struct {
	*script
	o Options
	s *Store
	// acked is the latest revision that was confirmed; forgotten and forgetting are up to where history was forgotten,
	// confirmed and asked for.
	acked, forgotten, forgetting atomic.Int64
}

func (p *player) open() (err error) {
	p.s, err = Open(p.o)
	return err
}

// play plays what is left of the script and stops at the first error; again it goes on where it stopped, having looked
// what became of the step that failed.
func (p *player) play(ctx context.Context, from int) (next int, err error) {
	for i := from; i < len(p.steps); i++ {
		st := &p.steps[i]
		if st.act != "" {
			err = p.act(ctx, st)
		} else {
			err = p.write(st)
		}
		if err != nil {
			return i, err
		}
	}
	return len(p.steps), nil
}

// write hands the writes that have not happened yet to the committer, all at once and in order, and waits for all.
func (p *player) write(st *step) error {
	alarm := p.s.health.current()
	if fault := alarm.get(); fault != nil {
		return fault
	}
	var asked []*request
	for i, ev := range st.writes {
		// it happened when its outcome was unknown; it is visible, and so it stays
		if ev.KV.Revision <= p.s.durable.Load() {
			p.acked.Store(max(p.acked.Load(), ev.KV.Revision))
			continue
		}
		expect := st.expect[i]
		req := &request{key: ev.KV.Key, done: make(chan struct{})}
		req.decide = func(cur store.KV, found bool) (change, error) {
			if p.s.next != ev.KV.Revision { // the committer's own, which this runs on
				return change{}, errors.New("a write before failed")
			}
			if found != (expect != 0) || found && cur.Revision != expect {
				return change{}, fmt.Errorf("%s is at %d, not %d", ev.KV.Key, cur.Revision, expect)
			}
			c := change{typ: ev.Type, value: ev.KV.Value}
			if ev.Type == store.Deleted {
				c.value = nil
			}
			return c, nil
		}
		asked = append(asked, req)
		p.s.queue.put(req)
	}
	var err error
	for n, r := range asked {
		select {
		case <-r.done:
		case <-alarm.raised:
			for _, later := range asked[n:] {
				if !later.settle() && !lasting(alarm.err) {
					<-later.done // taken: it ends when the disk takes writes again
				}
			}
			return alarm.err
		}
		if err == nil {
			err = r.err
		}
		if r.err == nil {
			p.acked.Store(max(p.acked.Load(), r.rev))
		}
	}
	return err
}

func (p *player) act(ctx context.Context, st *step) error {
	switch st.act {
	case "flush":
		return p.engine(p.s.db.Flush)
	case "merge":
		return p.engine(func() error { return p.s.db.Compact(ctx, []byte{versionPrefix}, []byte{'z'}, false) })
	case "compact":
		p.forgetting.Store(max(st.to, p.forgetting.Load()))
		if err := p.s.Compact(ctx, st.to); err != nil {
			return err
		}
		p.forgotten.Store(max(st.to, p.forgotten.Load()))
	case "backup":
		return p.backup(ctx)
	case "reopen":
		if err := p.s.Close(); err != nil {
			return err
		}
		return p.open()
	}
	return nil
}

// engine waits for a call into the engine, but not for one that will not end before the store is opened again.
func (p *player) engine(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- guarded(f) }() // ends with Close at the latest
	for {
		alarm := p.s.health.current()
		select {
		case err := <-done:
			return err
		case <-alarm.raised:
		}
		if lasting(alarm.err) {
			return alarm.err
		}
		select {
		case err := <-done:
			return err
		case <-time.After(time.Second): // of the bubble's time; the store tries again by itself
		}
	}
}

// backup writes one and reads it again.
func (p *player) backup(ctx context.Context) error {
	var file bytes.Buffer
	w := backup.NewWriter(&file)
	rev, err := backup.Walk(ctx, p.s, "/", w.KV)
	if err == nil {
		_, err = w.Close(rev)
	}
	if err != nil {
		return err
	}
	var got []store.KV
	if _, err := backup.Read(&file, backup.Sink{KV: func(kv store.KV) error {
		got = append(got, kv)
		return nil
	}}); err != nil {
		return err
	}
	if want := p.list(rev); !same(got, want) {
		return fmt.Errorf("backup at %d holds %s, want %s", rev, brief(got), brief(want))
	}
	return nil
}

// world is what a test knows about a store that was cut off.
type world struct {
	fs                           vfs.FS
	acked, forgotten, forgetting int64
}

// check opens what is left in w and compares it with the script.
func (sc *script) check(t *testing.T, what string, w world) {
	t.Helper()
	s, err := Open(Options{Dir: "data", FS: w.fs})
	if err != nil {
		t.Errorf("%s: Open: %v", what, err)
		return
	}
	if err := errors.Join(sc.compare(t.Context(), s, w), s.Close()); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func (sc *script) compare(ctx context.Context, st *Store, w world) error {
	latest := st.durable.Load()
	oldest := st.compacted.Load()
	if latest < w.acked || latest > sc.revision() {
		return fmt.Errorf("it is at revision %d; %d was confirmed, %d is the last", latest, w.acked, sc.revision())
	}
	if oldest < w.forgotten || oldest > w.forgetting {
		return fmt.Errorf("history begins at %d; %d was confirmed, %d asked for", oldest, w.forgotten, w.forgetting)
	}
	oldest = max(oldest, firstRevision)
	for _, rev := range []int64{latest, oldest, (oldest + latest) / 2} {
		page, err := st.List(ctx, store.Range{Prefix: "/", Revision: rev})
		if err != nil {
			return fmt.Errorf("list at %d: %w", rev, err)
		}
		if want := sc.list(rev); !same(page.Items, want) {
			return fmt.Errorf("at %d it holds %s, want %s", rev, brief(page.Items), brief(want))
		}
	}
	for from := oldest; from < latest; {
		events, err := st.readLog(from)
		if err != nil {
			return fmt.Errorf("log after %d: %w", from, err)
		}
		for _, e := range events {
			from++
			if want := sc.history[from-firstRevision-1]; fmt.Sprint(e) != fmt.Sprint(want) {
				return fmt.Errorf("event %d: got %.60s, want %.60s", from, fmt.Sprint(e), fmt.Sprint(want))
			}
		}
	}
	if got, err := st.Create(ctx, "/after", nil); err != nil || got.Revision != latest+1 {
		return fmt.Errorf("create afterwards: got %d, %w; want %d", got.Revision, err, latest+1)
	}
	return nil
}

func same(a, b []store.KV) bool {
	return slices.EqualFunc(a, b, func(a, b store.KV) bool {
		return a.Key == b.Key && a.Revision == b.Revision && bytes.Equal(a.Value, b.Value)
	})
}

func brief(items []store.KV) string {
	var out strings.Builder
	for _, kv := range items {
		fmt.Fprintf(&out, "%s@%d=%.6s ", kv.Key, kv.Revision, kv.Value)
	}
	return out.String()
}
