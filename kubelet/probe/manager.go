// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Outcome is one attempt's answer.
type Outcome struct {
	OK     bool
	Warn   bool   // succeeded, with something to say
	Output string // "HTTP probe failed with statuscode: 500"
	Brief  string // "500", for marks
	Err    error  // the probe itself could not run: the attempt does not count
	// Refused: nobody listens at the port. A container that has just started gets there in a moment.
	Refused bool
	// Times is how many attempts in a row have failed, this one included, and For how long they have; 0: this one did not fail.
	Times int
	For   time.Duration
}

// Prober makes one attempt. It returns when ctx is over.
type Prober interface {
	Probe(ctx context.Context, t Target) Outcome
}

// Listener hears of attempts. It is called on the probe's goroutine.
type Listener interface {
	// Tried hears of every attempt, but for those of the first moment after a start that are made again at once.
	Tried(t Target, o Outcome)
	// Failed hears of every attempt that did not succeed.
	Failed(t Target, o Outcome)
	// Changed hears of a result that is not what it was; the pod should be looked at.
	Changed(t Target, r Result, o Outcome, took time.Duration)
	// Lasts hears that attempts fail on without a change of the result: of the second one in a row, the fourth, the eighth and so on.
	Lasts(t Target, o Outcome, took time.Duration)
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
	closed  bool
}

type worker struct {
	target Target
	cancel context.CancelFunc
}

// NewManager returns a manager without probes.
func NewManager(p Prober, l Listener) *Manager {
	return &Manager{prober: p, listener: l, begun: time.Now(), pods: map[string]map[Key]*worker{}, results: map[Key]Result{}}
}

// Result is the standing answer of a probe.
func (m *Manager) Result(k Key) Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.results[k]
}

// Sync makes the pod's running probes those of targets. ctx bounds those it starts; keep tells whose results are still of use.
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
		if !keep(k.ContainerID) {
			delete(m.results, k)
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
		m.wg.Go(func() { m.run(wctx, t) })
	}
	if len(have) == 0 {
		delete(m.pods, uid)
	}
}

// Forget stops a pod's probes and drops its results.
func (m *Manager) Forget(uid string, containers []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.pods[uid] {
		w.cancel()
	}
	delete(m.pods, uid)
	for _, id := range containers {
		for _, k := range []Kind{Liveness, Readiness, Startup} {
			delete(m.results, Key{id, k})
		}
	}
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

// run probes until ctx is done. The first attempt follows the container's start by initialDelaySeconds, at once when there is none.
func (m *Manager) run(ctx context.Context, t Target) {
	spec := t.Probe
	period := time.Duration(max(spec.PeriodSeconds, 1)) * time.Second
	delay := time.Until(t.Started.Add(time.Duration(spec.InitialDelaySeconds) * time.Second))
	if time.Since(m.begun) < period && t.Started.Before(m.begun) {
		// the kubelet was restarted: spread the probes of all pods over a period
		delay = max(delay, rand.N(period)) //nolint:gosec // no secret
	}
	var row streak
	quick := quickFirst
	timer := time.NewTimer(max(delay, 0))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if soon := m.attempt(ctx, t, &row); soon {
			timer.Reset(min(quick, period))
			quick = min(2*quick, quickMost)
			continue
		}
		timer.Reset(period)
	}
}

// A container needs a moment from its start until it listens. Waiting a whole period for the second look would make every pod
// with a readiness probe late by that, so readiness and startup are asked again quickly while the port is closed, for a short
// time after they could first be asked. These attempts do not count.
const (
	quickFirst = 5 * time.Millisecond
	quickMost  = 250 * time.Millisecond
	quickFor   = 2 * time.Second
)

// early reports whether an attempt came before the container could be expected to listen.
func early(t Target, o Outcome) bool {
	return o.Refused && t.Kind != Liveness && time.Since(t.Started) < time.Duration(t.Probe.InitialDelaySeconds)*time.Second+quickFor
}

// streak counts equal outcomes that follow each other: positive for successes, negative for failures, the first of which was at since.
type streak struct {
	n     int
	since time.Time
}

// count adds an outcome.
func (s *streak) count(o *Outcome, at time.Time) {
	if o.OK {
		s.n = max(s.n, 0) + 1
		return
	}
	if s.n >= 0 {
		s.n, s.since = 0, at
	}
	s.n--
	o.Times, o.For = -s.n, at.Sub(s.since)
}

// attempt probes once. soon: ask again before the period is over.
func (m *Manager) attempt(ctx context.Context, t Target, row *streak) (soon bool) {
	timeout := time.Duration(max(t.Probe.TimeoutSeconds, 1)) * time.Second
	pctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	begin := time.Now()
	o := m.prober.Probe(pctx, t)
	if ctx.Err() != nil {
		return false
	}
	if row.n == 0 && early(t, o) {
		return true
	}
	m.listener.Tried(t, o)
	if !o.OK || o.Warn {
		m.listener.Failed(t, o)
	}
	if o.Err != nil {
		return false
	}
	row.count(&o, begin)
	if m.decides(t, row.n) {
		m.listener.Changed(t, m.Result(t.Key), o, time.Since(begin))
	} else if o.Times > 1 && o.Times&(o.Times-1) == 0 {
		m.listener.Lasts(t, o, time.Since(begin))
	}
	return false
}

// decides takes the result that a streak of n gives, if it gives one, and reports whether it is another than before.
func (m *Manager) decides(t Target, n int) bool {
	r, threshold := Success, int(max(t.Probe.SuccessThreshold, 1))
	if n < 0 {
		r, threshold = Failure, int(max(t.Probe.FailureThreshold, 1))
	}
	if max(n, -n) < threshold && !m.firstOf(t, r) {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	changed := m.results[t.Key] != r
	m.results[t.Key] = r
	return changed
}

// firstOf reports whether a readiness probe that never answered says no: the container is not ready then, whatever the threshold.
func (m *Manager) firstOf(t Target, r Result) bool {
	return t.Kind == Readiness && r == Failure && m.Result(t.Key) == Unknown
}

// Describe words a probe's action for marks: "http :80/", "tcp :80", "exec cat /x", "grpc :9000".
func Describe(c *corev1.Container, p *corev1.Probe) string {
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
	return "nothing in " + c.Name
}
