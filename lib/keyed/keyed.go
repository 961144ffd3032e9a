// SPDX-License-Identifier: Apache-2.0

// Package keyed is a small work queue with one or several workers: a key is added for now or for a later time, each
// key is in the queue once, and a failed key is retried with back-off. The API server's own controllers, the kubelet,
// the simulator and the scheduler use it. It knows nothing about the meaning of keys.
//
// Invariants:
//  1. Work on a key starts after its last Add, so it sees everything that changed before.
//  2. Adding a queued key again never delays it.
//  3. Without keys there is no timer.
//  4. One worker at a time works on a key. A key that is added meanwhile waits for it, and is worked on once more.
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
	// Workers is how many keys may be worked on at once; 0: one.
	Workers int
	// Compare orders keys that are due at the same time; nil: by their times.
	Compare func(a, b K) int
	// Pause is the pause before a retry. It doubles with each consecutive failure of the key, up to PauseMost (0: it is
	// constant).
	Pause, PauseMost time.Duration
	// Failed is called for failures, except those caused by the end of the loop; it may be nil.
	Failed func(key K, err error)
}

// Loop is the queue with its workers. Its methods may be called from any goroutine, also with locks held.
type Loop[K comparable] struct {
	config Config[K]
	wake   signal.Signal

	mu    sync.Mutex
	queue queue[K]        // keys for later
	due   []*entry[K]     // keys for now, in the order of the work
	byKey map[K]*entry[K] // those of queue and due
	busy  map[K]work      // keys that are worked on
	next  time.Time       // when a worker that waits looks again by itself; zero: it must be woken
	// failures are the consecutive failures of keys.
	failures map[K]int
}

type entry[K comparable] struct {
	key K
	at  time.Time
	i   int // in the queue; isDue: it is in due
}

// work is when a key that is worked on was due, and since when it is worked on.
type work struct{ due, began time.Time }

// Load is what a loop has to do at some time.
type Load struct {
	// Due is the number of keys that wait for a worker.
	Due int
	// Unfinished is the time that workers have spent on the keys they are working on, Longest that of one key.
	Unfinished, Longest time.Duration
}

const isDue = -1

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
		config:   c,
		wake:     signal.New(),
		byKey:    map[K]*entry[K]{},
		busy:     map[K]work{},
		failures: map[K]int{},
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
	case e.i == isDue || !at.Before(e.at):
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
	switch e := l.byKey[key]; {
	case e == nil:
	case e.i == isDue:
		l.due = slices.DeleteFunc(l.due, func(other *entry[K]) bool { return other == e })
	default:
		heap.Remove(&l.queue, e.i)
	}
	delete(l.byKey, key)
	delete(l.failures, key)
}

// Len returns the number of queued keys.
func (l *Loop[K]) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) + len(l.due)
}

// DueSince returns, during Config.Do, the time at which the key was due: that of the first Add, or of a timer.
func (l *Loop[K]) DueSince(key K) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.busy[key].due
}

// Failures returns the number of consecutive failures of a key.
func (l *Loop[K]) Failures(key K) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failures[key]
}

// Load returns the load at the time now.
func (l *Loop[K]) Load(now time.Time) Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	load := Load{Due: len(l.due)}
	for _, e := range l.queue {
		if !e.at.After(now) {
			load.Due++
		}
	}
	for _, w := range l.busy {
		took := now.Sub(w.began)
		load.Unfinished = load.Unfinished + took
		load.Longest = max(load.Longest, took)
	}
	return load
}

// Run processes keys until ctx is done and all workers have ended; then it returns nil.
func (l *Loop[K]) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	for range max(l.config.Workers, 1) {
		workers.Go(func() { l.process(ctx) })
	}
	workers.Wait()
	return nil
}

// process is one worker.
func (l *Loop[K]) process(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		key, found, wait := l.begin(time.Now())
		if found {
			l.work(ctx, key)
			continue
		}
		timer.Stop()
		if wait > 0 {
			timer.Reset(wait)
		}
		select {
		case <-ctx.Done():
		case <-l.wake.C():
		case <-timer.C:
		}
	}
}

// begin returns the next key to be worked on. If there is none, wait is the time until one is due; 0: there are no
// keys.
func (l *Loop[K]) begin(now time.Time) (key K, found bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.idleLocked()
	if at < 0 {
		l.takeLocked(now)
		at = l.idleLocked()
	}
	if at < 0 {
		l.next = time.Time{}
		if len(l.queue) > 0 {
			l.next = l.queue[0].at
			wait = max(l.next.Sub(now), 1)
		}
		return key, false, wait
	}
	e := l.due[at]
	copy(l.due[1:at+1], l.due[:at]) // the few that others work on, so that a long queue costs nothing
	clear(l.due[:1])
	l.due = l.due[1:]
	delete(l.byKey, e.key)
	l.busy[e.key] = work{due: e.at, began: now}
	// This worker looks no more until it is done. The next one takes over what is left, and the timer.
	l.next = time.Time{}
	if l.config.Workers > 1 && len(l.due)+len(l.queue) > 0 {
		l.wake.Notify()
	}
	return e.key, true, 0
}

// idleLocked returns the index of the first due key that no worker works on; below 0: there is none.
func (l *Loop[K]) idleLocked() int {
	return slices.IndexFunc(l.due, func(e *entry[K]) bool {
		_, busy := l.busy[e.key]
		return !busy
	})
}

// takeLocked moves the keys that are due to the end of due.
func (l *Loop[K]) takeLocked(now time.Time) {
	var taken []*entry[K]
	for len(l.queue) > 0 && !l.queue[0].at.After(now) {
		e := l.queue[0]
		heap.Pop(&l.queue)
		e.i = isDue
		taken = append(taken, e)
	}
	if l.config.Compare != nil {
		slices.SortFunc(taken, func(a, b *entry[K]) int { return l.config.Compare(a.key, b.key) })
	}
	l.due = append(l.due, taken...)
}

func (l *Loop[K]) work(ctx context.Context, key K) {
	again, err := l.config.Do(ctx, key)
	l.mu.Lock()
	delete(l.busy, key)
	l.mu.Unlock()
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
		delete(l.failures, key)
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
	l.failures[key]++
	next := max(l.config.Pause, 1)
	for range l.failures[key] - 1 {
		if next >= l.config.PauseMost {
			break
		}
		next = min(2*next, l.config.PauseMost)
	}
	return next
}
