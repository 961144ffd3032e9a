// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/lib/mark"
	"keelson/scheduler/explain"
	"keelson/scheduler/framework"
	"keelson/scheduler/queue"
	"keelson/scheduler/state"
)

// try makes one attempt for a pod: decide, then assume and bind, or say why not.
func (s *Scheduler) try(ctx context.Context, it *queue.Item) {
	begin := time.Now()
	pod := it.Pod
	if node, _ := s.cache.Where(pod.Pod.UID); node != "" || pod.Pod.DeletionTimestamp != nil {
		s.queue.Done(it)
		return
	}
	a := s.engine.Decide(pod, s.cache.Refresh(), s.nominee.view())
	if a.Chosen == nil {
		s.refused(ctx, it, a, begin)
		return
	}
	if err := s.markDecision(it, a, begin); err != nil {
		s.later(ctx, s.failed(ctx, it, pod, err))
		return
	}
	node := a.Chosen.Name
	if err := s.reserve(ctx, pod, a.Chosen); err != nil {
		s.later(ctx, s.failed(ctx, it, pod, err))
		return
	}
	s.queue.Assumed(it)
	s.nominee.remove(pod.Pod.UID)
	if s.volumes.Pending(pod.Pod.UID) {
		// Volumes may take minutes to be made: no writer waits for them.
		ctx, end := s.waiting.begin(ctx, pod.Pod.UID)
		s.waits.Go(func() {
			defer end()
			s.bind(ctx, it, pod, node)
		})
		return
	}
	s.later(ctx, func(ctx context.Context) { s.bind(ctx, it, pod, node) })
}

// reserve counts the pod on its node, and lets plugins keep what else it needs.
func (s *Scheduler) reserve(ctx context.Context, pod *state.PodInfo, node *state.NodeInfo) error {
	if err := s.cache.Assume(pod, node.Name); err != nil {
		return err
	}
	for _, r := range framework.Of[framework.Reserver](s.profile) {
		if err := r.Reserve(ctx, pod, node); err != nil {
			s.unreserve(ctx, pod, node.Name)
			return err
		}
	}
	return nil
}

func (s *Scheduler) unreserve(ctx context.Context, pod *state.PodInfo, node string) {
	rs := framework.Of[framework.Reserver](s.profile)
	for _, r := range slices.Backward(rs) {
		r.Unreserve(context.WithoutCancel(ctx), pod, node)
	}
	s.cache.Forget(pod.Pod.UID)
	// Room that was taken is free again.
	s.queue.Happened(framework.Event{Kinds: framework.PodDelete, OldPod: pod.Pod})
}

// bind finishes what try began, on a writer.
func (s *Scheduler) bind(ctx context.Context, it *queue.Item, pod *state.PodInfo, node string) {
	begin := time.Now()
	err := s.writeBinding(ctx, pod, node)
	m := mark.Mark{
		Step: mark.StepBind, Component: "scheduler", At: begin, Took: time.Since(begin), Subject: subject(pod.Pod), Detail: &mark.Bind{Node: node},
	}
	if err != nil {
		m.Err = err.Error()
	}
	s.cfg.Marks.Emit(m)
	if err == nil {
		s.queue.Done(it)
		s.eventScheduled(pod.Pod, node)
		return
	}
	s.unreserve(ctx, pod, node)
	// This is a writer: it writes itself, since waiting for another could be for ever.
	if job := s.failed(ctx, it, pod, err); job != nil {
		job(ctx)
	}
}

func (s *Scheduler) writeBinding(ctx context.Context, pod *state.PodInfo, node string) error {
	for _, p := range framework.Of[framework.Permitter](s.profile) {
		if st := p.Permit(ctx, pod, node); st != nil {
			return errors.New(strings.Join(st.Reasons, ", "))
		}
	}
	for _, p := range framework.Of[framework.PreBinder](s.profile) {
		if err := p.PreBind(ctx, pod, node); err != nil {
			return err
		}
	}
	var err error
	for _, b := range s.binders {
		if err = b.Bind(ctx, pod, node); err == nil {
			return nil
		}
	}
	return err
}

// failed gives a pod back after an error; whoever reads the pod's events learns of it. It returns what is left to write, or nil.
func (s *Scheduler) failed(ctx context.Context, it *queue.Item, pod *state.PodInfo, err error) func(context.Context) {
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
	return s.report(pod.Pod, reasonError, err.Error(), "")
}

// refused gives back a pod that fits nowhere, after seeing whether room can be made.
func (s *Scheduler) refused(ctx context.Context, it *queue.Item, a *framework.Attempt, begin time.Time) {
	pod := a.Pod
	if len(a.Snapshot.Nodes) > 0 {
		s.makeRoom(ctx, a)
	}
	message, refusedBy := a.Message(), a.RefusedBy()
	if a.Nominated != "" {
		s.nominee.add(pod, a.Nominated)
	} else {
		s.nominee.remove(pod.Pod.UID)
	}
	err := s.markDecision(it, a, begin)
	nominated := a.Nominated
	s.queue.Unschedulable(it, refusedBy)
	if err == nil {
		s.later(ctx, s.report(pod.Pod, reasonUnschedulable, message, nominated))
	}
}

func (s *Scheduler) makeRoom(ctx context.Context, a *framework.Attempt) {
	a.NominatedBefore = s.nominee.node(a.Pod.Pod.UID)
	var messages []string
	for _, p := range s.post {
		node, message := p.PostFilter(ctx, a)
		if node != "" {
			a.Nominated, a.PostMessage = node, message
			return
		}
		if message != "" {
			messages = append(messages, message)
		}
	}
	a.PostMessage = strings.Join(messages, ", ")
}

// markDecision tells the story of an attempt; only tests make it fail.
func (s *Scheduler) markDecision(it *queue.Item, a *framework.Attempt, begin time.Time) error {
	if s.cfg.Marks == nil {
		return nil
	}
	d := explain.Decision(a, it.Attempts, begin.Sub(it.Since))
	if a.Chosen == nil {
		d.Waits = waits(s.queue.Waits(a.RefusedBy()))
	}
	return s.cfg.Marks.Reach(mark.Mark{
		Step: mark.StepDecision, Component: "scheduler", At: begin, Took: time.Since(begin), Subject: subject(a.Pod.Pod), Detail: d,
	})
}

// waits says what will make the scheduler try again.
func waits(k framework.Kinds) string {
	const node = framework.NodeAdd | framework.NodeAllocatable | framework.NodeLabels | framework.NodeTaints | framework.NodeImages |
		framework.NodeFeatures
	const pods = framework.PodAdd | framework.PodLabels | framework.PodShrinks | framework.PodDelete
	switch {
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
