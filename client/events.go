// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/reference"
	"k8s.io/utils/lru"

	"keelson/api/meta"
)

// Events records what a component reports to users about objects, as kubectl describe shows it. Recording never waits:
// events queue up to a bound and are written by Run, repeated ones as a count, and a component that talks too much
// about one object is cut short (client-go's correlator: aggregation, de-duplication, a token bucket per source and
// object).
type Events struct {
	client    *Client
	component string
	host      string
	log       *slog.Logger
	queue     chan *corev1.Event

	mu   sync.Mutex
	talk *lru.Cache // spoken -> *rate.Limiter
	last int64      // what the newest event's name ends with
}

// spoken is what a component may only say so much about.
type spoken struct {
	kind, namespace, name string
	uid                   types.UID
}

var _ record.EventRecorder = (*Events)(nil)

const (
	eventsQueued  = 1000
	eventTries    = 5
	eventPause    = time.Second
	eventsPerSec  = 1. / 300 // refill of an object's bucket
	eventsBurst   = 25
	eventsObjects = 4096 // objects whose buckets are remembered
	eventTimeout  = 10 * time.Second
	eventsFlushed = 2 * time.Second // for what is queued when Run ends
)

// Events returns a recorder for component, which may run on many hosts (empty: this machine's name). It does nothing
// until its Run is started.
func (c *Client) Events(component, host string, log *slog.Logger) *Events {
	if host == "" {
		host, _ = os.Hostname() // empty is as good
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Events{
		client:    c,
		component: component,
		host:      host,
		log:       log,
		queue:     make(chan *corev1.Event, eventsQueued),
		talk:      lru.New(eventsObjects),
	}
}

// Event records an event of type Normal or Warning about obj.
func (e *Events) Event(obj runtime.Object, eventType, reason, message string) {
	e.record(obj, nil, eventType, reason, message)
}

// Eventf is Event with a format.
func (e *Events) Eventf(obj runtime.Object, eventType, reason, format string, args ...any) {
	e.record(obj, nil, eventType, reason, fmt.Sprintf(format, args...))
}

// AnnotatedEventf is Eventf with annotations on the event.
func (e *Events) AnnotatedEventf(
	obj runtime.Object, annotations map[string]string, eventType, reason, format string, args ...any,
) {
	e.record(obj, annotations, eventType, reason, fmt.Sprintf(format, args...))
}

func (e *Events) record(obj runtime.Object, annotations map[string]string, eventType, reason, message string) {
	ref, err := reference.GetReference(scheme.Scheme, obj)
	if err != nil {
		e.log.Error("event about an unknown object", "reason", reason, "err", err)
		return
	}
	now := metav1.Now()
	if e.tooMuch(ref, now.Time) {
		return
	}
	ns := ref.Namespace
	if ns == "" {
		ns = metav1.NamespaceDefault
	}
	ev := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:        meta.ChildName(ref.Name, fmt.Sprintf(".%x", e.unique(now.Time))),
			Namespace:   ns,
			Annotations: annotations,
		},
		InvolvedObject:      *ref,
		Reason:              reason,
		Message:             message,
		Type:                eventType,
		FirstTimestamp:      now,
		LastTimestamp:       now,
		Count:               1,
		Source:              corev1.EventSource{Component: e.component, Host: e.host},
		ReportingController: e.component,
		ReportingInstance:   e.host,
	}
	select {
	case e.queue <- ev:
	default:
		e.log.Warn("event dropped, too many wait to be written", "object", ref.Name, "reason", reason)
	}
}

// unique is the time in nanoseconds, or more: two events at one time of the clock would have one name, and one of them
// would be lost.
func (e *Events) unique(now time.Time) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last = max(now.UnixNano(), e.last+1)
	return e.last
}

// tooMuch reports whether the component has said all it may about an object for now. It is asked first: a controller
// that makes thousands of pods says so thousands of times, and almost nothing of that is written.
func (e *Events) tooMuch(ref *corev1.ObjectReference, now time.Time) bool {
	k := spoken{ref.Kind, ref.Namespace, ref.Name, ref.UID}
	e.mu.Lock()
	defer e.mu.Unlock()
	if v, ok := e.talk.Get(k); ok {
		limit, isLimit := v.(*rate.Limiter)
		return isLimit && !limit.AllowN(now, 1)
	}
	limit := rate.NewLimiter(eventsPerSec, eventsBurst)
	e.talk.Add(k, limit)
	return !limit.AllowN(now, 1)
}

// Run writes events until ctx ends, then what is still queued, for a moment.
func (e *Events) Run(ctx context.Context, ready func()) error {
	// tooMuch bounds them
	correlator := record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{QPS: 1000, BurstSize: 1000})
	ready()
	for ctx.Err() == nil {
		select {
		case ev := <-e.queue:
			e.write(ctx, correlator, ev)
		case <-ctx.Done():
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), eventsFlushed)
	defer cancel()
	for last.Err() == nil {
		select {
		case ev := <-e.queue:
			e.write(last, correlator, ev)
		default:
			return nil
		}
	}
	return nil
}

// write stores one event, or the repetition of one.
func (e *Events) write(ctx context.Context, correlator *record.EventCorrelator, ev *corev1.Event) {
	result, err := correlator.EventCorrelate(ev)
	if err != nil {
		e.log.Error("cannot correlate event", "reason", ev.Reason, "err", err)
		return
	}
	if result.Skip {
		return
	}
	for try := range eventTries {
		stored, err := e.put(ctx, result)
		if err == nil {
			correlator.UpdateState(stored)
			return
		}
		// A status is the server's last word; anything else did not reach it.
		if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown || try == eventTries-1 {
			level := slog.LevelWarn
			if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				level = slog.LevelDebug // kubectl delete namespace: one for every object that ends
			}
			e.log.Log(ctx, level, "event not written", "object", ev.InvolvedObject.Name, "reason", ev.Reason, "err",
				err)
			return
		}
		t := time.NewTimer(eventPause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

func (e *Events) put(ctx context.Context, result *record.EventCorrelateResult) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	events := e.client.CoreV1().Events(result.Event.Namespace)
	if result.Event.Count > 1 {
		stored, err := events.PatchWithEventNamespaceWithContext(ctx, result.Event, result.Patch)
		if !apierrors.IsNotFound(err) { // it has expired: start over
			return stored, err
		}
	}
	result.Event.ResourceVersion = ""
	return events.CreateWithEventNamespaceWithContext(ctx, result.Event)
}
