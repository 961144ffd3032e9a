// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"keelson/lib/signal"
	"keelson/store"
)

// request is a write on its way through the committer.
type request struct {
	key    string
	decide func(cur store.KV, found bool) (change, error)
	batch  *pebble.Batch // instead of key and decide: to be applied as it is
	// reserved is the room above the quota that the write may take.
	reserved store.Reserve

	settled atomic.Bool   // taken by the committer or given up by its caller, whichever came first
	done    chan struct{} // closed when what follows is final
	old     store.KV
	rev     int64
	sync    time.Duration
	err     error
}

// settle is true for the first to ask.
func (r *request) settle() bool { return r.settled.CompareAndSwap(false, true) }

func (r *request) answer(err error) {
	r.err = err
	close(r.done)
}

// queue holds the requests that wait for the committer.
type queue struct {
	filled signal.Signal // there may be something
	stop   chan struct{} // closed by Close when no more writes come: the committer ends
	ended  chan struct{} // closed when it has ended
	mu     sync.Mutex
	in     []*request
}

func (q *queue) put(r *request) {
	q.mu.Lock()
	q.in = append(q.in, r)
	q.mu.Unlock()
	q.filled.Notify()
}

// take returns what waits, in order, and keeps into, emptied, for what comes.
func (q *queue) take(into []*request) []*request {
	clear(into)
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.in
	q.in = into[:0]
	return out
}

// submit hands req to the committer and waits for its answer, for the end of ctx, or until the disk takes no writes.
// When the wait ends without an answer: if the committer has not taken req it never will; if it has, the outcome is
// unknown.
func (s *Store) submit(ctx context.Context, req *request) error {
	alarm := s.health.current()
	if err := alarm.get(); err != nil {
		return err
	}
	s.queue.put(req)
	var err error
	select {
	case <-req.done:
		return req.err
	case <-ctx.Done():
		err = ctx.Err()
	case <-alarm.raised:
		err = alarm.err
	}
	if req.settle() {
		return err
	}
	select {
	case <-req.done: // both at once
		return req.err
	default:
		return err
	}
}

// submitBatch has the committer apply b, which writes no revision, together with what else is waiting. b is the
// committer's from then on.
func (s *Store) submitBatch(ctx context.Context, b *pebble.Batch) error {
	return s.submit(ctx, &request{batch: b, done: make(chan struct{})})
}

// commit is the committer: all that waits becomes one batch, one sync, one publication.
func (s *Store) commit() {
	defer close(s.queue.ended)
	var taken []*request
	for {
		taken = s.queue.take(taken)
		if len(taken) == 0 {
			select {
			case <-s.queue.filled.C():
				continue
			case <-s.queue.stop:
				return
			}
		}
		for rest := taken; len(rest) > 0; {
			g := &group{}
			n := 0
			for n < len(rest) && g.size < groupBytes {
				s.place(g, rest[n])
				n++
			}
			g.doneReading()
			s.flush(g)
			rest = rest[n:]
		}
	}
}

// groupBytes bounds a batch, which must stay well below the size of a memtable.
const groupBytes = 1 << 20

// group is a batch in the making.
type group struct {
	batch    *pebble.Batch
	size     int
	events   []store.Event
	requests []*request       // to be answered when the batch is on disk
	latest   map[string]int   // index in events of a key's latest, once there are several
	before   *pebble.Iterator // over the versions there were before the group, for all its reads; nil until the first
	seek     []byte           // room for a key
}

// version is the newest version of key before the group, as Store.version has it.
func (g *group) version(st *Store, key string) (store.KV, store.EventType, error) {
	if g.before == nil {
		it, err := st.db.NewIter(&pebble.IterOptions{
			LowerBound: []byte{versionPrefix},
			UpperBound: []byte{versionPrefix + 1},
		})
		if err != nil {
			return store.KV{}, 0, fmt.Errorf("read %s: %w", key, err)
		}
		g.before = it
	}
	g.seek = putVersionKey(g.seek[:0], key, st.durable.Load())
	kv, typ, err := readVersion(g.before, g.seek, key)
	if err != nil {
		g.doneReading() // the next read may fare better
		return store.KV{}, 0, fmt.Errorf("read %s: %w", key, err)
	}
	return kv, typ, nil
}

// doneReading lets go of what version holds.
func (g *group) doneReading() {
	if g.before != nil {
		_ = g.before.Close() // its errors were returned by the reads
		g.before = nil
	}
}

// current is the version of key that the next write of the group meets.
func (s *Store) current(g *group, key string) (kv store.KV, found bool, err error) {
	i := 0
	written := len(g.events) == 1 && g.events[0].KV.Key == key
	if len(g.events) > 1 {
		i, written = g.latest[key]
	}
	if written {
		e := g.events[i]
		return e.KV, e.Type != store.Deleted, nil
	}
	if kv, found, known := s.recent.get(key); known {
		return kv, found, nil
	}
	kv, typ, err := g.version(s, key)
	return kv, typ != 0 && typ != store.Deleted, err
}

// place decides req on the key's latest version, and puts what req writes into g.
func (s *Store) place(g *group, req *request) {
	if !req.settle() {
		return
	}
	if req.batch != nil {
		s.merge(g, req)
		return
	}
	cur, found, err := s.current(g, req.key)
	if err != nil {
		req.answer(err)
		return
	}
	change, err := req.decide(cur, found)
	if err == nil {
		err = s.usage.chargeChange(req, change, cur, found)
	}
	if err != nil {
		req.err = err
		if cur.Revision <= s.durable.Load() {
			close(req.done)
			return
		}
		// the version that refuses it is not on disk yet (invariant 3): it is answered with g
		g.requests = append(g.requests, req)
		return
	}
	req.rev = s.next
	e := logEntry{typ: change.typ, key: req.key}
	ev := store.Event{
		Type: change.typ,
		KV: store.KV{
			Key:      req.key,
			Value:    change.value,
			Revision: req.rev,
			Created:  req.rev,
			Version:  1,
		},
	}
	if found {
		req.old = cur
		e.previous = cur.Revision
		ev.Prev = cur.Value
		ev.KV.Created = cur.Created
		ev.KV.Version = cur.Version
	}
	switch {
	case change.typ == store.Deleted:
		ev.KV.Value = cur.Value
	case found && cur.Version > 0:
		ev.KV.Version++
	}
	if g.batch == nil {
		g.batch = s.db.NewBatchWithSize(2*len(req.key) + len(change.value) + 64)
	}
	if err := fill(g.batch, e, ev.KV); err != nil {
		s.disk.fails(err) // the batch holds half a write; only a bug of the engine comes here
	}
	s.next++
	g.add(req, ev, 2*len(req.key)+len(change.value)+64)
}

// merge puts the batch of r into g.
func (s *Store) merge(g *group, r *request) {
	if g.batch == nil {
		g.batch = s.db.NewBatch()
	}
	if err := g.batch.Apply(r.batch, nil); err != nil {
		r.answer(err)
		return
	}
	g.size += r.batch.Len()
	g.requests = append(g.requests, r)
}

func (g *group) add(r *request, ev store.Event, size int) {
	g.events = append(g.events, ev)
	g.requests = append(g.requests, r)
	g.size += size
	switch n := len(g.events); {
	case n == 2:
		g.latest = map[string]int{g.events[0].KV.Key: 0}
		fallthrough
	case n > 2:
		g.latest[ev.KV.Key] = n - 1
	}
}

// fill puts a write's two records into b.
func fill(b *pebble.Batch, e logEntry, kv store.KV) error {
	op := b.SetDeferred(len(e.key)+10, sizeOfVersion(e.typ, kv))
	putVersionKey(op.Key[:0], e.key, kv.Revision)
	putVersion(op.Value[:0], e.typ, kv)
	if err := op.Finish(); err != nil {
		return err
	}
	op = b.SetDeferred(9, 9+len(e.key))
	putLogKey(op.Key[:0], kv.Revision)
	putLogEntry(op.Value[:0], e)
	return op.Finish()
}

// flush brings g to disk, publishes it and answers its requests.
func (s *Store) flush(g *group) {
	if g.batch == nil {
		return
	}
	begin := time.Now()
	if n := len(g.events); n > 0 {
		if err := g.batch.Set(keyUsed, putUsage(s.usage.used.Load(), g.events[n-1].KV.Revision), nil); err != nil {
			s.disk.fails(err) // only a bug of the engine comes here
		}
	}
	err := s.apply(g.batch)
	took := time.Since(begin)
	if err == nil && len(g.events) > 0 {
		s.note.write(s.disk, s.log, g.events[len(g.events)-1].KV.Revision)
		s.publish(g.events)
		for i := range g.events {
			s.recent.put(g.events[i])
		}
	}
	for _, r := range g.requests {
		r.sync = took
		if err != nil {
			r.err = err
		}
		close(r.done)
	}
}

// apply commits batch and waits for the sync, whatever batch holds: damage.go relies on that. It blocks while the disk
// takes no writes. An error says that nothing may be confirmed any more.
func (s *Store) apply(batch *pebble.Batch) error {
	alarm := s.health.current()
	if lasting(alarm.get()) {
		return alarm.err
	}
	if err := guarded(func() error { return s.db.Apply(batch, pebble.Sync) }); err != nil {
		s.disk.fails(err)
		return s.health.current().get()
	}
	select {
	case <-s.disk.done: // what the engine says is worth nothing
		return store.ErrClosed
	default:
		return batch.Close()
	}
}

func lasting(err error) bool {
	var u *store.UnavailableError
	return errors.As(err, &u) && u.Lasting
}

// publish makes events, which are on disk, visible.
func (s *Store) publish(events []store.Event) {
	rev := events[len(events)-1].KV.Revision
	s.mu.Lock()
	s.ring.add(events)
	for i := range events {
		s.compaction.history.superseded += int64(len(events[i].Prev) + len(events[i].KV.Key) + 64)
	}
	s.durable.Store(rev)
	close(s.tick)
	s.tick = make(chan struct{})
	compact := s.compaction.history.due(s.now(), rev)
	s.mu.Unlock()
	if compact > 0 {
		s.compactLater(compact)
	}
}
