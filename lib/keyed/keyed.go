// SPDX-License-Identifier: Apache-2.0

// Package keyed is a loop that works on keys, one after the other: a key is asked for now or at a time, each is in the queue once, and
// one whose work failed comes again after a pause. The API server's own controllers run on it; it knows nothing of what a key stands for.
//
// Invariants:
//  1. Work on a key begins after the last time it was asked for: who changes something and then asks has it seen.
//  2. A key that waits for a time is never put off by being asked for again, only brought forward.
//  3. Without keys there is no timer.
package keyed

import (
	"container/heap"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// ErrAgain is what work answers that has not failed and is to be done again after the pause of a failure. Nobody is told of it.
var ErrAgain = errors.New("to be done again")

// Config is what a loop works with.
type Config[K comparable] struct {
	// Do works on a key. again, where it is above 0, is when it is to be looked at next; an error is tried again after a pause.
	Do func(ctx context.Context, key K) (again time.Duration, err error)
	// Compare orders the keys whose time has come when the loop looks; nil: by their times.
	Compare func(a, b K) int
	// Pause goes before another try; it doubles with every failure of the key in a row, up to PauseMost (0: it stays the same).
	Pause, PauseMost time.Duration
	// Failed is told of failures, but not of those that the end of the loop caused; nil: nobody is.
	Failed func(key K, err error)
}

// Loop is a loop. Its methods may be called from any goroutine, also with locks held.
type Loop[K comparable] struct {
	config Config[K]
	wake   chan struct{} // has room for one

	mu     sync.Mutex
	queue  queue[K]
	byKey  map[K]*entry[K]     // the queue's
	next   time.Time           // when Run looks at the queue by itself; zero: not before it is woken
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
	q[i].i, q[j].i = i, j
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

// New returns a loop that Run starts.
func New[K comparable](c Config[K]) *Loop[K] {
	return &Loop[K]{config: c, wake: make(chan struct{}, 1), byKey: map[K]*entry[K]{}, pauses: map[K]time.Duration{}}
}

// Add asks for a key now.
func (l *Loop[K]) Add(key K) { l.AddAfter(key, 0) }

// AddAfter asks for a key in a while, or earlier if it was asked for earlier.
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
	if !early {
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Forget takes a key out of the queue.
func (l *Loop[K]) Forget(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.byKey[key]; e != nil {
		heap.Remove(&l.queue, e.i)
		delete(l.byKey, key)
	}
	delete(l.pauses, key)
}

// Len is how many keys wait, for whatever time.
func (l *Loop[K]) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue)
}

// Run works until ctx ends; then it returns nil.
func (l *Loop[K]) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
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

// take empties the queue of the keys whose time has come.
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

// wait is how long the next key has time.
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

// pause is how long a key waits that has failed once more.
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
