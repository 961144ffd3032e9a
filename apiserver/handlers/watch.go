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
	"keelson/apiserver/resources"
	"keelson/apiserver/wire"
	"keelson/event"
	"keelson/lib/cpusem"
)

// minWatchTimeout is the minimum duration of a watch without timeoutSeconds; the maximum is twice that.
const minWatchTimeout = 30 * time.Minute

// defaultWatchWriteTimeout is the default time-out of a write to a watch client.
const defaultWatchWriteTimeout = time.Minute

// maxBatchBytes is the maximum number of bytes of ready events per write.
const maxBatchBytes = 64 << 10

// watches serves the verb watch.
type watches struct {
	stopping     <-chan struct{}
	metrics      *pipeline.Metrics // may be nil
	writeTimeout time.Duration
	marks        *event.Recorder // nil: deliveries are not recorded
}

// watch streams changes until the client disconnects, the time is over, or the history is lost.
func (c *watches) watch(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource) error {
	shape, err := negotiateWatch(r, res)
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
	life := minWatchTimeout + rand.N(minWatchTimeout) // load balancing, not security
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
	slow, release := slowWatchTimer(out, c.writeTimeout)
	defer release()
	s := stream{
		negotiated: shape,
		deliveries: delivery.New(c.marks, rq.User, res.GroupResource(), &q),
		count:      func(int) {},
		measure:    func(int) {},
		onIdle:     rq.InitialEventsSent,
		write: func(b []byte) error {
			slow.Reset(c.writeTimeout)
			defer slow.Stop()
			if _, err := w.Write(b); err != nil {
				return err
			}
			return out.Flush()
		},
	}
	if c.metrics != nil {
		events, sizes := c.metrics.WatchEvents(res.GVR())
		s.count = func(n int) { events.Add(float64(n)) }
		s.measure = func(size int) { sizes.Observe(float64(size)) }
	}
	_ = out.Flush() // the client waits for the header; if it is gone, the first event fails
	s.run(ctx, events, c.stopping)
	return nil
}

// slowWatchTimer returns a stopped timer that disconnects a client which does not read its events: it would use memory,
// and can resume. After release the timer does not touch the response any more.
func slowWatchTimer(out *http.ResponseController, after time.Duration) (slow *time.Timer, release func()) {
	var mu sync.Mutex
	over := false // the response must not be touched any more
	slow = time.AfterFunc(after, func() {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			_ = out.SetWriteDeadline(time.Now()) // in-process watches have no deadlines and no slow clients
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

// stream encodes events as frames.
type stream struct {
	negotiated *negotiated
	write      func([]byte) error
	count      func(events int)
	// measure is called with the size of each event.
	measure    func(bytes int)
	onIdle     func() // called when no event is ready
	deliveries *delivery.Recorder
	sentFirst  bool // after the first event a Table needs no column definitions
}

// run ends with ctx, at shutdown, when the client stops reading, or with an ERROR frame when the watch fails.
func (s *stream) run(ctx context.Context, events objects.Watch, stopping <-chan struct{}) {
	for {
		if len(events.Events()) == 0 {
			s.onIdle()
		}
		select {
		case <-ctx.Done():
			return
		case <-stopping:
			return
		case ev, ok := <-events.Events():
			if !ok {
				if err := events.Err(); err != nil {
					_ = s.write(s.errorFrame(err)) // the last frame; the client may be gone
				}
				return
			}
			if !s.frames(ev, events) {
				return
			}
		}
	}
}

// frameBuffers are reused: an idle watch holds none.
var frameBuffers = sync.Pool{New: func() any { return new([]byte) }}

// frames writes ev and all other events that are ready.
func (s *stream) frames(ev objects.Event, events objects.Watch) bool {
	buf, _ := frameBuffers.Get().(*[]byte)
	defer frameBuffers.Put(buf)
	*buf = (*buf)[:0]
	var out []objects.Event
	n, err := s.appendReady(buf, &out, ev, events)
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

// appendReady appends ev and all other ready events to buf, and returns their number. out receives those to be
// recorded.
func (s *stream) appendReady(
	buf *[]byte, out *[]objects.Event, ev objects.Event, events objects.Watch,
) (n int, err error) {
	cpusem.Processors.Enter()
	defer cpusem.Processors.Leave()
	for more := true; more; {
		b, err := s.negotiated.encode(ev.Entry, !s.sentFirst)
		if err != nil {
			return n, err
		}
		s.sentFirst = true
		n++
		if s.deliveries != nil && ev.Marked != nil {
			*out = append(*out, ev)
		}
		before := len(*buf)
		*buf = wire.AppendFrame(*buf, s.negotiated.want.Media, string(ev.Type), b)
		s.measure(len(*buf) - before)
		if len(*buf) >= maxBatchBytes {
			break
		}
		select {
		case next, ok := <-events.Events():
			// run also sees a closed channel.
			ev = next
			more = ok
		default:
			more = false
		}
	}
	return n, nil
}

func (s *stream) errorFrame(err error) []byte {
	b, eerr := wire.NewEncoder(s.negotiated.want.Media, schema.GroupVersionKind{Version: "v1", Kind: "Status"}).Encode(
		wire.Status(err))
	if eerr != nil {
		return nil
	}
	return wire.AppendFrame(nil, s.negotiated.want.Media, "ERROR", b)
}
