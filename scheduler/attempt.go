// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/lib/mark"
	"keelson/scheduler/dynamicresources"
	"keelson/scheduler/explain"
	"keelson/scheduler/framework"
	"keelson/scheduler/preempt"
	"keelson/scheduler/queue"
	"keelson/scheduler/state"
)

// try makes one attempt for a pod: it decides, then settle does what was decided.
func (s *Scheduler) try(ctx context.Context, it *queue.Item) {
	begin := time.Now()
	pod := it.Pod
	p := s.profile(pod.Pod)
	if node, _ := s.cache.Where(pod.Pod.UID); node != "" || pod.Pod.DeletionTimestamp != nil {
		s.queue.Done(it)
		return
	}
	s.settle(ctx, it, p.engine.Decide(pod, s.cache.Refresh(), nil), begin)
}

// settle does what an attempt decided: it gives the pod its node, or puts the pod back into the queue.
func (s *Scheduler) settle(ctx context.Context, it *queue.Item, a *framework.Attempt, begin time.Time) {
	pod, p := a.Pod, s.profile(a.Pod.Pod)
	p.measureDecision(a, begin)
	switch {
	case a.Failed != nil:
		s.gaveUp(ctx, it, a, begin)
		return
	case a.Chosen == nil:
		s.refused(ctx, it, a, begin)
		return
	}
	if err := s.markDecision(it, a, begin); err != nil {
		s.later(ctx, s.failed(ctx, it, pod, err, begin))
		return
	}
	r := &round{profile: p, it: it, pod: pod, cycle: a.Cycle, node: a.Chosen.Name, began: begin}
	held, err := s.reserve(ctx, r, a.Chosen)
	if err != nil {
		s.markBind(r, time.Now(), err)
		s.later(ctx, s.giveBack(ctx, r, err))
		return
	}
	s.queue.Assumed(it)
	s.denominate(pod.Pod)
	s.send(ctx, r, held)
}

// send begins the binding cycle of a pod that has its node. held: Permit plugins make it wait.
func (s *Scheduler) send(ctx context.Context, r *round, held *framework.WaitingPod) {
	if held == nil && !r.slow() {
		s.later(ctx, func(ctx context.Context) { s.bind(ctx, r) })
		return
	}
	// Plugins, or volumes, may take minutes: no writer waits for them.
	waiting, end := s.waiting.begin(ctx, r.pod.Pod.UID)
	s.waits.Go(func() {
		defer end()
		s.waitOnPermit(ctx, waiting, r, held)
	})
}

// round is an attempt that has found a node: what its binding cycle needs to know.
type round struct {
	*profile
	it    *queue.Item
	pod   *state.PodInfo
	cycle *framework.CycleState
	node  string
	began time.Time
	times mark.Bind // durations of the extension points before Bind
}

// timed runs the plugins of an extension point, and adds how long that took to took.
func (r *round) timed(point string, took *time.Duration, run func() error) error {
	begin := time.Now()
	err := r.measure(point, run)
	*took += time.Since(begin)
	return err
}

// slow reports whether a PreBind plugin may take long.
func (r *round) slow() bool {
	return slices.ContainsFunc(r.preBind, func(p framework.PreBinder) bool { return p.PreBindPreFlight(r.cycle, r.pod, r.node) })
}

// reserve runs Reserve, then Permit. held: a Permit plugin has the pod wait. After an error nothing is kept.
func (s *Scheduler) reserve(ctx context.Context, r *round, node *state.NodeInfo) (held *framework.WaitingPod, err error) {
	if err := s.runReserve(ctx, r, node); err != nil || len(r.permit) == 0 {
		return nil, err
	}
	var waits map[string]time.Duration
	err = r.timed("Permit", &r.times.Permit, func() (err error) {
		waits, err = s.runPermit(ctx, r)
		return err
	})
	if err != nil {
		s.unreserve(ctx, r)
		return nil, err
	}
	if waits != nil {
		held = s.permits.Hold(r.pod, r.node, waits)
	}
	return held, nil
}

// runReserve assumes the pod on its node, and runs Reserve. After an error it has undone both.
func (s *Scheduler) runReserve(ctx context.Context, r *round, node *state.NodeInfo) error {
	if err := s.cache.Assume(r.pod, r.node); err != nil {
		return err
	}
	s.groups.Assume(r.pod.Pod)
	err := r.timed("Reserve", &r.times.Reserve, func() error {
		for _, p := range r.reserve {
			if err := p.Reserve(ctx, r.cycle, r.pod, node); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.unreserve(ctx, r)
	}
	return err
}

// runPermit runs Permit. It returns for how long each plugin makes the pod wait.
func (s *Scheduler) runPermit(ctx context.Context, r *round) (map[string]time.Duration, error) {
	var waits map[string]time.Duration
	for _, p := range r.permit {
		st, wait := p.Permit(ctx, r.cycle, r.pod, r.node)
		if st != nil {
			return nil, st
		}
		if wait > 0 {
			if waits == nil {
				waits = map[string]time.Duration{}
			}
			waits[p.Name()] = wait
		}
	}
	return waits, nil
}

// waitOnPermit waits until all Permit plugins allow the pod, and then binds it. The context waiting ends when the pod is deleted.
func (s *Scheduler) waitOnPermit(ctx, waiting context.Context, r *round, held *framework.WaitingPod) {
	if held == nil {
		s.bind(waiting, r)
		return
	}
	begin := time.Now()
	st, err := s.permits.Await(waiting, held)
	r.times.Permit += time.Since(begin)
	if st != nil {
		err = st
	}
	switch {
	case err != nil:
		s.markBind(r, begin, err)
		s.unreserve(ctx, r)
		s.later(ctx, s.giveBack(waiting, r, err))
	case r.slow():
		s.bind(waiting, r)
	default:
		s.later(ctx, func(ctx context.Context) { s.bind(ctx, r) })
	}
}

// unreserve removes the pod from its node again. giveBack reports the free room to the queue.
func (s *Scheduler) unreserve(ctx context.Context, r *round) {
	for _, p := range slices.Backward(r.reserve) {
		p.Unreserve(context.WithoutCancel(ctx), r.cycle, r.pod, r.node)
	}
	s.cache.Forget(r.pod.Pod.UID)
	if node, _ := s.cache.Where(r.pod.Pod.UID); node == "" {
		s.groups.Forget(r.pod.Pod)
	}
}

// bind ends the binding cycle: PreBind, Bind and PostBind, or the pod is given back.
func (s *Scheduler) bind(ctx context.Context, r *round) {
	begin := time.Now()
	err := s.writeBinding(ctx, r)
	s.markBind(r, begin, err)
	if err == nil {
		s.queue.Done(r.it)
		r.measureAttempt(scheduled, r.began)
		measureScheduled(r.it)
		s.eventScheduled(r.pod.Pod, r.node)
		for _, p := range r.postBind {
			p.PostBind(ctx, r.cycle, r.pod, r.node)
		}
		return
	}
	s.unreserve(ctx, r)
	// This may be a writer: it writes itself, since waiting for another could be for ever.
	if job := s.giveBack(ctx, r, err); job != nil {
		job(ctx)
	}
}

func (s *Scheduler) markBind(r *round, begin time.Time, err error) {
	times := r.times
	times.Node = r.node
	m := mark.Mark{Step: mark.StepBind, Component: "scheduler", At: begin, Took: time.Since(begin), Subject: subject(r.pod.Pod), Detail: &times}
	if err != nil {
		m.Err = err.Error()
	}
	s.cfg.Marks.Emit(m)
}

func (s *Scheduler) writeBinding(ctx context.Context, r *round) error {
	if err := r.timed("PreBind", &r.times.PreBind, func() error {
		for _, p := range r.preBind {
			if err := p.PreBind(ctx, r.cycle, r.pod, r.node); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if !s.cache.HasNode(r.node) {
		return fmt.Errorf("node %s is gone", r.node)
	}
	return r.measure("Bind", func() (err error) {
		for _, b := range r.bind {
			if err = b.Bind(ctx, r.cycle, r.pod, r.node); !errors.Is(err, framework.ErrSkip) {
				return err
			}
		}
		return err
	})
}

// giveBack returns a pod that has lost its node to the queue. After a plugin's refusal it waits for an event that may change the answer;
// after any other error it is tried again. giveBack returns what is left to write, or nil.
func (s *Scheduler) giveBack(ctx context.Context, r *round, err error) func(context.Context) {
	// The reserved resources are free again.
	defer s.freed(r.pod.Pod, r.node)
	st := verdict(err)
	if st == nil || ctx.Err() != nil {
		return s.failed(ctx, r.it, r.pod, err, r.began)
	}
	s.queue.Unschedulable(r.it, []string{st.Plugin})
	r.measureAttempt(unschedulable, r.began)
	return s.report(r.pod.Pod, reasonUnschedulable, st.Error(), "")
}

// verdict returns a plugin's refusal of the pod; nil: the error is not about the pod.
func verdict(err error) *framework.Status {
	var st *framework.Status
	if errors.As(err, &st) && st.Code != framework.Failed {
		return st
	}
	return nil
}

// failed returns a pod to the queue after an error and records an event. It returns what is left to write, or nil.
func (s *Scheduler) failed(ctx context.Context, it *queue.Item, pod *state.PodInfo, err error, tried time.Time) func(context.Context) {
	if errors.Is(context.Cause(ctx), errDeleted) {
		s.queue.Done(it)
		return nil
	}
	if ctx.Err() != nil {
		return nil
	}
	if apierrors.IsNotFound(err) && !s.known(pod) {
		s.queue.Done(it)
		return nil
	}
	s.log.Warn("scheduling attempt failed", "pod", pod.Key, "attempt", it.Attempts, "err", err)
	s.queue.Retry(it)
	s.profile(pod.Pod).measureAttempt(failed, tried)
	return s.report(pod.Pod, reasonError, err.Error(), "")
}

// gaveUp returns a pod to the queue after an attempt in which a plugin could not decide (framework.Failed).
func (s *Scheduler) gaveUp(ctx context.Context, it *queue.Item, a *framework.Attempt, begin time.Time) {
	if err := s.markDecision(it, a, begin); err != nil {
		return // only in tests
	}
	s.later(ctx, s.failed(ctx, it, a.Pod, errors.New(a.Message()), begin))
}

// refused handles a pod that fits on no node: it runs PostFilter, and returns the pod to the queue as unschedulable.
func (s *Scheduler) refused(ctx context.Context, it *queue.Item, a *framework.Attempt, begin time.Time) {
	pod, p := a.Pod, s.profile(a.Pod.Pod)
	if len(a.Snapshot.Nodes) > 0 {
		post := time.Now()
		_ = p.measure("PostFilter", func() error { return s.makeRoom(ctx, p, a) })
		a.PostFilterTook = time.Since(post)
	}
	message, refusedBy := a.Message(), a.RefusedBy()
	s.nominate(pod, a.Nominated)
	err := s.markDecision(it, a, begin)
	nominated := a.Nominated
	s.queue.Unschedulable(it, refusedBy)
	p.measureAttempt(unschedulable, begin)
	if err == nil {
		s.later(ctx, s.report(pod.Pod, reasonUnschedulable, message, nominated))
	}
}

// errNoRoom means that no PostFilter plugin could make room.
var errNoRoom = errors.New("no room can be made")

func (s *Scheduler) makeRoom(ctx context.Context, by *profile, a *framework.Attempt) error {
	a.NominatedBefore = s.cache.Nominated(a.Pod.Pod.UID)
	var messages []string
	for _, p := range by.post {
		if p.Name() == preempt.Name {
			s.metrics.preemptions.Inc()
		}
		node, message := p.PostFilter(ctx, a)
		if node != "" {
			a.Nominated, a.PostMessage = node, message
			return nil
		}
		if message != "" {
			messages = append(messages, message)
		}
	}
	a.PostMessage = strings.Join(messages, ", ")
	return errNoRoom
}

// markDecision emits the mark of an attempt. It fails only where a test makes it fail.
func (s *Scheduler) markDecision(it *queue.Item, a *framework.Attempt, begin time.Time) error {
	if s.cfg.Marks == nil {
		return nil
	}
	d := explain.Decision(a, it.Attempts, begin.Sub(it.Since))
	m := mark.Mark{Step: mark.StepDecision, Component: "scheduler", At: begin, Took: time.Since(begin), Subject: subject(a.Pod.Pod), Detail: d}
	switch {
	case a.Failed != nil:
		d.Waits, m.Err = "its backoff is over", d.Message
	case a.Chosen == nil:
		by := a.RefusedBy()
		d.Waits = waits(s.queue.WaitsFor(a.Pod.Pod, by), slices.Contains(by, dynamicresources.Name))
	}
	return s.cfg.Marks.Reach(m)
}

// waits describes what makes the scheduler try again.
func waits(k framework.Kinds, devices bool) string {
	const node = framework.NodeAdd | framework.NodeAllocatable | framework.NodeLabels | framework.NodeTaints | framework.NodeImages |
		framework.NodeFeatures
	const pods = framework.PodAdd | framework.PodLabels | framework.PodShrinks | framework.PodDelete
	switch {
	case devices:
		return "a claim, a device or a node changes"
	case k&framework.Claims != 0:
		return "a claim, a volume or a node changes"
	case k&node != 0 && k&pods != 0:
		return "a node or pod changes"
	case k&node != 0:
		return "a node changes"
	case k&pods != 0:
		return "a pod changes"
	default:
		return "this pod changes"
	}
}
