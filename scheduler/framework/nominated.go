// SPDX-License-Identifier: Apache-2.0

package framework

// tryNominated filters the node to which the pod is nominated before all others, as kube-scheduler does: by preemption,
// which has made room there; by a scheduler that ended before it had bound the pod; or by another program. If the pod
// fits there, that is its only feasible node.
func (e *Engine) tryNominated(a *Attempt) bool {
	place := a.Snapshot.NominatedPlace(a.Pod.Pod.UID)
	if place < 0 {
		return false
	}
	n := a.Snapshot.Nodes[place]
	if Check(a.Filters, n) != nil || a.checkWithNominated(n, a.Snapshot.NominatedAt(place)) != nil {
		return false
	}
	a.Feasible = append(a.Feasible, n)
	a.EvaluatedNodes = 1
	e.feasible = a.Feasible
	return true
}
