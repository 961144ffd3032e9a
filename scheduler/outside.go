// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/queue"
)

// loopOutside makes one attempt after another for pods about which extenders are asked.
func (s *Scheduler) loopOutside(ctx context.Context) {
	for {
		it := s.queue.outside.Pop(ctx)
		if it == nil {
			return
		}
		s.deciding.Lock()
		s.tryOutside(ctx, it)
		s.deciding.Unlock()
	}
}

// roundsOutside bounds how often extenders are asked in one attempt, when nodes fill up while they answer.
const roundsOutside = 3

// tryOutside makes one attempt for a pod about which extenders are asked: what fits is found, the extenders are asked about it while others
// decide, and then it is decided with what they said on the cluster's state as it is by then. s.deciding is held.
func (s *Scheduler) tryOutside(ctx context.Context, it *queue.Item) {
	begin, pod := time.Now(), it.Pod
	p := s.profile(pod.Pod)
	for range roundsOutside {
		if node, _ := s.cache.Where(pod.Pod.UID); node != "" || pod.Pod.DeletionTimestamp != nil || !s.known(pod) {
			s.queue.Done(it)
			return
		}
		a := p.outside.Fit(pod, s.cache.Refresh(), s.nominator.view())
		a.Outside = s.meanwhile
		if len(a.Feasible) == 0 {
			s.settle(ctx, it, a, begin)
			return
		}
		nodes := make([]*corev1.Node, len(a.Feasible))
		for i, n := range a.Feasible {
			nodes[i] = n.Node
		}
		var advice *framework.Advice
		s.meanwhile(func() { advice, a.Failed = s.extenders.Advise(ctx, pod.Pod, nodes) })
		if ctx.Err() != nil {
			return
		}
		if a.Failed != nil {
			s.settle(ctx, it, a, begin)
			return
		}
		advice.Before, advice.Looked = append(advice.Before, a.Refused...), a.Looked
		a = p.outside.DecideWith(advice, pod, s.cache.Refresh(), s.nominator.view())
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
	a := p.outside.Fit(pod, s.cache.Refresh(), s.nominator.view())
	if len(a.Feasible) > 0 {
		a.Failed = framework.Refuse("extenders", framework.Failed, "the nodes that they are asked about fill up before they answer")
	}
	s.settle(ctx, it, a, begin)
}

// meanwhile runs what waits for others while the other lane decides.
func (s *Scheduler) meanwhile(run func()) {
	s.deciding.Unlock()
	defer s.deciding.Lock()
	run()
}
