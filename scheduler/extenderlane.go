// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/queue"
)

// The extender lane is a second scheduling loop, for pods that HTTP extenders are interested in, because an extender may take seconds to
// respond. The mutex s.deciding serializes the attempts of both loops. This loop releases it (meanwhile) while it waits for extenders.

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

// inTurn runs an attempt of the extender lane. Extenders are called for one pod or group at a time.
func (s *Scheduler) inTurn(try func()) {
	s.asking.Lock()
	defer s.asking.Unlock()
	s.deciding.Lock()
	defer s.deciding.Unlock()
	try()
}

// roundsOutside is the maximum number of rounds of extender calls in one attempt. Another round is needed if no node that the extenders
// allowed is still feasible when they respond.
const roundsOutside = 3

// tryOutside makes one attempt for a pod of the extender lane, in three steps: Fit finds feasible nodes; the extenders are called with
// these nodes, while the other loop schedules; DecideWith chooses with a new snapshot and their responses. The caller holds s.deciding.
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

// errOutpaced is the status of a pod for which the extenders' responses were outdated in every round.
var errOutpaced = framework.Refuse("extenders", framework.Failed, "the nodes that they are asked about fill up before they answer")

// advise calls the extenders with the nodes that Fit found, while the other loop schedules. It sets a.Failed if a call fails and the
// extender is not ignorable.
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

// askAboutVictims lets the extenders choose among the candidates of preemption. If the pod was deleted meanwhile, no pod is evicted for it.
func (s *Scheduler) askAboutVictims(ctx context.Context, a *framework.Attempt, found []*framework.Preemption) ([]*framework.Preemption, error) {
	found, err := s.extenders.Preempt(ctx, a, found)
	if err == nil && !s.known(a.Pod) {
		err = errDeleted
	}
	return found, err
}

// meanwhile releases s.deciding while run runs, so that the other loop can schedule. Afterwards the cluster's state may have changed.
func (s *Scheduler) meanwhile(run func()) {
	s.deciding.Unlock()
	defer s.deciding.Lock()
	run()
}
