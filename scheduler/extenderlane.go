// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/queue"
)

// The extender lane. An extender may take seconds to answer, so this loop runs beside the scheduling loop. s.deciding is the turn to decide:
// each loop holds it for an attempt, and this one lets go of it (meanwhile) while it waits for extenders.

// loopOutside makes one attempt after another for pods of the extender lane.
func (s *Scheduler) loopOutside(ctx context.Context) {
	for {
		it := s.queue.extenderLane.Pop(ctx)
		if it == nil {
			return
		}
		s.inTurn(func() { s.tryOutside(ctx, it) })
	}
}

// inTurn runs an attempt of the extender lane: extenders are asked about one pod, or group, after another.
func (s *Scheduler) inTurn(try func()) {
	s.asking.Lock()
	defer s.asking.Unlock()
	s.deciding.Lock()
	defer s.deciding.Unlock()
	try()
}

// roundsOutside bounds how often extenders are asked in one attempt. They are asked again when nodes have filled up meanwhile and
// none is left that they allow.
const roundsOutside = 3

// tryOutside makes one attempt for a pod of the extender lane, in three steps: Fit finds nodes that fit; the extenders are asked about these
// nodes while the other lane decides; DecideWith takes a new snapshot and their answers, and chooses. s.deciding is held when it is called.
func (s *Scheduler) tryOutside(ctx context.Context, it *queue.Item) {
	begin, pod := time.Now(), it.Pod
	p := s.profile(pod.Pod)
	for range roundsOutside {
		if node, _ := s.cache.Where(pod.Pod.UID); node != "" || pod.Pod.DeletionTimestamp != nil || !s.known(pod) {
			s.queue.Done(it)
			return
		}
		a := p.outside.Fit(pod, s.cache.Refresh(), nil)
		a.Outside = s.meanwhile
		if len(a.Feasible) == 0 {
			s.settle(ctx, it, a, begin)
			return
		}
		advice := s.advise(ctx, a)
		if ctx.Err() != nil {
			return
		}
		if a.Failed != nil {
			s.settle(ctx, it, a, begin)
			return
		}
		a = p.outside.DecideWith(advice, pod, s.cache.Refresh(), nil)
		a.Outside = s.meanwhile
		if a.Chosen == nil && a.Failed == nil && advice.Outdated {
			continue
		}
		for _, why := range advice.Ignored {
			s.eventExtender(pod.Pod, why)
		}
		if node, _ := s.cache.Where(pod.Pod.UID); node != "" || !s.known(pod) {
			s.queue.Done(it)
			return
		}
		s.settle(ctx, it, a, begin)
		return
	}
	a := p.outside.Fit(pod, s.cache.Refresh(), nil)
	if len(a.Feasible) > 0 {
		a.Failed = errOutpaced
	}
	s.settle(ctx, it, a, begin)
}

// errOutpaced is said of a pod for which every answer of the extenders comes too late.
var errOutpaced = framework.Refuse("extenders", framework.Failed, "the nodes that they are asked about fill up before they answer")

// advise asks the extenders about the nodes that Fit found, while the other lane decides. If one fails that may not be ignored, a.Failed says so.
func (s *Scheduler) advise(ctx context.Context, a *framework.Attempt) (advice *framework.Advice) {
	nodes := make([]*corev1.Node, len(a.Feasible))
	for i, n := range a.Feasible {
		nodes[i] = n.Node
	}
	s.meanwhile(func() { advice, a.Failed = s.extenders.Advise(ctx, a.Pod.Pod, nodes) })
	if advice != nil {
		advice.Before, advice.Looked = append(advice.Before, a.Refused...), a.Looked
	}
	return advice
}

// askAboutVictims has extenders choose among the nodes where room can be made. A pod that was deleted meanwhile drives nobody away.
func (s *Scheduler) askAboutVictims(ctx context.Context, a *framework.Attempt, found []*framework.Preemption) ([]*framework.Preemption, error) {
	found, err := s.extenders.Preempt(ctx, a, found)
	if err == nil && !s.known(a.Pod) {
		err = errDeleted
	}
	return found, err
}

// meanwhile runs run without s.deciding, so that the other lane can decide. Whatever was known of the cluster may have changed afterwards.
func (s *Scheduler) meanwhile(run func()) {
	s.deciding.Unlock()
	defer s.deciding.Lock()
	run()
}
