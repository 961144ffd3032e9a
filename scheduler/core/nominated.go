// SPDX-License-Identifier: Apache-2.0

package core

import (
	"keelson/scheduler/framework"
)

// tryNominated filters the node to which the pod is nominated before all others, as kube-scheduler does: by preemption,
// which has made room there; by a scheduler that ended before it had bound the pod; or by another program. If the pod
// fits there, that is its only feasible node.
func (e *Engine) tryNominated(attempt *framework.Attempt) bool {
	place := attempt.Snapshot.NominatedPlace(attempt.Pod.Pod.UID)
	if place < 0 {
		return false
	}
	n := attempt.Snapshot.Nodes[place]
	if framework.Check(attempt.Filters, n) != nil ||
		checkWithNominated(attempt, n, attempt.Snapshot.NominatedAt(place)) != nil {
		return false
	}
	attempt.Feasible = append(attempt.Feasible, n)
	attempt.EvaluatedNodes = 1
	e.feasible = attempt.Feasible
	return true
}
