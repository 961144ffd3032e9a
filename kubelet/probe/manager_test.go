// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// script answers attempts in turn; the last answer stays.
type script struct {
	mu      sync.Mutex
	answers []Outcome
	at      []time.Duration
	begin   time.Time
}

func (s *script) Probe(context.Context, Target) Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = append(s.at, time.Since(s.begin))
	o := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	return o
}

type recorder struct {
	mu      sync.Mutex
	changes []string
	lasts   []string
	failed  int
	begin   time.Time
}

func (e *recorder) Tried(Target, Outcome) {}

func (e *recorder) Failed(Target, Outcome) {
	e.mu.Lock()
	e.failed++
	e.mu.Unlock()
}

func (e *recorder) StillFailing(_ Target, o Outcome, _ time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lasts = append(e.lasts, fmt.Sprintf("%d in %s", o.Times, o.For))
}

func (e *recorder) Changed(t Target, r Result, _ Outcome, _ time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.changes = append(e.changes, fmt.Sprintf("%s %d at %s", t.Kind, r, time.Since(e.begin)))
}

var (
	yes = Outcome{OK: true}
	no  = Outcome{}

	refused = Outcome{Refused: true}
)

func TestThresholds(t *testing.T) {
	tests := map[string]struct {
		kind    Kind
		spec    corev1.Probe
		answers []Outcome
		want    []string
	}{
		"readiness answers at once": {
			Readiness, corev1.Probe{PeriodSeconds: 10}, []Outcome{yes}, []string{"Readiness 1 at 0s"},
		},
		"initial delay": {
			Readiness,
			corev1.Probe{PeriodSeconds: 10, InitialDelaySeconds: 7},
			[]Outcome{yes},
			[]string{"Readiness 1 at 7s"},
		},
		"readiness says no at once": {
			Readiness,
			corev1.Probe{PeriodSeconds: 10, FailureThreshold: 3},
			[]Outcome{no, yes},
			[]string{"Readiness 2 at 0s", "Readiness 1 at 10s"},
		},
		"success threshold": {
			Readiness,
			corev1.Probe{PeriodSeconds: 1, SuccessThreshold: 3},
			[]Outcome{yes},
			[]string{"Readiness 1 at 2s"},
		},
		"liveness needs three failures": {
			Liveness,
			corev1.Probe{PeriodSeconds: 5, FailureThreshold: 3},
			[]Outcome{yes, no, no, yes, no, no, no},
			[]string{"Liveness 1 at 0s", "Liveness 2 at 30s"},
		},
		"an attempt that could not run": {
			Liveness,
			corev1.Probe{PeriodSeconds: 5, FailureThreshold: 1},
			[]Outcome{{Err: errors.New("no such container")}, no},
			[]string{"Liveness 2 at 5s"},
		},
		"not listening yet": {
			Readiness,
			corev1.Probe{PeriodSeconds: 10},
			[]Outcome{refused, refused, refused, yes},
			[]string{"Readiness 1 at 35ms"},
		},
		"startup: not counted": {
			Startup,
			corev1.Probe{PeriodSeconds: 10, FailureThreshold: 1},
			[]Outcome{refused, refused, yes},
			[]string{"Startup 1 at 15ms"},
		},
		"liveness: counted": {
			Liveness,
			corev1.Probe{PeriodSeconds: 10, FailureThreshold: 1},
			[]Outcome{refused, yes},
			[]string{"Liveness 2 at 0s", "Liveness 1 at 10s"},
		},
		"never listening": {
			Readiness, corev1.Probe{PeriodSeconds: 10}, []Outcome{refused}, []string{"Readiness 2 at 2.065s"},
		},
		"startup succeeds after failing": {
			Startup,
			corev1.Probe{PeriodSeconds: 2, FailureThreshold: 5},
			[]Outcome{no, no, yes},
			[]string{"Startup 1 at 4s"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{answers: tt.answers, begin: time.Now()}
				e := &recorder{begin: time.Now()}
				manager := NewManager(s, e)
				target := Target{
					Key:       Key{"id", tt.kind},
					Pod:       &corev1.Pod{},
					Container: &corev1.Container{},
					Probe:     &tt.spec,
					Started:   time.Now(),
				}
				manager.Sync(t.Context(), "pod", []Target{target}, func(string) bool { return true })
				time.Sleep(40 * time.Second)
				synctest.Wait()
				manager.Close()
				if !slices.Equal(e.changes, tt.want) {
					t.Errorf("got %q, want %q", e.changes, tt.want)
				}
			})
		})
	}
}

// TestFailingOn: repeated failures of a probe are reported more and more rarely, so that a pod that is never ready
// makes few marks.
func TestFailingOn(t *testing.T) {
	for name, tt := range map[string]struct {
		answers []Outcome
		want    []string
	}{
		"never":     {[]Outcome{no}, []string{"2 in 10s", "4 in 30s", "8 in 1m10s", "16 in 2m30s", "32 in 5m10s"}},
		"now again": {[]Outcome{no, no, yes, no, yes, no, no, yes}, []string{"2 in 10s", "2 in 10s"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{answers: tt.answers, begin: time.Now()}
			e := &recorder{begin: time.Now()}
			m := NewManager(s, e)
			target := Target{
				Key:       Key{"id", Readiness},
				Pod:       &corev1.Pod{},
				Container: &corev1.Container{},
				Probe:     &corev1.Probe{PeriodSeconds: 10, FailureThreshold: 3},
				Started:   time.Now(),
			}
			m.Sync(t.Context(), "pod", []Target{target}, func(string) bool { return true })
			time.Sleep(10 * time.Minute)
			m.Close()
			if !slices.Equal(e.lasts, tt.want) {
				t.Errorf("%s: got %q, want %q", name, e.lasts, tt.want)
			}
		})
	}
}

func TestSyncStopsProbesAndForgetsResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{answers: []Outcome{yes}, begin: time.Now()}
		manager := NewManager(s, &recorder{})
		key := Key{"id", Liveness}
		target := Target{
			Key:       key,
			Pod:       &corev1.Pod{},
			Container: &corev1.Container{},
			Probe:     &corev1.Probe{PeriodSeconds: 1},
			Started:   time.Now(),
		}
		manager.Sync(t.Context(), "pod", []Target{target}, func(string) bool { return true })
		time.Sleep(1500 * time.Millisecond)
		if got := manager.Result(key); got != Success {
			t.Errorf("result: got %d, want success", got)
		}
		manager.Sync(t.Context(), "pod", nil, func(string) bool { return false })
		time.Sleep(10 * time.Second)
		if len(s.at) != 2 || manager.Result(key) != Unknown {
			t.Errorf("after the container is gone: %d attempts, result %d; want 2, unknown", len(s.at),
				manager.Result(key))
		}
		manager.Close()
	})
}

func TestProbesOfOldContainersAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := time.Now()
		time.Sleep(time.Hour)
		s := &script{answers: []Outcome{yes}, begin: time.Now()}
		manager := NewManager(s, &recorder{})
		for i := range 20 {
			manager.Sync(t.Context(), fmt.Sprint(i), []Target{{
				Key:       Key{fmt.Sprint(i), Liveness},
				Pod:       &corev1.Pod{},
				Container: &corev1.Container{},
				Probe:     &corev1.Probe{PeriodSeconds: 10},
				Started:   started,
			}}, func(string) bool { return true })
		}
		time.Sleep(10*time.Second - 1) // within the period each is asked once
		manager.Close()
		slices.Sort(s.at)
		if len(s.at) != 20 || s.at[19]-s.at[0] < time.Second {
			t.Errorf("first attempts at %v; want 20, spread over the period", s.at)
		}
	})
}

// slow is a prober whose attempts take a while.
type slow struct {
	script
	takes time.Duration
}

func (s *slow) Probe(ctx context.Context, t Target) Outcome {
	out := s.script.Probe(ctx, t)
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
	}
	return out
}

// TestAttemptsBeginEveryPeriod: how long an attempt takes does not delay the next one, unless it takes longer than the
// period.
func TestAttemptsBeginEveryPeriod(t *testing.T) {
	for takes, want := range map[time.Duration][]time.Duration{
		0:               {0, 5 * time.Second, 10 * time.Second, 15 * time.Second, 20 * time.Second},
		4 * time.Second: {0, 5 * time.Second, 10 * time.Second, 15 * time.Second, 20 * time.Second},
		7 * time.Second: {0, 7 * time.Second, 14 * time.Second, 21 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &slow{script: script{answers: []Outcome{yes}, begin: time.Now()}, takes: takes}
			manager := NewManager(s, &recorder{})
			manager.Sync(t.Context(), "pod", []Target{{
				Key:       Key{"id", Liveness},
				Pod:       &corev1.Pod{},
				Container: &corev1.Container{},
				Probe:     &corev1.Probe{PeriodSeconds: 5, TimeoutSeconds: 60},
				Started:   time.Now(),
			}}, func(string) bool { return true })
			time.Sleep(22 * time.Second)
			manager.Close()
			if !slices.Equal(s.at, want) {
				t.Errorf("attempts that take %v began at %v, want %v", takes, s.at, want)
			}
		})
	}
}

// TestResultsEndWithTheirContainers: a thousand runs of a container leave nothing, also of a startup probe, which ends
// long before its container, and of what was recalled.
func TestResultsEndWithTheirContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		manager := NewManager(&script{answers: []Outcome{yes}, begin: time.Now()}, &recorder{})
		defer manager.Close()
		run := func(pod, id string) {
			all := func(string) bool { return true }
			startup := Target{
				Key:       Key{id, Startup},
				Pod:       &corev1.Pod{},
				Container: &corev1.Container{},
				Probe:     &corev1.Probe{PeriodSeconds: 1},
				Started:   time.Now(),
			}
			manager.Sync(t.Context(), pod, []Target{startup}, all)
			time.Sleep(1500 * time.Millisecond)
			manager.Recall(pod, Key{id, Readiness})
			manager.Sync(t.Context(), pod, nil, all)
			if manager.Result(startup.Key) != Success {
				t.Fatalf("the result of %s went before its container", id)
			}
		}
		for i := range 1000 {
			run("pod", fmt.Sprint("container-", i))
			manager.Sync(t.Context(), "pod", nil, func(string) bool { return false })
		}
		if n := len(manager.results); n != 0 {
			t.Errorf("%d results of removed containers", n)
		}
		run("other", "last")
		manager.Forget("pod")
		manager.Forget("other")
		if n := len(manager.results) + len(manager.owned) + len(manager.pods); n != 0 {
			t.Errorf("%d entries of pods that have gone", n)
		}
	})
}
