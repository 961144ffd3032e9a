// SPDX-License-Identifier: Apache-2.0

package job

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/core/pod"
)

// outcome is the result of executing a plan.
type outcome struct {
	created int
	// deleted are the pods whose deletion the server has accepted.
	deleted []*corev1.Pod
}

// accounting counts finished pods in a pass so that each is counted exactly once, even after a crash at any time:
//
//  1. The status lists the pod as uncounted (indexed jobs: its index as completed): accounting.status is written.
//  2. The pod's finalizer is removed; only now can the pod disappear.
//  3. The status counts the pod and no longer lists it: countReleased.
type accounting struct {
	status batchv1.JobStatus
	// toRelease are the pods whose finalizer is removed after status is written.
	toRelease []*corev1.Pod
	// withFinalizer are the pods with the finalizer.
	withFinalizer map[types.UID]struct{}
	// end is how the job ends; nil: it continues.
	end *endCondition
	// truncated: there are more pods to count than one pass may count.
	truncated bool
	// failures are kept for the next passes.
	failures backoffRecord
	// suspended or resumed: the pass has recorded the change.
	suspended, resumed bool
	// policyCounts counts the failed pods by action of the podFailurePolicy.
	policyCounts map[batchv1.PodFailurePolicyAction]int
}

// newAccounting computes the status after a pass, and which pods may be released.
func newAccounting(snap snapshot, steps plan, o outcome) accounting {
	a := accounting{
		withFinalizer: map[types.UID]struct{}{},
		policyCounts:  map[batchv1.PodFailurePolicyAction]int{},
		end:           steps.end,
	}
	st := &a.status
	snap.job.Status.DeepCopyInto(st)
	if st.UncountedTerminatedPods == nil {
		st.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	if st.StartTime == nil && !suspended(snap.job) {
		st.StartTime = &metav1.Time{Time: snap.now}
	}
	ready := steps.ready
	terminating := steps.terminating + int32(len(o.deleted))
	for _, q := range o.deleted {
		if pod.Ready(q) {
			ready--
		}
	}
	st.Active = int32(len(steps.active) + o.created - len(o.deleted))
	st.Ready = &ready
	st.Terminating = &terminating
	if steps.end != nil && len(o.deleted) != len(steps.terminate) {
		a.end = nil // not yet: some pods still run
	} else if a.end == nil && snap.expectationsSatisfied && steps.completionsReached(snap.job, st.Active) {
		a.end = &endCondition{
			batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached,
			"Reached expected number of succeeded pods",
		}
	}
	if steps.managed && a.end == nil {
		a.setSuspended(snap)
	}
	a.trackFinished(snap, steps)
	if v := a.end; v != nil && condition(st.Conditions, v.kind) == nil {
		setCondition(&st.Conditions, v.kind, corev1.ConditionTrue, v.reason, v.message, snap.now)
	}
	return a
}

// completionsReached reports whether the job has all required successes and no pod runs any more.
func (t *podCounts) completionsReached(j *batchv1.Job, active int32) bool {
	need := int32(1)
	if c := j.Spec.Completions; c != nil {
		need = *c
	}
	return active == 0 && t.succeeded >= need
}

// setSuspended records whether the job is suspended. activeDeadlineSeconds counts from the last resumption.
func (a *accounting) setSuspended(s snapshot) {
	st := &a.status
	if suspended(s.job) {
		a.suspended = setCondition(&st.Conditions, batchv1.JobSuspended, corev1.ConditionTrue, "JobSuspended",
			"Job suspended", s.now)
		st.StartTime = nil
		return
	}
	if setCondition(&st.Conditions, batchv1.JobSuspended, corev1.ConditionFalse, "JobResumed", "Job resumed", s.now) {
		a.resumed = true
		st.StartTime = &metav1.Time{Time: s.now}
	}
}

// trackFinished lists the finished pods.
func (a *accounting) trackFinished(snap snapshot, steps plan) {
	for _, q := range snap.pods {
		if snap.tracked(q) {
			a.withFinalizer[q.UID] = struct{}{}
		}
	}
	a.cleanUncounted()
	st := &a.status
	known := uncountedPods(&a.status)
	var won, lost []*corev1.Pod
	defer func() { a.failures = snap.failures.add(won, lost) }()
	for _, q := range snap.pods {
		if !snap.tracked(q) || !a.canRemoveFinalizer(snap, steps, q) {
			continue
		}
		a.toRelease = append(a.toRelease, q)
		if _, ok := known[q.UID]; ok {
			continue
		}
		n, valid := indexOf(snap.job, q)
		switch {
		case q.Status.Phase == corev1.PodSucceeded && isIndexed(snap.job):
			if valid && !steps.previousCompleted.Has(n) {
				won = append(won, q)
			}
		case q.Status.Phase == corev1.PodSucceeded:
			won = append(won, q)
			st.UncountedTerminatedPods.Succeeded = append(st.UncountedTerminatedPods.Succeeded, q.UID)
		case (isPodFailed(snap.job, q) || a.end.failed()) && (valid || !isIndexed(snap.job)):
			lost = append(lost, q)
			r := matchPodFailurePolicy(snap.job.Spec.PodFailurePolicy, q)
			if r.action != "" {
				a.policyCounts[r.action]++
			}
			if r.countsAsFailure() {
				st.UncountedTerminatedPods.Failed = append(st.UncountedTerminatedPods.Failed, q.UID)
			}
		}
		if len(won)+len(lost)+len(known) >= burst {
			a.truncated = true
			break
		}
	}
	if !isIndexed(snap.job) {
		return
	}
	st.Succeeded = steps.completed.Count()
	st.CompletedIndexes = steps.completed.String()
	st.FailedIndexes = nil
	if hasBackoffLimitPerIndex(snap.job) {
		lost := steps.failedIndexes.String()
		st.FailedIndexes = &lost
	}
}

// canRemoveFinalizer reports whether the pod's finalizer can be removed: the job is finished or deleted, or the pod is
// finished, unless its replacement still needs its number of index failures.
func (a *accounting) canRemoveFinalizer(s snapshot, p plan, q *corev1.Pod) bool {
	if s.job.DeletionTimestamp != nil || a.end != nil || q.Status.Phase == corev1.PodSucceeded {
		return true
	}
	if !isPodFailed(s.job, q) {
		return false
	}
	n, ok := indexOf(s.job, q)
	return !ok || p.replaced[n] != q
}

// cleanUncounted counts the listed pods without a finalizer.
func (a *accounting) cleanUncounted() {
	pods := a.status.UncountedTerminatedPods
	gone := func(uid types.UID) bool {
		_, open := a.withFinalizer[uid]
		return !open
	}
	succeeded := len(pods.Succeeded)
	failed := len(pods.Failed)
	pods.Succeeded = slices.DeleteFunc(pods.Succeeded, gone)
	pods.Failed = slices.DeleteFunc(pods.Failed, gone)
	if len(pods.Succeeded) == 0 {
		pods.Succeeded = nil
	}
	if len(pods.Failed) == 0 {
		pods.Failed = nil
	}
	a.status.Succeeded += int32(succeeded - len(pods.Succeeded))
	a.status.Failed += int32(failed - len(pods.Failed))
}

// countReleased counts the pods without a finalizer, which are those of freed, and finishes the job when all are
// counted. It reports whether the job is finished.
func (a *accounting) countReleased(snap snapshot, freed []*corev1.Pod) bool {
	// a.status was written and is shared with the client now.
	a.status = *a.status.DeepCopy()
	st := &a.status
	if st.UncountedTerminatedPods == nil {
		st.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	for _, p := range freed {
		delete(a.withFinalizer, p.UID)
	}
	a.cleanUncounted()
	u := st.UncountedTerminatedPods
	if a.end == nil || a.truncated || len(freed) < len(a.toRelease) || len(u.Succeeded)+len(u.Failed) > 0 ||
		*st.Terminating > 0 {
		return false
	}
	if st.StartTime == nil && (!suspended(snap.job) || snap.job.Spec.Completions == nil ||
		*snap.job.Spec.Completions != 0) {
		st.StartTime = &metav1.Time{Time: snap.now} // it ended while suspended
	}
	setCondition(&st.Conditions, a.end.finalType(), corev1.ConditionTrue, a.end.reason, a.end.message, snap.now)
	if !a.end.failed() {
		st.CompletionTime = &metav1.Time{Time: snap.now}
	}
	return true
}
