// SPDX-License-Identifier: Apache-2.0

// Package keyed is a small work queue with one worker: a key is added for now or for a later time, each key is in the
// queue once, and a failed key is retried with back-off. The API server's own controllers use it. It knows nothing
// about the meaning of keys.
//
// Invariants:
//  1. Work on a key starts after its last Add, so it sees everything that changed before.
//  2. Adding a queued key again never delays it.
//  3. Without keys there is no timer.
package keyed

import (
	"container/heap"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"keelson/lib/signal"
)

// ErrAgain is returned by Config.Do to retry a key with the back-off of a failure, without a call of Config.Failed.
var ErrAgain = errors.New("to be done again")

// Config configures a Loop.
type Config[K comparable] struct {
	// Do processes a key. again above 0 adds the key for that time later; after an error the key is retried.
	Do func(ctx context.Context, key K) (again time.Duration, err error)
	// Compare orders keys that are due at the same time; nil: by their times.
	Compare func(a, b K) int
	// Pause is the pause before a retry. It doubles with each consecutive failure of the key, up to PauseMost (0: it is
	// constant).
	Pause, PauseMost time.Duration
	// Failed is called for failures, except those caused by the end of the loop; it may be nil.
	Failed func(key K, err error)
}

// Loop is the queue with its worker. Its methods may be called from any goroutine, also with locks held.
type Loop[K comparable] struct {
	config Config[K]
	wake   signal.Signal

	mu     sync.Mutex
	queue  queue[K]
	byKey  map[K]*entry[K]     // the queue's
	next   time.Time           // when Run's timer fires; zero: no timer
	pauses map[K]time.Duration // of keys that failed last
}

type entry[K comparable] struct {
	key K
	at  time.Time
	i   int // in the queue
}

// queue is a heap by time.
type queue[K comparable] []*entry[K]

func (q queue[K]) Len() int           { return len(q) }
func (q queue[K]) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q queue[K]) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].i = i
	q[j].i = j
}

func (q *queue[K]) Push(x any) {
	e, _ := x.(*entry[K])
	e.i = len(*q)
	*q = append(*q, e)
}

func (q *queue[K]) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return e
}

// New returns a Loop. It starts nothing.
func New[K comparable](c Config[K]) *Loop[K] {
	return &Loop[K]{
		config: c,
		wake:   signal.New(),
		byKey:  map[K]*entry[K]{},
		pauses: map[K]time.Duration{},
	}
}

// Add adds a key for now.
func (l *Loop[K]) Add(key K) { l.AddAfter(key, 0) }

// AddAfter adds a key for a later time, unless it is queued for an earlier one.
func (l *Loop[K]) AddAfter(key K, in time.Duration) {
	at := time.Now().Add(in)
	l.mu.Lock()
	switch e := l.byKey[key]; {
	case e == nil:
		e = &entry[K]{key: key, at: at}
		l.byKey[key] = e
		heap.Push(&l.queue, e)
	case !at.Before(e.at):
		l.mu.Unlock()
		return
	default:
		e.at = at
		heap.Fix(&l.queue, e.i)
	}
	early := l.next.IsZero() || at.Before(l.next)
	if early {
		l.next = at
	}
	l.mu.Unlock()
	if early {
		l.wake.Notify()
	}
}

// Forget removes a key from the queue.
func (l *Loop[K]) Forget(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.byKey[key]; e != nil {
		heap.Remove(&l.queue, e.i)
		delete(l.byKey, key)
	}
	delete(l.pauses, key)
}

// Len returns the number of queued keys.
func (l *Loop[K]) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue)
}

// Run processes keys until ctx is done; then it returns nil.
func (l *Loop[K]) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake.C():
		case <-timer.C:
		}
		for _, key := range l.take(time.Now()) {
			if ctx.Err() != nil {
				return nil
			}
			l.work(ctx, key)
		}
		timer.Stop()
		if wait, some := l.wait(time.Now()); some {
			timer.Reset(wait)
		}
	}
}

// take removes and returns the keys that are due.
func (l *Loop[K]) take(now time.Time) []K {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []K
	for len(l.queue) > 0 && !l.queue[0].at.After(now) {
		out = append(out, l.queue[0].key)
		delete(l.byKey, l.queue[0].key)
		heap.Pop(&l.queue)
	}
	if l.config.Compare != nil {
		slices.SortFunc(out, l.config.Compare)
	}
	return out
}

// wait returns the time until the next key is due.
func (l *Loop[K]) wait(now time.Time) (wait time.Duration, some bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		l.next = time.Time{}
		return 0, false
	}
	l.next = l.queue[0].at
	return max(l.next.Sub(now), 0), true
}

func (l *Loop[K]) work(ctx context.Context, key K) {
	again, err := l.config.Do(ctx, key)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		again = l.pause(key)
		if l.config.Failed != nil && !errors.Is(err, ErrAgain) {
			l.config.Failed(key, err)
		}
	} else {
		l.mu.Lock()
		delete(l.pauses, key)
		l.mu.Unlock()
	}
	if again > 0 {
		l.AddAfter(key, again)
	}
}

// pause returns the back-off of a key that has failed again.
func (l *Loop[K]) pause(key K) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := max(l.config.Pause, 1)
	if last := l.pauses[key]; last > 0 && l.config.PauseMost > 0 {
		next = min(2*last, l.config.PauseMost)
	}
	l.pauses[key] = next
	return next
}
