// SPDX-License-Identifier: Apache-2.0

package etcdapi

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"keelson/store"
)

type watch struct {
	pb.UnimplementedWatchServer
	s *Server
}

// stream is one client's watches. Each follows all of the store, so that it knows which revision it has reached.
type stream struct {
	s    *Server
	st   store.Store
	out  chan *pb.WatchResponse
	ends context.Context //nolint:containedctx // the stream's own, for its parts
	wg   sync.WaitGroup

	mu       sync.Mutex
	watchers map[int64]*watcher
	nextID   int64
	tick     chan struct{} // closed and replaced when a watcher gets on
}

type watcher struct {
	span
	id                    int64
	prev, noPut, noDelete bool
	notify, fragment      bool
	cursor                int64 // guarded by stream.mu
	stop                  context.CancelFunc
}

// Watch is part of the Watch service.
func (w *watch) Watch(g grpc.BidiStreamingServer[pb.WatchRequest, pb.WatchResponse]) error {
	ctx, cancel := context.WithCancel(g.Context())
	s := &stream{
		s:        w.s,
		st:       w.s.st,
		out:      make(chan *pb.WatchResponse),
		ends:     ctx,
		watchers: map[int64]*watcher{},
		tick:     make(chan struct{}),
	}
	defer s.wg.Wait()
	defer cancel()
	in := make(chan *pb.WatchRequest)
	left := make(chan struct{})
	s.wg.Go(func() {
		for {
			r, err := g.Recv()
			if err != nil {
				close(left)
				return
			}
			select {
			case in <- r:
			case <-ctx.Done():
				return
			}
		}
	})
	for {
		var answers []*pb.WatchResponse
		select {
		case r := <-in:
			answers = s.handle(r)
		case a := <-s.out:
			answers = append(answers, a)
		case <-left:
			return nil // the client is gone
		case <-w.s.done:
			return answer(store.ErrClosed)
		}
		for _, a := range answers {
			if err := g.Send(a); err != nil {
				return err
			}
		}
	}
}

func (s *stream) handle(r *pb.WatchRequest) []*pb.WatchResponse {
	switch u := r.RequestUnion.(type) {
	case *pb.WatchRequest_CreateRequest:
		return s.create(u.CreateRequest)
	case *pb.WatchRequest_CancelRequest:
		id := u.CancelRequest.WatchId
		s.mu.Lock()
		w := s.watchers[id]
		delete(s.watchers, id)
		s.mu.Unlock()
		if w != nil {
			w.stop()
			rev, _ := s.st.Revision(s.ends) // for information
			return []*pb.WatchResponse{{Header: header(rev), WatchId: id, Canceled: true}}
		}
	case *pb.WatchRequest_ProgressRequest:
		s.wg.Go(s.progress)
	}
	return nil
}

func (s *stream) create(request *pb.WatchCreateRequest) []*pb.WatchResponse {
	rev, err := s.st.Revision(s.ends)
	w := &watcher{
		span:     span{string(request.Key), string(request.RangeEnd)},
		id:       request.WatchId,
		prev:     request.PrevKv,
		noPut:    slices.Contains(request.Filters, pb.WatchCreateRequest_NOPUT),
		noDelete: slices.Contains(request.Filters, pb.WatchCreateRequest_NODELETE),
		notify:   request.ProgressNotify,
		fragment: request.Fragment,
	}
	w.cursor = max(request.StartRevision-1, 1)
	if request.StartRevision == 0 {
		w.cursor = rev
	}
	s.mu.Lock()
	if w.id == 0 {
		for s.nextID++; s.watchers[s.nextID] != nil; s.nextID++ {
		}
		w.id = s.nextID
	} else if s.watchers[w.id] != nil {
		err = errors.New("keelson: watch id in use")
	}
	s.mu.Unlock()
	created := &pb.WatchResponse{Header: header(rev), WatchId: w.id, Created: true}
	if err != nil {
		created.Canceled = true
		created.CancelReason = answer(err).Error()
		return []*pb.WatchResponse{created}
	}
	ctx, stop := context.WithCancel(s.ends)
	w.stop = stop
	from, err := s.st.Watch(ctx, "", w.cursor)
	if err != nil {
		stop()
		return []*pb.WatchResponse{created, s.ended(w, err)}
	}
	s.mu.Lock()
	s.watchers[w.id] = w
	s.mu.Unlock()
	s.wg.Go(func() { s.feed(ctx, w, from) })
	return []*pb.WatchResponse{created}
}

// ended is the last answer of a watch. The compacted revision itself is not known; the latest is a place to start over.
func (s *stream) ended(w *watcher, err error) *pb.WatchResponse {
	rev, _ := s.st.Revision(s.ends) // for information
	r := &pb.WatchResponse{
		Header:       header(rev),
		WatchId:      w.id,
		Canceled:     true,
		CancelReason: answer(err).Error(),
	}
	if errors.Is(err, store.ErrCompacted) || errors.Is(err, store.ErrSlow) {
		r.CompactRevision = max(rev, 1)
	}
	return r
}

// feed sends what w wants until it ends.
func (s *stream) feed(ctx context.Context, w *watcher, from store.Watcher) {
	defer w.stop()
	var quiet <-chan time.Time
	if w.notify {
		tick := time.NewTicker(s.s.o.ProgressEvery)
		defer tick.Stop()
		quiet = tick.C
	}
	sentTo := w.cursor // what the client knows that the watch has reached
	for {
		select {
		case batch, ok := <-from.Events():
			if !ok {
				s.leave(ctx, w, from.Err())
				return
			}
			cursor := batch[len(batch)-1].KV.Revision
			sent, ok := s.deliver(ctx, w, batch, cursor)
			if !ok {
				return
			}
			if sent {
				sentTo = cursor
			}
			s.mu.Lock()
			w.cursor = cursor
			close(s.tick)
			s.tick = make(chan struct{})
			s.mu.Unlock()
		case <-quiet:
			s.mu.Lock()
			cursor := w.cursor
			s.mu.Unlock()
			if cursor > sentTo {
				if !s.send(ctx, &pb.WatchResponse{Header: header(cursor), WatchId: w.id}) {
					return
				}
				sentTo = cursor
			}
		}
	}
}

// leave ends a watch that the client has not ended.
func (s *stream) leave(ctx context.Context, w *watcher, why error) {
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	delete(s.watchers, w.id)
	s.mu.Unlock()
	s.send(ctx, s.ended(w, why))
}

// fragmentBytes is what an answer may hold when the client wants great ones in parts.
const fragmentBytes = 1 << 20

// deliver sends what w wants of a batch, if anything; ok is false when the watch has ended meanwhile.
func (s *stream) deliver(ctx context.Context, w *watcher, batch []store.Event, rev int64) (sent, ok bool) {
	var events []*mvccpb.Event
	size := 0
	for i := range batch {
		event := s.event(w, &batch[i])
		if event == nil {
			continue
		}
		n := len(event.Kv.Key) + len(event.Kv.Value) + len(event.PrevKv.GetValue()) + 64
		if w.fragment && len(events) > 0 && size+n > fragmentBytes {
			if !s.send(ctx, &pb.WatchResponse{
				Header:   header(rev),
				WatchId:  w.id,
				Events:   events,
				Fragment: true,
			}) {
				return true, false
			}
			events = nil
			size = 0
		}
		events = append(events, event)
		size = size + n
	}
	if len(events) == 0 {
		return false, true
	}
	return true, s.send(ctx, &pb.WatchResponse{Header: header(rev), WatchId: w.id, Events: events})
}

func (s *stream) send(ctx context.Context, r *pb.WatchResponse) bool {
	select {
	case s.out <- r:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *stream) event(w *watcher, ev *store.Event) *mvccpb.Event {
	if !w.holds(ev.KV.Key) {
		return nil
	}
	out := &mvccpb.Event{}
	switch ev.Type {
	case store.Deleted:
		if w.noDelete {
			return nil
		}
		out.Type = mvccpb.Event_DELETE
		out.Kv = &mvccpb.KeyValue{Key: []byte(ev.KV.Key), ModRevision: ev.KV.Revision}
	default:
		out.Kv = s.s.open(ev.KV)
	}
	if w.noPut && out.Type == mvccpb.Event_PUT {
		return nil
	}
	if w.prev && ev.Type != store.Created {
		prev := store.KV{
			Key:     ev.KV.Key,
			Value:   ev.Prev,
			Created: ev.KV.Created,
			Version: ev.KV.Version,
		}
		if ev.Type == store.Updated && prev.Version > 0 {
			prev.Version--
		}
		out.PrevKv = s.s.open(prev)
	}
	return out
}

// progress notifies the client once every watch has sent everything up to now.
func (s *stream) progress() {
	rev, err := s.st.Revision(s.ends)
	if err != nil {
		return // the client asks again, or its watches end
	}
	for {
		s.mu.Lock()
		tick := s.tick
		behind := false
		for _, w := range s.watchers {
			behind = behind || w.cursor < rev
		}
		s.mu.Unlock()
		if !behind {
			s.send(s.ends, &pb.WatchResponse{Header: header(rev), WatchId: -1})
			return
		}
		select {
		case <-tick:
		case <-s.ends.Done():
			return
		}
	}
}
