// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"keelson/store"
	"keelson/store/embed"
	"keelson/store/etcd"
	"keelson/store/etcd/etcdtest"
)

// op is one operation of a script.
type op struct {
	kind     string
	key, val string
	rev      int64 // which revision: see player.revision and expected
	limit    int
	noCount  bool
}

func (o op) String() string {
	return fmt.Sprintf("%s %s=%s rev %d limit %d noCount %v", o.kind, o.key, o.val, o.rev, o.limit, o.noCount)
}

// parts is into how many parts a script's revisions are divided.
const parts = 16

func drawOp(t *rapid.T) op {
	return op{
		kind: rapid.SampledFrom([]string{
			"create", "create", "update", "update", "update", "delete", "get", "list", "list", "watch", "compact",
			"restart", "crash",
		}).Draw(t, "kind"),
		key: rapid.SampledFrom([]string{"a", "a/", "a/b", "a/c", "a0", "b", "b/\xff", "b/\xff\xff/x"}).Draw(t,
			"key"),
		val:     rapid.SampledFrom([]string{"", "v", "w", "long"}).Draw(t, "value"),
		rev:     rapid.Int64Range(0, parts).Draw(t, "rev"),
		limit:   rapid.IntRange(0, 5).Draw(t, "limit"),
		noCount: rapid.Bool().Draw(t, "noCount"),
	}
}

// target is a store that scripts are played on.
type target struct {
	name   string
	open   func(t *rapid.T) store.Store
	reopen func(t *rapid.T, s store.Store, crash bool) store.Store // what it acknowledged must still be there
}

// embedded is a store on a file system in memory that can lose what was not synced.
func embedded(name string, o embed.Options) target {
	o.Dir = "data"
	open := func(t *rapid.T, fs vfs.FS) store.Store {
		o.FS = fs
		s, err := embed.Open(o)
		if err != nil {
			t.Fatalf("%s: open: %v", name, err)
		}
		return s
	}
	var mem *vfs.MemFS
	return target{
		name: name,
		open: func(t *rapid.T) store.Store {
			mem = vfs.NewCrashableMem()
			return open(t, mem)
		},
		reopen: func(t *rapid.T, s store.Store, crash bool) store.Store {
			left := mem
			if crash {
				left = mem.CrashClone(vfs.CrashCloneCfg{})
			}
			if err := s.Close(); err != nil {
				t.Fatalf("%s: close: %v", name, err)
			}
			mem = left
			return open(t, mem)
		},
	}
}

// TestMetamorphic plays random scripts on the embedded store with different options and on etcd. All must answer the
// same, whatever the options, and whether or not a store was closed or lost its power in between. A failure is shrunk
// to a short script.
func TestMetamorphic(t *testing.T) {
	targets := []target{
		embedded("embed", embed.Options{}),
		embedded("embed with a small cache", embed.Options{
			CacheBytes:   1 << 20,
			HistoryAge:   time.Hour,
			HistoryBytes: 1 << 40,
		}),
	}
	t.Run("etcd", func(t *testing.T) {
		remote, err := etcd.Open(t.Context(), etcd.Options{Servers: etcdtest.URLs(etcdtest.Start(t, 1, nil))})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = remote.Close() })
		same := func(*rapid.T, store.Store, bool) store.Store { return remote }
		rapid.Check(t,
			metamorphic(
				append(targets, target{"etcd", func(t *rapid.T) store.Store { return same(t, nil, false) }, same})))
	})
	t.Run("embed", func(t *testing.T) { rapid.Check(t, metamorphic(targets)) })
}

func metamorphic(targets []target) func(*rapid.T) {
	var scripts atomic.Int64
	return func(t *rapid.T) {
		ops := rapid.SliceOfN(rapid.Custom(drawOp), 20, 80).Draw(t, "script")
		prefix := fmt.Sprintf("/script-%d/", scripts.Add(1))
		var want []string
		for i, g := range targets {
			got := play(t, g, prefix, ops)
			if i == 0 {
				want = got
				continue
			}
			for n := range ops {
				if got[n] != want[n] {
					t.Fatalf("operation %d, %v\n%s answers %s\n%s answers %s", n, ops[n], targets[0].name, want[n],
						g.name, got[n])
				}
			}
		}
	}
}

// player plays a script on one store.
type player struct {
	store.Store
	prefix string
	base   int64            // the revision before the script's first write
	at     map[string]int64 // the revision of each key that is there
	newest int64
	marks  int
}

// play returns an answer for each operation.
func play(t *rapid.T, g target, prefix string, ops []op) []string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p := &player{Store: g.open(t), prefix: prefix, at: map[string]int64{}}
	if g.name != "etcd" {
		defer func() { _ = p.Close() }()
	}
	var err error
	if p.base, err = p.Revision(ctx); err != nil {
		t.Fatalf("%s: revision: %v", g.name, err)
	}
	p.newest = p.base
	p.mark(ctx, t) // so that no script asks for what was before it
	answers := make([]string, len(ops))
	for i, o := range ops {
		if o.kind == "restart" || o.kind == "crash" {
			p.Store = g.reopen(t, p.Store, o.kind == "crash")
			answers[i] = "ok"
			continue
		}
		answers[i] = p.do(ctx, t, o)
	}
	return answers
}

func (p *player) do(ctx context.Context, t *rapid.T, o op) string {
	key := p.prefix + o.key
	value := []byte(o.val)
	if o.val == "long" {
		value = bytes.Repeat(value, 2500)
	}
	// mostly the revision that the key has, sometimes one next to it, for a delete also any
	expected := p.at[key] + []int64{0, 0, 0, -1, 1}[o.rev%5]
	switch o.kind {
	case "create":
		w, err := p.Create(ctx, key, value)
		return p.wrote(key, w, err)
	case "update":
		w, err := p.Update(ctx, key, value, max(expected, 1))
		return p.wrote(key, w, err)
	case "delete":
		if o.noCount {
			expected = 0
		}
		old, w, err := p.Delete(ctx, key, max(expected, 0))
		if err == nil {
			delete(p.at, key)
			p.newest = w.Revision
			return fmt.Sprintf("deleted at %d: %s", w.Revision-p.base, p.show(old))
		}
		return p.wrote(key, w, err)
	case "get":
		kv, at, err := p.Get(ctx, key, p.revision(o.rev))
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return p.outcome(err)
		}
		return fmt.Sprintf("%s at %d: %s", p.show(kv), at-p.base, p.outcome(err))
	case "list":
		page, err := p.List(ctx, store.Range{
			Prefix:   p.prefix + strings.TrimRight(o.key, "abc0"),
			From:     key,
			Revision: p.revision(o.rev),
			Limit:    o.limit,
			NoCount:  o.noCount,
		})
		if err != nil {
			return p.outcome(err)
		}
		var items []string
		for _, kv := range page.Items {
			items = append(items, p.show(kv))
		}
		remaining := fmt.Sprint(page.Remaining)
		if o.noCount && page.More {
			remaining = "some"
		}
		return fmt.Sprintf("%v at %d, more %v, remaining %s", items, page.Revision-p.base, page.More, remaining)
	case "compact":
		return p.outcome(p.Compact(ctx, p.past(o.rev/2)))
	default:
		return p.watch(ctx, t, o)
	}
}

// revision is one from the script's first write to the one that comes next, which is in the future; 0 stands for the
// latest.
func (p *player) revision(rev int64) int64 {
	if rev == 0 {
		return 0
	}
	first := p.base + 1
	return first + (p.newest+1-first)*rev/parts
}

// past is a revision that is there.
func (p *player) past(rev int64) int64 { return min(max(p.revision(rev), p.base+1), p.newest) }

func (p *player) wrote(key string, w store.Written, err error) string {
	if err != nil {
		return p.outcome(err)
	}
	p.at[key] = w.Revision
	p.newest = w.Revision
	return fmt.Sprintf("written at %d", w.Revision-p.base)
}

// mark writes a key that no operation touches.
func (p *player) mark(ctx context.Context, t *rapid.T) string {
	p.marks++
	key := fmt.Sprintf("%smark-%d", p.prefix, p.marks)
	w, err := p.Create(ctx, key, nil)
	if err != nil {
		t.Fatalf("create %s: %v", key, err)
	}
	p.newest = w.Revision
	return key
}

// watch returns all events from a revision on, up to a mark written after the watch began.
func (p *player) watch(ctx context.Context, t *rapid.T, o op) string {
	watcher, err := p.Watch(ctx, p.prefix, p.past(o.rev))
	if err != nil {
		p.mark(ctx, t)
		return p.outcome(err)
	}
	defer watcher.Stop()
	last := p.mark(ctx, t)
	var events []string
	for {
		select {
		case batch, ok := <-watcher.Events():
			if !ok {
				return fmt.Sprintf("%v, then %s", events, p.outcome(watcher.Err()))
			}
			for _, e := range batch {
				events = append(events, fmt.Sprintf("%d %s before %q", e.Type, p.show(e.KV), short(e.Prev)))
			}
			if slices.ContainsFunc(batch, func(e store.Event) bool { return e.KV.Key == last }) {
				return fmt.Sprint(events)
			}
		case <-ctx.Done():
			t.Fatalf("watch from %d: after %v no event of %s", p.past(o.rev)-p.base, events, last)
		}
	}
}

func (p *player) show(kv store.KV) string {
	if kv.Key == "" {
		return "nothing"
	}
	return fmt.Sprintf("%q=%q@%d (version %d since %d)", strings.TrimPrefix(kv.Key, p.prefix), short(kv.Value),
		kv.Revision-p.base, kv.Version, kv.Created-p.base)
}

func short(v []byte) string {
	if len(v) > 8 {
		return fmt.Sprintf("%d bytes", len(v))
	}
	return string(v)
}

// outcome names an error by what it means.
func (p *player) outcome(err error) string {
	if c := (*store.ConflictError)(nil); errors.As(err, &c) {
		return "conflict with " + p.show(c.Current)
	}
	for _, known := range []error{store.ErrNotFound, store.ErrExists, store.ErrCompacted, store.ErrFuture} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return fmt.Sprint(err)
}
