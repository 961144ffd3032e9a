// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/event"
	"keelson/scheduler/core"
	"keelson/scheduler/dynamicresources"
	"keelson/scheduler/explain"
	"keelson/scheduler/framework"
	"keelson/scheduler/preempt"
	"keelson/scheduler/queue"
	"keelson/scheduler/state"
)

// scheduleOne makes one attempt for a pod.
func (s *Scheduler) scheduleOne(ctx context.Context, it *queue.Item) {
	begin := time.Now()
	pod := it.Pod
	if node, _ := s.core.Cache.Where(pod.Pod.UID); node != "" || pod.Pod.DeletionTimestamp != nil {
		s.queue.Done(it)
		return
	}
	s.applyDecision(ctx, it, s.core.Try(pod), begin)
}

// applyDecision starts the binding cycle of the pod if the attempt chose a node, or else returns the pod to the queue.
func (s *Scheduler) applyDecision(ctx context.Context, it *queue.Item, attempt *framework.Attempt, begin time.Time) {
	pod := attempt.Pod
	profile := s.profile(attempt.Pod.Pod)
	profile.measureDecision(attempt, begin)
	switch {
	case attempt.Failed != nil:
		s.handlePluginError(ctx, it, attempt, begin)
		return
	case attempt.Chosen == nil:
		s.handleUnschedulable(ctx, it, attempt, begin)
		return
	}
	s.markDecision(it, attempt, begin)
	c := &bindingCycle{Placement: s.core.NewPlacement(attempt), profile: profile, it: it, start: begin}
	waitingPod, err := s.reserve(ctx, c, attempt.Chosen)
	if err != nil {
		s.markBind(c, time.Now(), err)
		s.writers.enqueue(ctx, s.handleBindingError(ctx, c, err))
		return
	}
	s.queue.Assumed(it)
	s.nominations.clear(pod.Pod)
	s.startBinding(ctx, c, waitingPod)
}

// startBinding starts the binding cycle of an assumed pod. waitingPod is not nil if Permit plugins make it wait.
func (s *Scheduler) startBinding(ctx context.Context, c *bindingCycle, waitingPod *framework.WaitingPod) {
	if waitingPod == nil && !c.MayTakeLong() {
		s.writers.enqueue(ctx, func(ctx context.Context) { s.bind(ctx, c) })
		return
	}
	// Plugins, or volumes, may take minutes: they must not block a writer.
	s.waitingBindings.run(ctx, c.Pod.Pod.UID, func(waiting context.Context) {
		s.writeExpectedNode(waiting, c)
		s.waitOnPermit(ctx, waiting, c, waitingPod)
	})
}

// bindingCycle is the binding cycle of a pod whose attempt chose a node.
type bindingCycle struct {
	*core.Placement
	profile   *profile
	it        *queue.Item
	start     time.Time
	durations event.Bind // durations of the extension points before Bind
}

// timed runs the plugins of an extension point, and adds the duration to took.
func (c *bindingCycle) timed(point string, took *time.Duration, run func() error) error {
	begin := time.Now()
	err := c.profile.measure(point, run)
	*took += time.Since(begin)
	return err
}

// timeReserve measures Reserve.
func (c *bindingCycle) timeReserve(run func() error) error {
	return c.timed("Reserve", &c.durations.Reserve, run)
}

// reserve runs Reserve, then Permit. waitingPod is not nil if a Permit plugin makes the pod wait. After an error
// nothing stays reserved.
func (s *Scheduler) reserve(
	ctx context.Context, c *bindingCycle, node *state.NodeInfo,
) (waitingPod *framework.WaitingPod, err error) {
	if err := s.core.Assume(ctx, c.Placement, node, c.timeReserve); err != nil || len(c.Profile.Permit) == 0 {
		return nil, err
	}
	var waits map[string]time.Duration
	err = c.timed("Permit", &c.durations.Permit, func() (err error) {
		waits, err = c.Permit(ctx)
		return err
	})
	if err != nil {
		s.core.Forget(ctx, c.Placement)
		return nil, err
	}
	if waits != nil {
		waitingPod = s.waitingPods.Hold(c.Pod, c.Node, waits)
	}
	return waitingPod, nil
}

// waitOnPermit waits until all Permit plugins allow the pod, and then binds it. The context waiting ends when the pod
// is deleted.
func (s *Scheduler) waitOnPermit(ctx, waiting context.Context, c *bindingCycle, waitingPod *framework.WaitingPod) {
	if waitingPod == nil {
		s.bind(waiting, c)
		return
	}
	begin := time.Now()
	st, err := s.waitingPods.Await(waiting, waitingPod)
	c.durations.Permit += time.Since(begin)
	c.profile.measurePermitWait(st, err, begin)
	if st != nil {
		err = st
	}
	if err == nil && !c.MayTakeLong() {
		err = s.waitingBindings.begin(c.Pod.Pod.UID) // from here on a writer binds it
	}
	switch {
	case err != nil:
		s.markBind(c, begin, err)
		s.core.Forget(ctx, c.Placement)
		s.writers.enqueue(ctx, s.handleBindingError(waiting, c, err))
	case c.MayTakeLong():
		s.bind(waiting, c)
	default:
		s.writers.enqueue(ctx, func(ctx context.Context) { s.bind(ctx, c) })
	}
}

// bind runs PreBind, Bind and PostBind, and returns the pod to the queue if one of them fails.
func (s *Scheduler) bind(ctx context.Context, c *bindingCycle) {
	begin := time.Now()
	err := s.writeBinding(ctx, c)
	s.markBind(c, begin, err)
	if err == nil {
		s.queue.Done(c.it)
		c.profile.measureAttempt(scheduled, c.start)
		s.metrics.measureScheduled(c.it)
		s.reports.scheduled(c.Pod.Pod, c.Node)
		for _, p := range c.Profile.PostBind {
			p.PostBind(ctx, c.Cycle, c.Pod, c.Node)
		}
		return
	}
	s.core.Forget(ctx, c.Placement)
	// This may run on a writer, so it runs the job itself: to wait for another writer could be a deadlock.
	if job := s.handleBindingError(ctx, c, err); job != nil {
		if errors.Is(context.Cause(ctx), errPreempted) {
			ctx = context.WithoutCancel(ctx) // it ended the cycle, and the pod's status is to say so
		}
		job(ctx)
	}
}

func (s *Scheduler) markBind(c *bindingCycle, begin time.Time, err error) {
	times := c.durations
	times.Node = c.Node
	mk := event.Event{
		Step:      event.StepBind,
		Component: "scheduler",
		At:        begin,
		Took:      time.Since(begin),
		Subject:   subject(c.Pod.Pod),
		Detail:    &times,
	}
	if err != nil {
		mk.Err = err.Error()
	}
	s.cfg.Marks.Emit(mk)
}

func (s *Scheduler) writeBinding(ctx context.Context, c *bindingCycle) error {
	if err := c.timed("PreBind", &c.durations.PreBind, func() error {
		for _, p := range c.Profile.PreBind {
			begin := time.Now()
			err := p.PreBind(ctx, c.Cycle, c.Pod, c.Node)
			if c.Measured(p.Name, "PreBind", begin, err); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if err := s.waitingBindings.begin(c.Pod.Pod.UID); err != nil {
		return err
	}
	if !s.core.Cache.HasNode(c.Node) {
		return fmt.Errorf("node %s is gone", c.Node)
	}
	return c.profile.measure("Bind", func() (err error) {
		for _, b := range c.Profile.Bind {
			begin := time.Now()
			if err = b.Bind(ctx, c.Cycle, c.Pod, c.Node); !errors.Is(err, framework.ErrSkip) {
				c.Measured(b.Name, "Bind", begin, err)
				return err
			}
		}
		return err
	})
}

// handleBindingError returns a pod to the queue whose binding cycle failed. If a plugin refused the pod, the pod
// waits for an event that may help; after any other error, and after it was preempted, it is tried again. The result
// is the write that remains to be done, or nil.
func (s *Scheduler) handleBindingError(ctx context.Context, c *bindingCycle, err error) func(context.Context) {
	// The reserved resources are free again.
	defer s.nominations.resourcesFreed(c.Pod.Pod, c.Node)
	if errors.Is(err, errPreempted) || errors.Is(context.Cause(ctx), errPreempted) {
		s.queue.Retry(c.it)
		c.profile.measureAttempt(unschedulable, c.start)
		return s.reports.noNode(c.Pod.Pod, reasonUnschedulable, "preempted", "")
	}
	st := framework.Rejection(err)
	if st == nil || ctx.Err() != nil {
		return s.handleError(ctx, c.it, c.Pod, err, "", c.start)
	}
	s.queue.Unschedulable(c.it, []string{st.Plugin})
	c.profile.measureAttempt(unschedulable, c.start)
	return s.reports.noNode(c.Pod.Pod, reasonUnschedulable, st.Error(), "")
}

// handleError returns a pod to the queue after an error and records an event. nominated is its nominated node from now
// on. The result is the write that remains to be done, or nil.
func (s *Scheduler) handleError(
	ctx context.Context, it *queue.Item, pod *state.PodInfo, err error, nominated string, start time.Time,
) func(context.Context) {
	if errors.Is(context.Cause(ctx), errDeleted) {
		s.queue.Done(it)
		return nil
	}
	if ctx.Err() != nil {
		return nil
	}
	if apierrors.IsNotFound(err) && !s.queue.Has(pod.Pod.UID) {
		s.queue.Done(it)
		return nil
	}
	s.log.Warn("scheduling attempt failed", "pod", pod.Key, "attempt", it.Attempts, "err", err)
	s.queue.Retry(it)
	s.profile(pod.Pod).measureAttempt(failed, start)
	return s.reports.noNode(pod.Pod, reasonError, err.Error(), nominated)
}

// handlePluginError returns a pod to the queue after an attempt in which a plugin could not decide (framework.Failed).
func (s *Scheduler) handlePluginError(ctx context.Context, it *queue.Item, a *framework.Attempt, begin time.Time) {
	s.markDecision(it, a, begin)
	s.writers.enqueue(ctx, s.handleError(ctx, it, a.Pod, errors.New(a.Message()), a.Pod.Pod.Status.NominatedNodeName,
		begin))
}

// handleUnschedulable handles a pod that fits on no node: it runs PostFilter, and returns the pod to the queue as
// unschedulable.
func (s *Scheduler) handleUnschedulable(
	ctx context.Context, it *queue.Item, attempt *framework.Attempt, begin time.Time,
) {
	pod := attempt.Pod
	profile := s.profile(attempt.Pod.Pod)
	if len(attempt.Snapshot.Nodes) > 0 {
		post := time.Now()
		_ = profile.measure("PostFilter", func() error { return s.runPostFilter(ctx, profile, attempt) })
		attempt.Took.PostFilter = time.Since(post)
	}
	message := attempt.Message()
	refusedBy := attempt.RefusedBy()
	s.nominations.set(pod, attempt.NominatedNode)
	s.markDecision(it, attempt, begin)
	nominated := attempt.NominatedNode
	s.queue.Unschedulable(it, refusedBy)
	profile.measureAttempt(unschedulable, begin)
	s.writers.enqueue(ctx, s.reports.noNode(pod.Pod, reasonUnschedulable, message, nominated))
}

// errNoNomination means that no PostFilter plugin nominated a node.
var errNoNomination = errors.New("no node is nominated")

func (s *Scheduler) runPostFilter(ctx context.Context, profile *profile, attempt *framework.Attempt) error {
	attempt.NominatedBefore = s.core.Cache.Nominated(attempt.Pod.Pod.UID)
	var messages []string
	for _, postFilterer := range profile.PostFilter {
		if postFilterer.PostFilter == nil {
			continue
		}
		if postFilterer.Name == preempt.Name {
			s.metrics.preemptions.Inc()
		}
		begin := time.Now()
		node, message := postFilterer.PostFilter(ctx, attempt)
		if attempt.Observe != nil {
			status := "Unschedulable"
			if node != "" {
				status = framework.StatusName(nil)
			}
			attempt.Observe(postFilterer.Name, "PostFilter", status, time.Since(begin))
		}
		if node != "" {
			attempt.NominatedNode = node
			attempt.PostFilterMessage = message
			return nil
		}
		if message != "" {
			messages = append(messages, message)
		}
	}
	attempt.PostFilterMessage = strings.Join(messages, ", ")
	return errNoNomination
}

// markDecision emits the mark of an attempt.
func (s *Scheduler) markDecision(it *queue.Item, attempt *framework.Attempt, begin time.Time) {
	if s.cfg.Marks == nil {
		return
	}
	decision := explain.Decision(attempt, it.Attempts, begin.Sub(it.Since))
	mk := event.Event{
		Step:      event.StepDecision,
		Component: "scheduler",
		At:        begin,
		Took:      time.Since(begin),
		Subject:   subject(attempt.Pod.Pod),
		Detail:    decision,
	}
	switch {
	case attempt.Failed != nil:
		decision.WaitsFor = "its backoff is over"
		mk.Err = decision.Message
	case attempt.Chosen == nil:
		by := attempt.RefusedBy()
		decision.WaitsFor = waitsFor(s.queue.WaitsFor(attempt.Pod.Pod, by), slices.Contains(by, dynamicresources.Name))
	}
	s.cfg.Marks.Emit(mk)
}

// waitsFor describes what makes the scheduler try again.
func waitsFor(eventKinds framework.EventKinds, devices bool) string {
	const node = framework.NodeAdd | framework.NodeAllocatable | framework.NodeLabels | framework.NodeTaints |
		framework.NodeImages |
		framework.NodeDeclaredFeatures
	const pods = framework.AssignedPodAdd | framework.AssignedPodLabels | framework.AssignedPodScaleDown |
		framework.AssignedPodDelete
	switch {
	case eventKinds == framework.AnyKind: // an extender, or a plugin that does not say what may help
		return "anything in the cluster changes"
	case devices:
		return "a claim, a device or a node changes"
	case eventKinds&framework.PersistentVolumeClaims != 0:
		return "a claim, a volume or a node changes"
	case eventKinds&node != 0 && eventKinds&pods != 0:
		return "a node or pod changes"
	case eventKinds&node != 0:
		return "a node changes"
	case eventKinds&pods != 0:
		return "a pod changes"
	default:
		return "this pod changes"
	}
}
