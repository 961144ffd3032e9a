// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/delivery"
	"keelson/apiserver/objects"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/registry"
	"keelson/apiserver/wire"
	"keelson/lib/turns"
)

// shortestWatch bounds from below how long a watch lasts when the client does not say; it is at most twice that.
const shortestWatch = 30 * time.Minute

// defaultSlowest is how long one write of a watch to a client may take.
const defaultSlowest = time.Minute

// most is how many bytes of events that are ready go out in one write.
const most = 64 << 10

// watch streams changes until the client leaves, its time is up, or history is lost.
func (h *Handler) watch(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *registry.Resource) error {
	shape, err := shapeOfWatch(r, res)
	if err != nil {
		return err
	}
	opts, err := listOptions(r)
	if err != nil {
		return err
	}
	q, err := query(rq, res, opts)
	if err != nil {
		return err
	}
	life := shortestWatch + rand.N(shortestWatch) //nolint:gosec // spreads load, guards nothing
	if opts.TimeoutSeconds != nil && *opts.TimeoutSeconds > 0 {
		life = time.Duration(*opts.TimeoutSeconds) * time.Second
	}
	ctx, cancel := context.WithTimeout(r.Context(), life)
	defer cancel()
	events, err := res.Storage.Watch(ctx, q)
	if err != nil {
		return err
	}
	shape.want.Pretty = false
	header := w.Header()
	header.Set("Content-Type", wire.StreamType(shape.want.Media))
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	slow, release := cutSlow(out, h.slowest)
	defer release()
	s := stream{shape: shape, deliveries: delivery.New(h.marks, rq.User, res.GroupResource(), &q), count: func(int) {}, measure: func(int) {}, idle: rq.Begun, write: func(b []byte) error {
		slow.Reset(h.slowest)
		defer slow.Stop()
		if _, err := w.Write(b); err != nil {
			return err
		}
		return out.Flush()
	}}
	if h.metrics != nil {
		events, sizes := h.metrics.WatchEvents(res.GVR())
		s.count = func(n int) { events.Add(float64(n)) }
		s.measure = func(size int) { sizes.Observe(float64(size)) }
	}
	_ = out.Flush() // the client waits for the header; if it is gone the first event will tell
	s.run(ctx, events, h.stopping)
	return nil
}

// cutSlow is a timer, stopped, that cuts off a client which does not take what it asked for: it holds memory, and resumes where it was.
// After release it no longer touches the answer.
func cutSlow(out *http.ResponseController, after time.Duration) (slow *time.Timer, release func()) {
	var mu sync.Mutex
	over := false // the answer is no longer ours
	slow = time.AfterFunc(after, func() {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			_ = out.SetWriteDeadline(time.Now()) // in-process watches have no deadlines, nor slow clients
		}
	})
	slow.Stop()
	return slow, func() {
		slow.Stop()
		mu.Lock()
		defer mu.Unlock()
		over = true
	}
}

// stream turns events into frames.
type stream struct {
	shape *shape
	write func([]byte) error
	count func(events int)
	// measure is told the size of each event.
	measure    func(bytes int)
	idle       func() // nothing is ready
	deliveries *delivery.Recorder
	begun      bool // the first event is out: a Table has described its columns
}

// run ends with ctx, when the server stops, when the client no longer takes frames, or with an ERROR frame when the watch failed.
func (s *stream) run(ctx context.Context, events objects.Watch, stopping <-chan struct{}) {
	for {
		if len(events.Events()) == 0 {
			s.idle()
		}
		select {
		case <-ctx.Done():
			return
		case <-stopping:
			return
		case ev, ok := <-events.Events():
			if !ok {
				if err := events.Err(); err != nil {
					_ = s.write(s.errorFrame(err)) // the last word; nobody may be listening
				}
				return
			}
			if !s.frames(ev, events) {
				return
			}
		}
	}
}

// frameBuffers hold frames on their way out: a watch that has nothing to say holds none.
var frameBuffers = sync.Pool{New: func() any { return new([]byte) }}

// frames writes ev and whatever else is ready.
func (s *stream) frames(ev objects.Event, events objects.Watch) bool {
	buf, _ := frameBuffers.Get().(*[]byte)
	defer frameBuffers.Put(buf)
	*buf = (*buf)[:0]
	var out []objects.Event
	n, err := s.gather(buf, &out, ev, events)
	if err != nil {
		_ = s.write(append(*buf, s.errorFrame(err)...)) // the watch ends either way
		return false
	}
	s.count(n)
	if s.write(*buf) != nil {
		return false
	}
	for i := range out {
		s.deliveries.Delivered(&out[i])
	}
	return true
}

// gather appends ev and whatever else is ready, and tells how many events that were. out are those that are to be told of.
func (s *stream) gather(buf *[]byte, out *[]objects.Event, ev objects.Event, events objects.Watch) (n int, err error) {
	turns.Processors.Enter()
	defer turns.Processors.Leave()
	for more := true; more; {
		b, err := s.shape.encode(ev.Entry, !s.begun)
		if err != nil {
			return n, err
		}
		s.begun = true
		n++
		if s.deliveries != nil && ev.Marked != nil {
			*out = append(*out, ev)
		}
		before := len(*buf)
		*buf = wire.AppendFrame(*buf, s.shape.want.Media, string(ev.Type), b)
		s.measure(len(*buf) - before)
		if len(*buf) >= most {
			break
		}
		select {
		case next, ok := <-events.Events():
			// When the channel is closed, run sees it too.
			ev, more = next, ok
		default:
			more = false
		}
	}
	return n, nil
}

func (s *stream) errorFrame(err error) []byte {
	b, eerr := wire.NewEncoder(s.shape.want.Media, schema.GroupVersionKind{Version: "v1", Kind: "Status"}).Encode(wire.Status(err))
	if eerr != nil {
		return nil
	}
	return wire.AppendFrame(nil, s.shape.want.Media, "ERROR", b)
}
