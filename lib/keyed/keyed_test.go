// SPDX-License-Identifier: Apache-2.0

package keyed_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"keelson/lib/keyed"
)

// log notes when which key was worked on.
type log struct {
	start time.Time
	mu    sync.Mutex // guards lines
	lines []string
}

func (l *log) note(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf("%s@%v", key, time.Since(l.start)))
}

// run runs a loop until the bubble's end and returns what stops it.
func run(t *testing.T, l *keyed.Loop[string]) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }() // ends with ctx
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		done <- nil
	}
	t.Cleanup(stop)
	return stop
}

// count is the number of notes since the last check.
func (l *log) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lines)
}

// sort orders the notes: workers of the same moment are in no order.
func (l *log) sort() {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.lines)
}

func wants(t *testing.T, got *log, want string) {
	t.Helper()
	synctest.Wait()
	got.mu.Lock()
	defer got.mu.Unlock()
	if text := strings.Join(got.lines, " "); text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	got.lines = nil
}

// TestTimes: keys are worked on when they are due, at once in their order, each once however often it was asked for,
// and never later than first asked.
func TestTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := &log{start: time.Now()}
		l := keyed.New(keyed.Config[string]{
			Compare: strings.Compare,
			Do: func(_ context.Context, key string) (time.Duration, error) {
				got.note(key)
				if key == "again" && got.count() < 3 {
					return time.Minute, nil
				}
				return 0, nil
			},
		})
		for _, key := range []string{"c", "a", "b", "a"} {
			l.Add(key)
		}
		l.AddAfter("d", 2*time.Second)
		l.AddAfter("d", time.Second)
		l.AddAfter("d", 3*time.Second)
		l.AddAfter("e", time.Second)
		l.Forget("e")
		run(t, l)
		wants(t, got, "a@0s b@0s c@0s")
		if l.Len() != 1 {
			t.Errorf("%d keys wait, want 1", l.Len())
		}
		time.Sleep(time.Hour)
		wants(t, got, "d@1s")
		l.Add("again")
		time.Sleep(time.Hour)
		wants(t, got, "again@1h0m0s again@1h1m0s again@1h2m0s")
		if l.Len() != 0 {
			t.Errorf("%d keys wait, want none", l.Len())
		}
	})
}

// TestFailures: a key that fails comes again after pauses that grow; one that succeeded starts over. ErrAgain is no
// failure.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := &log{start: time.Now()}
		results := []error{}
		failures := 0
		l := keyed.New(keyed.Config[string]{
			Pause:     time.Second,
			PauseMost: 3 * time.Second,
			Failed:    func(string, error) { failures++ },
			Do: func(_ context.Context, key string) (time.Duration, error) {
				got.note(key)
				if len(results) == 0 {
					return 0, nil
				}
				err := results[0]
				results = results[1:]
				return 0, err
			},
		})
		results = []error{
			errors.New("no"), keyed.ErrAgain, errors.New("no"), fmt.Errorf("not yet: %w", keyed.ErrAgain), nil,
		}
		l.Add("a")
		run(t, l)
		time.Sleep(time.Hour)
		wants(t, got, "a@0s a@1s a@3s a@6s a@9s")
		if failures != 2 {
			t.Errorf("%d failures were reported, want 2", failures)
		}
		results = []error{errors.New("no")}
		l.Add("a")
		time.Sleep(time.Hour)
		wants(t, got, "a@1h0m0s a@1h0m1s")
	})
}

// TestAskedForMeanwhile: a key that is asked for while it is worked on is worked on once more.
func TestAskedForMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := &log{start: time.Now()}
		var l *keyed.Loop[string]
		l = keyed.New(keyed.Config[string]{Do: func(_ context.Context, key string) (time.Duration, error) {
			got.note(key)
			if got.count() == 1 {
				l.Add(key)
				l.Add(key)
			}
			return 0, nil
		}})
		l.Add("a")
		run(t, l)
		wants(t, got, "a@0s a@0s")
	})
}

// TestWorkers: several workers work on different keys at once and on none twice at once. One that is busy delays no key
// that another is free for.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := &log{start: time.Now()}
		takes := map[string]time.Duration{"long": time.Hour}
		var l *keyed.Loop[string]
		l = keyed.New(keyed.Config[string]{
			Workers: 3,
			Compare: strings.Compare,
			Do: func(ctx context.Context, key string) (time.Duration, error) {
				got.note(key)
				if key == "a" && time.Since(got.start) == 0 {
					l.Add(key) // it waits until this pass is over, though a worker is free
				}
				select {
				case <-ctx.Done():
				case <-time.After(max(takes[key], time.Second)):
				}
				return 0, nil
			},
		})
		l.Add("b")
		l.Add("a")
		run(t, l)
		time.Sleep(time.Minute)
		got.sort()
		wants(t, got, "a@0s a@1s b@0s")

		for _, key := range []string{"f", "e", "d", "c"} {
			l.Add(key)
		}
		time.Sleep(time.Minute)
		got.sort()
		wants(t, got, "c@1m0s d@1m0s e@1m0s f@1m1s")

		l.Add("long")
		l.AddAfter("later", time.Minute)
		l.AddAfter("soon", time.Second)
		time.Sleep(2 * time.Minute)
		wants(t, got, "long@2m0s soon@2m1s later@3m0s")
	})
}

// TestEnd: what the end of the loop interrupts is no failure, and no more keys are begun.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begun []string
		l := keyed.New(keyed.Config[string]{
			Compare: strings.Compare,
			Failed:  func(key string, err error) { t.Errorf("%s failed: %v", key, err) },
			Do: func(ctx context.Context, key string) (time.Duration, error) {
				begun = append(begun, key)
				<-ctx.Done()
				return 0, ctx.Err()
			},
		})
		l.Add("a")
		l.Add("b")
		stop := run(t, l)
		synctest.Wait()
		stop()
		if !slices.Equal(begun, []string{"a"}) {
			t.Errorf("begun: %v, want a alone", begun)
		}
	})
}

// TestLoad: a loop reports how many keys wait, since when a key is due, how long work takes, and how often it failed.
func TestLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		finish := make(chan error)
		due := map[string]time.Duration{}
		var l *keyed.Loop[string]
		l = keyed.New(keyed.Config[string]{
			Do: func(_ context.Context, key string) (time.Duration, error) {
				due[key] = l.DueSince(key).Sub(start)
				return 0, <-finish
			},
			Workers: 2,
			Pause:   time.Hour,
		})
		check := func(want keyed.Load) {
			t.Helper()
			synctest.Wait()
			if got := l.Load(time.Now()); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		}
		l.AddAfter("timer", 2*time.Second)
		l.AddAfter("later", time.Hour)
		l.Add("a")
		l.Add("a")
		check(keyed.Load{Due: 1})
		time.Sleep(time.Second)
		run(t, l)
		check(keyed.Load{})
		time.Sleep(3 * time.Second)
		l.Add("waits")
		check(keyed.Load{Due: 1, Unfinished: 5 * time.Second, Longest: 3 * time.Second})
		if due["a"] != 0 || due["timer"] != 2*time.Second {
			t.Errorf("due %v, want a at once and the timer after 2 s", due)
		}
		finish <- errors.New("broken")
		finish <- errors.New("broken")
		finish <- nil
		synctest.Wait()
		if a, waits := l.Failures("a"), l.Failures("waits"); a != 1 || waits != 0 {
			t.Errorf("%d failures of a and %d of the key that waited, want 1 and 0", a, waits)
		}
	})
}
