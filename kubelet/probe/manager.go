// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Outcome is the outcome of one attempt.
type Outcome struct {
	OK     bool
	Warn   bool   // succeeded with a warning
	Output string // "HTTP probe failed with statuscode: 500"
	Brief  string // "500", for marks
	Err    error  // the probe could not run: the attempt does not count
	// Refused: the port is closed. A container that has just started may open it soon.
	Refused bool
	// Times is the number of consecutive failures including this one, and For their duration; 0: this attempt did not
	// fail.
	Times int
	For   time.Duration
}

// Prober makes one attempt. It returns when ctx is over.
type Prober interface {
	Probe(ctx context.Context, t Target) Outcome
}

// Listener is called about attempts, on the probe's goroutine.
type Listener interface {
	// Tried is called for every attempt that counts.
	Tried(t Target, o Outcome)
	// Failed is called for every attempt that did not succeed.
	Failed(t Target, o Outcome)
	// Changed is called when the result of a probe has changed. The pod's worker should be woken.
	Changed(t Target, r Result, o Outcome, took time.Duration)
	// StillFailing is called for repeated failures without a change of the result: for the second consecutive one, the
	// fourth, the eighth and so on.
	StillFailing(t Target, o Outcome, took time.Duration)
}

// Manager runs the probes of all pods.
type Manager struct {
	prober   Prober
	listener Listener
	begun    time.Time
	wg       sync.WaitGroup

	mu      sync.Mutex
	pods    map[string]map[Key]*worker
	results map[Key]Result
	// owned are the keys of each pod that may have a result, also of probes that have ended, as startup probes do.
	owned  map[string]map[Key]bool
	closed bool
}

type worker struct {
	target Target
	cancel context.CancelFunc
}

// NewManager returns a manager without probes.
func NewManager(p Prober, l Listener) *Manager {
	return &Manager{
		prober:   p,
		listener: l,
		begun:    time.Now(),
		pods:     map[string]map[Key]*worker{},
		results:  map[Key]Result{},
		owned:    map[string]map[Key]bool{},
	}
}

// Result returns the current result of a probe.
func (m *Manager) Result(k Key) Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.results[k]
}

// Recall sets a result that an earlier run of the kubelet had found: success, until the probe says otherwise.
func (m *Manager) Recall(uid string, k Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ownLocked(uid, k)
	if m.results[k] == Unknown {
		m.results[k] = Success
	}
}

func (m *Manager) ownLocked(uid string, k Key) {
	if m.owned[uid] == nil {
		m.owned[uid] = map[Key]bool{}
	}
	m.owned[uid][k] = true
}

// Sync starts and stops probes so that exactly those of targets run for the pod. The started probes end with ctx. keep
// reports whose results are still needed.
func (m *Manager) Sync(ctx context.Context, uid string, targets []Target, keep func(containerID string) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	have := m.pods[uid]
	want := make(map[Key]Target, len(targets))
	for _, t := range targets {
		want[t.Key] = t
	}
	for k, w := range have {
		t, ok := want[k]
		if !ok || t.PodIP != w.target.PodIP {
			w.cancel()
			delete(have, k)
		}
	}
	for k := range m.owned[uid] {
		if _, ok := want[k]; !ok && !keep(k.ContainerID) {
			delete(m.results, k)
			delete(m.owned[uid], k)
		}
	}
	for k, t := range want {
		if have[k] != nil || m.closed {
			continue
		}
		if have == nil {
			have = map[Key]*worker{}
			m.pods[uid] = have
		}
		wctx, cancel := context.WithCancel(ctx)
		have[k] = &worker{t, cancel}
		m.ownLocked(uid, k)
		m.wg.Go(func() { m.run(wctx, t) })
	}
	if len(have) == 0 {
		delete(m.pods, uid)
	}
	if len(m.owned[uid]) == 0 {
		delete(m.owned, uid)
	}
}

// Forget stops a pod's probes and drops its results.
func (m *Manager) Forget(uid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.pods[uid] {
		w.cancel()
	}
	delete(m.pods, uid)
	for k := range m.owned[uid] {
		delete(m.results, k)
	}
	delete(m.owned, uid)
}

// Close stops all probes and waits for them.
func (m *Manager) Close() {
	m.mu.Lock()
	m.closed = true
	for _, ws := range m.pods {
		for _, w := range ws {
			w.cancel()
		}
	}
	m.mu.Unlock()
	m.wg.Wait()
}

// run probes until ctx is done. The first attempt is initialDelaySeconds after the container's start. Attempts begin
// every period, however long the last one took. One that is late because of the last begins at once.
func (m *Manager) run(ctx context.Context, target Target) {
	spec := target.Probe
	period := time.Duration(max(spec.PeriodSeconds, 1)) * time.Second
	delay := time.Until(target.Started.Add(time.Duration(spec.InitialDelaySeconds) * time.Second))
	if time.Since(m.begun) < period && target.Started.Before(m.begun) {
		// the kubelet was restarted: spread the probes of all pods over a period
		delay = max(delay, rand.N(period)) // no secret
	}
	var row streak
	quick := quickFirst
	due := time.Now().Add(max(delay, 0))
	timer := time.NewTimer(max(delay, 0))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if soon := m.attempt(ctx, target, &row); soon {
			due = time.Now().Add(min(quick, period))
			timer.Reset(time.Until(due))
			quick = min(2*quick, quickMost)
			continue
		}
		due = due.Add(max(period, time.Since(due).Truncate(period)))
		timer.Reset(time.Until(due))
	}
}

// A container needs a moment from its start until it listens. A whole period until the second attempt would delay every
// pod with a readiness probe. So for a short time after the first attempt, readiness and startup probes are repeated
// quickly while the port is closed. These attempts do not count.
const (
	quickFirst = 5 * time.Millisecond
	quickMost  = 250 * time.Millisecond
	quickFor   = 2 * time.Second
)

// earlyAttempt reports whether an attempt was refused in that short time.
func earlyAttempt(t Target, o Outcome) bool {
	return o.Refused && t.Kind != Liveness && time.Since(t.Started) < time.Duration(
		t.Probe.InitialDelaySeconds)*time.Second+quickFor
}

// streak counts consecutive equal outcomes: positive for successes, negative for failures. since is the time of the
// first failure.
type streak struct {
	n     int
	since time.Time
}

// count adds an outcome.
func (s *streak) count(outcome *Outcome, at time.Time) {
	if outcome.OK {
		s.n = max(s.n, 0) + 1
		return
	}
	if s.n >= 0 {
		s.n = 0
		s.since = at
	}
	s.n--
	outcome.Times = -s.n
	outcome.For = at.Sub(s.since)
}

// attempt probes once. soon: the next attempt comes before the end of the period.
func (m *Manager) attempt(ctx context.Context, target Target, row *streak) (soon bool) {
	timeout := time.Duration(max(target.Probe.TimeoutSeconds, 1)) * time.Second
	pctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	begin := time.Now()
	outcome := m.prober.Probe(pctx, target)
	if ctx.Err() != nil {
		return false
	}
	if row.n == 0 && earlyAttempt(target, outcome) {
		return true
	}
	m.listener.Tried(target, outcome)
	if !outcome.OK || outcome.Warn {
		m.listener.Failed(target, outcome)
	}
	if outcome.Err != nil {
		return false
	}
	row.count(&outcome, begin)
	if m.newResult(ctx, target, row.n) {
		m.listener.Changed(target, m.Result(target.Key), outcome, time.Since(begin))
	} else if outcome.Times > 1 && outcome.Times&(outcome.Times-1) == 0 {
		m.listener.StillFailing(target, outcome, time.Since(begin))
	}
	return false
}

// newResult stores the result if a streak of n reaches a threshold, unless the probe has ended. It reports whether the
// result has changed.
func (m *Manager) newResult(ctx context.Context, target Target, n int) bool {
	result := Success
	threshold := int(max(target.Probe.SuccessThreshold, 1))
	if n < 0 {
		result = Failure
		threshold = int(max(target.Probe.FailureThreshold, 1))
	}
	if max(n, -n) < threshold && !m.initialFailure(target, result) {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil { // probes are cancelled under the lock
		return false
	}
	changed := m.results[target.Key] != result
	m.results[target.Key] = result
	return changed
}

// initialFailure reports whether a failure is the first result of a readiness probe. The container is not ready then,
// whatever the threshold.
func (m *Manager) initialFailure(t Target, r Result) bool {
	return t.Kind == Readiness && r == Failure && m.Result(t.Key) == Unknown
}

// Describe formats a probe's action for marks: "http :80/", "tcp :80", "exec cat /x", "grpc :9000".
func Describe(container *corev1.Container, p *corev1.Probe) string {
	switch {
	case p.HTTPGet != nil:
		return "http :" + portText(p.HTTPGet.Port) + path(p.HTTPGet.Path)
	case p.TCPSocket != nil:
		return "tcp :" + portText(p.TCPSocket.Port)
	case p.GRPC != nil:
		return "grpc :" + itoa(int(p.GRPC.Port))
	case p.Exec != nil:
		return "exec " + join(p.Exec.Command)
	}
	return "nothing in " + container.Name
}
