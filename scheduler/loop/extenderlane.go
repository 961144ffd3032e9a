// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/queue"
)

// The extender lane is a second scheduling loop, for pods that HTTP extenders are interested in, because an extender
// may take seconds to respond. The mutex s.cycleLock serializes the attempts of both loops. This loop releases it
// (withoutCycleLock) while it waits for extenders.

// extenderLoop makes one attempt after another for pods of the extender lane.
func (s *Scheduler) extenderLoop(ctx context.Context) {
	for {
		it := s.queue.extenderLane.Pop(ctx)
		if it == nil {
			return
		}
		s.inExtenderLane(func() { s.scheduleOneWithExtenders(ctx, it) })
	}
}

// inExtenderLane runs an attempt of the extender lane. Extenders are called for one pod or group at a time.
func (s *Scheduler) inExtenderLane(try func()) {
	s.extenderLock.Lock()
	defer s.extenderLock.Unlock()
	s.cycleLock.Lock()
	defer s.cycleLock.Unlock()
	try()
}

// maxExtenderRounds is the maximum number of rounds of extender calls in one attempt. Another round is needed if no
// node that the extenders allowed is still feasible when they respond.
const maxExtenderRounds = 3

// scheduleOneWithExtenders makes one attempt for a pod of the extender lane, in three steps: FindFeasible finds
// feasible nodes; the extenders are called with these nodes, while the other loop schedules; DecideWith chooses with a
// new snapshot and their results. The caller holds s.cycleLock.
func (s *Scheduler) scheduleOneWithExtenders(ctx context.Context, it *queue.Item) {
	begin := time.Now()
	pod := it.Pod
	profile := s.profile(pod.Pod)
	for range maxExtenderRounds {
		node, _ := s.core.Cache.Where(pod.Pod.UID)
		if node != "" || pod.Pod.DeletionTimestamp != nil || !s.queue.Has(pod.Pod.UID) {
			s.queue.Done(it)
			return
		}
		attempt := profile.ExtenderEngine.FindFeasible(pod, s.core.Cache.Refresh(), nil)
		attempt.CallExtenders = s.withoutCycleLock
		if len(attempt.Feasible) == 0 {
			s.applyDecision(ctx, it, attempt, begin)
			return
		}
		results := s.callExtenders(ctx, attempt)
		if ctx.Err() != nil {
			return
		}
		if attempt.Failed != nil {
			s.applyDecision(ctx, it, attempt, begin)
			return
		}
		attempt = profile.ExtenderEngine.DecideWith(results, pod, s.core.Cache.Refresh(), nil)
		attempt.CallExtenders = s.withoutCycleLock
		if attempt.Chosen == nil && attempt.Failed == nil && results.Outdated {
			continue
		}
		for _, why := range results.IgnoredErrors {
			s.reports.extenderIgnored(pod.Pod, why)
		}
		if node, _ := s.core.Cache.Where(pod.Pod.UID); node != "" || !s.queue.Has(pod.Pod.UID) {
			s.queue.Done(it)
			return
		}
		s.applyDecision(ctx, it, attempt, begin)
		return
	}
	a := profile.ExtenderEngine.FindFeasible(pod, s.core.Cache.Refresh(), nil)
	if len(a.Feasible) > 0 {
		a.Failed = errResultsOutdated
	}
	s.applyDecision(ctx, it, a, begin)
}

// errResultsOutdated is the status of a pod for which the extenders' results were outdated in every round.
var errResultsOutdated = framework.NewStatus("extenders", framework.Failed,
	"the nodes that they allow are full when they respond")

// callExtenders calls the extenders with the nodes that FindFeasible found, while the other loop schedules. It sets
// attempt.Failed if a call fails and the extender is not ignorable.
func (s *Scheduler) callExtenders(
	ctx context.Context, attempt *framework.Attempt,
) (results *framework.ExtenderResults) {
	nodes := make([]*corev1.Node, len(attempt.Feasible))
	for i, n := range attempt.Feasible {
		nodes[i] = n.Node
	}
	begin := time.Now()
	s.withoutCycleLock(func() {
		results, attempt.Failed = s.extenders.FilterAndPrioritize(ctx, attempt.Pod.Pod, nodes)
	})
	if attempt.Failed != nil {
		attempt.Took.Filter += time.Since(begin)
	}
	if results != nil {
		results.RefusedByPlugins = append(results.RefusedByPlugins, attempt.Refused...)
		results.EvaluatedNodes = attempt.EvaluatedNodes
	}
	return results
}

// preemptWithExtenders calls the extenders to choose among the candidates of preemption. If the pod was deleted during
// the calls, no pod is evicted for it.
func (s *Scheduler) preemptWithExtenders(
	ctx context.Context, a *framework.Attempt, candidates []*framework.Preemption,
) ([]*framework.Preemption, error) {
	candidates, err := s.extenders.ProcessPreemption(ctx, a, candidates)
	if err == nil && !s.queue.Has(a.Pod.Pod.UID) {
		err = errDeleted
	}
	return candidates, err
}

// withoutCycleLock releases s.cycleLock while f runs, so that the other loop can schedule. Afterwards the cluster's
// state may have changed.
func (s *Scheduler) withoutCycleLock(f func()) {
	s.cycleLock.Unlock()
	defer s.cycleLock.Lock()
	f()
}
