// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
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
	workers int
	sync    func(ctx context.Context, key K) error
	log     *slog.Logger
	queue   workqueue.TypedRateLimitingInterface[K]
	synced  []cache.DoneChecker

	mu         sync.Mutex
	queuedAt   map[K]time.Time // when the change that queued the key was delivered
	processing map[K]time.Time // the same, for keys being processed
	// startedAt is when the processing of each key started.
	startedAt map[K]time.Time
}

// NewLoop returns a loop that Run starts. There is at least one worker.
func NewLoop[K comparable](name string, workers int, log *slog.Logger, sync func(
	ctx context.Context, key K,
) error,
) *Loop[K] {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[K](firstRetry, lastRetry)
	// The queues wrap each other, and each gets its own name and metrics; with a shared configuration all would count
	// the same.
	plain := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[K]{
		Name:            name,
		MetricsProvider: queues(),
		Clock:           noTickerClock{},
	})
	delaying := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[K]{
		Name:            name,
		MetricsProvider: queues(),
		Queue:           plain,
		// it has its own timer for waiting keys and would otherwise also tick every 10 s
		Clock: noTickerClock{},
	})
	return &Loop[K]{
		name:    name,
		workers: max(workers, 1),
		sync:    sync,
		log:     log,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[K]{
			DelayingQueue: delaying,
		}),
		queuedAt:   map[K]time.Time{},
		processing: map[K]time.Time{},
		startedAt:  map[K]time.Time{},
	}
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
func (l *Loop[K]) Add(key K) {
	l.mu.Lock()
	if _, ok := l.queuedAt[key]; !ok {
		l.queuedAt[key] = time.Now()
	}
	l.mu.Unlock()
	l.queue.Add(key)
}

// AddAfter queues key after d; the earliest of several calls counts.
func (l *Loop[K]) AddAfter(key K, d time.Duration) {
	if d <= 0 {
		l.Add(key)
		return
	}
	l.queue.AddAfter(key, d)
}

// QueuedAt returns, in a running sync, when the first of the changes that led to it was delivered; now, if it was a
// timer.
func (l *Loop[K]) QueuedAt(key K) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t, ok := l.processing[key]; ok {
		return t
	}
	return time.Now()
}

// Run waits for the caches, calls ready, and processes keys until ctx is done.
func (l *Loop[K]) Run(ctx context.Context, ready func()) error {
	defer l.queue.ShutDown()
	defer queues().track(l)()
	if !cache.WaitFor(ctx, "", l.synced...) {
		return ctx.Err()
	}
	var wg sync.WaitGroup
	for range l.workers {
		wg.Go(func() {
			for l.processNextItem(ctx) {
			}
		})
	}
	ready()
	<-ctx.Done()
	l.queue.ShutDown()
	wg.Wait()
	return nil
}

// unfinished is the time so far of the keys being processed, total and longest.
func (l *Loop[K]) unfinished(now time.Time) (name string, all, longest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.startedAt {
		took := now.Sub(t)
		all = all + took
		longest = max(longest, took)
	}
	return l.name, all, longest
}

func (l *Loop[K]) processNextItem(ctx context.Context) bool {
	key, quit := l.queue.Get()
	if quit {
		return false
	}
	defer l.queue.Done(key)
	l.mu.Lock()
	if t, ok := l.queuedAt[key]; ok {
		l.processing[key] = t
		delete(l.queuedAt, key)
	}
	l.startedAt[key] = time.Now()
	l.mu.Unlock()
	err := l.sync(ctx, key)
	l.mu.Lock()
	delete(l.processing, key)
	delete(l.startedAt, key)
	l.mu.Unlock()
	switch {
	case err == nil:
		l.queue.Forget(key)
	case ctx.Err() != nil:
		return true
	default:
		level := slog.LevelWarn
		if apierrors.IsConflict(err) || errors.Is(err, ErrStale) {
			level = slog.LevelDebug // a conflict or a stale cache: the retry reads the newer state
		}
		l.log.Log(ctx, level, "pass will be retried", "controller", l.name, "key", key, "tries",
			l.queue.NumRequeues(key)+1, "err", err)
		l.queue.AddRateLimited(key)
	}
	return true
}
