// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/client"
	"keelson/lib/keyed"
)

// Retry delays after a failed pass: doubled from the first to the last.
const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = 2 * time.Minute
)

// ErrStale ends a pass whose cache is older than the controller's own writes: it is retried soon.
var ErrStale = errors.New("the cache is behind")

// Loop is a work queue of keys (Key for most controllers): informer handlers add them, workers call sync for each. A
// failed sync is retried with back-off.
type Loop[K comparable] struct {
	name    string
	sync    func(ctx context.Context, key K) error
	log     *slog.Logger
	queue   *keyed.Loop[K]
	synced  []cache.DoneChecker
	begun   atomic.Int64 // passes
	metrics *QueueMetrics

	retries        prometheus.Counter
	waited, worked prometheus.Observer
}

// NewLoop returns a loop that Run starts. There is at least one worker.
func NewLoop[K comparable](queue Queue, workers int, log *slog.Logger, sync func(
	ctx context.Context, key K,
) error,
) *Loop[K] {
	metrics := queue.Metrics
	if metrics == nil {
		metrics = NewQueueMetrics()
	}
	l := &Loop[K]{
		name:    queue.Name,
		sync:    sync,
		log:     log,
		metrics: metrics,
		retries: metrics.retries.WithLabelValues(queue.Name),
		waited:  metrics.waited.WithLabelValues(queue.Name),
		worked:  metrics.worked.WithLabelValues(queue.Name),
	}
	l.queue = keyed.New(keyed.Config[K]{
		Do:        l.pass,
		Workers:   workers,
		Pause:     firstRetry,
		PauseMost: lastRetry,
		Failed:    l.failed,
	})
	return l
}

// On registers h with the informer; Run waits until h has received the initial objects.
func On[T any, K comparable](l *Loop[K], inf cache.SharedInformer, h Handlers[T]) error {
	s, err := Watch(inf, h)
	if err != nil {
		return fmt.Errorf("watch for %s: %w", l.name, err)
	}
	l.synced = append(l.synced, s)
	return nil
}

// WaitFor makes Run wait for s as well.
func (l *Loop[K]) WaitFor(s ...cache.DoneChecker) { l.synced = append(l.synced, s...) }

// KeyOf returns an object's key.
func KeyOf(o metav1.Object) Key { return Key{Namespace: o.GetNamespace(), Name: o.GetName()} }

// Add queues key now.
func (l *Loop[K]) Add(key K) { l.queue.Add(key) }

// AddAfter queues key after d; the earliest of several calls counts.
func (l *Loop[K]) AddAfter(key K, d time.Duration) { l.queue.AddAfter(key, max(d, 0)) }

// QueuedAt returns, in a running sync, when the first of the changes that led to it was delivered, or when the timer
// was due.
func (l *Loop[K]) QueuedAt(key K) time.Time { return l.queue.DueSince(key) }

// Run waits for the caches, calls ready, and processes keys until ctx is done.
func (l *Loop[K]) Run(ctx context.Context, ready func()) error {
	defer l.metrics.track(l)()
	if !cache.WaitFor(ctx, "", l.synced...) {
		return ctx.Err()
	}
	ready()
	return l.queue.Run(ctx)
}

// RunWith is Run with informers of the controller's own, which end with the loop.
func (l *Loop[K]) RunWith(ctx context.Context, ready func(), own ...*client.Informers) error {
	for _, informers := range own {
		informers.StartWithContext(ctx)
		defer informers.Shutdown()
	}
	return l.Run(ctx, ready)
}

// pass measures one sync.
func (l *Loop[K]) pass(ctx context.Context, key K) (time.Duration, error) {
	l.begun.Add(1)
	began := time.Now()
	l.waited.Observe(began.Sub(l.queue.DueSince(key)).Seconds())
	err := l.sync(ctx, key)
	l.worked.Observe(time.Since(began).Seconds())
	return 0, err
}

func (l *Loop[K]) failed(key K, err error) {
	l.retries.Inc()
	level := slog.LevelWarn
	if apierrors.IsConflict(err) || errors.Is(err, ErrStale) {
		level = slog.LevelDebug // a conflict or a stale cache: the retry reads the newer state
	}
	l.log.Log(context.Background(), level, "pass will be retried", "controller", l.name, "key", key, "tries",
		l.queue.Failures(key), "err", err)
}
