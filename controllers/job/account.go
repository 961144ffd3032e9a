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
	// gone are the pods whose deletion the server has accepted.
	gone []*corev1.Pod
}

// account counts finished pods in a pass so that each is counted exactly once, even after a crash at any time:
//
//  1. The status lists the pod as uncounted (indexed jobs: its index as completed): account.status is written.
//  2. The pod's finalizer is removed; only now can the pod disappear.
//  3. The status counts the pod and no longer lists it: settle.
type account struct {
	status batchv1.JobStatus
	// free are the pods whose finalizer is removed after status is written.
	free []*corev1.Pod
	// open are the pods with the finalizer.
	open map[types.UID]struct{}
	// verdict is how the job ends; nil: it continues.
	verdict *verdict
	// full: there are more pods to count than one pass may count.
	full bool
	// failures are kept for the next passes.
	failures failures
	// suspended or resumed: the pass has recorded the change.
	suspended, resumed bool
	// ruled counts the failed pods by action of the podFailurePolicy.
	ruled map[batchv1.PodFailurePolicyAction]int
}

// record computes the status after a pass, and which pods may be released.
func record(s snapshot, p plan, o outcome) account {
	a := account{open: map[types.UID]struct{}{}, ruled: map[batchv1.PodFailurePolicyAction]int{}, verdict: p.verdict}
	st := &a.status
	s.job.Status.DeepCopyInto(st)
	if st.UncountedTerminatedPods == nil {
		st.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	if st.StartTime == nil && !suspended(s.job) {
		st.StartTime = &metav1.Time{Time: s.now}
	}
	ready, terminating := p.ready, p.terminating+int32(len(o.gone))
	for _, q := range o.gone {
		if pod.Ready(q) {
			ready--
		}
	}
	st.Active = int32(len(p.active) + o.created - len(o.gone))
	st.Ready, st.Terminating = &ready, &terminating
	if p.verdict != nil && len(o.gone) != len(p.end) {
		a.verdict = nil // not yet: some pods still run
	} else if a.verdict == nil && s.settled && p.reached(s.job, st.Active) {
		a.verdict = &verdict{batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods"}
	}
	if p.managed && a.verdict == nil {
		a.suspend(s)
	}
	a.track(s, p)
	if v := a.verdict; v != nil && condition(st.Conditions, v.kind) == nil {
		setCondition(&st.Conditions, v.kind, corev1.ConditionTrue, v.reason, v.message, s.now)
	}
	return a
}

// reached reports whether the job has all required successes and no pod runs any more.
func (t *tally) reached(j *batchv1.Job, active int32) bool {
	need := int32(1)
	if c := j.Spec.Completions; c != nil {
		need = *c
	}
	return active == 0 && t.succeeded >= need
}

// suspend records whether the job is suspended. activeDeadlineSeconds counts from the last resumption.
func (a *account) suspend(s snapshot) {
	st := &a.status
	if suspended(s.job) {
		a.suspended = setCondition(&st.Conditions, batchv1.JobSuspended, corev1.ConditionTrue, "JobSuspended", "Job suspended", s.now)
		st.StartTime = nil
		return
	}
	if setCondition(&st.Conditions, batchv1.JobSuspended, corev1.ConditionFalse, "JobResumed", "Job resumed", s.now) {
		a.resumed = true
		st.StartTime = &metav1.Time{Time: s.now}
	}
}

// track lists the finished pods.
func (a *account) track(s snapshot, p plan) {
	for _, q := range s.pods {
		if s.tracked(q) {
			a.open[q.UID] = struct{}{}
		}
	}
	a.clean()
	st, known := &a.status, listed(&a.status)
	var won, lost []*corev1.Pod
	defer func() { a.failures = s.failures.and(won, lost) }()
	for _, q := range s.pods {
		if !s.tracked(q) || !a.mayGo(s, p, q) {
			continue
		}
		a.free = append(a.free, q)
		if _, ok := known[q.UID]; ok {
			continue
		}
		n, valid := indexOf(s.job, q)
		switch {
		case q.Status.Phase == corev1.PodSucceeded && indexed(s.job):
			if valid && !p.before.Has(n) {
				won = append(won, q)
			}
		case q.Status.Phase == corev1.PodSucceeded:
			won = append(won, q)
			st.UncountedTerminatedPods.Succeeded = append(st.UncountedTerminatedPods.Succeeded, q.UID)
		case (failedPod(s.job, q) || a.verdict.failed()) && (valid || !indexed(s.job)):
			lost = append(lost, q)
			r := rule(s.job.Spec.PodFailurePolicy, q)
			if r.action != "" {
				a.ruled[r.action]++
			}
			if r.counts() {
				st.UncountedTerminatedPods.Failed = append(st.UncountedTerminatedPods.Failed, q.UID)
			}
		}
		if len(won)+len(lost)+len(known) >= burst {
			a.full = true
			break
		}
	}
	if !indexed(s.job) {
		return
	}
	st.Succeeded, st.CompletedIndexes, st.FailedIndexes = p.completed.Count(), p.completed.String(), nil
	if perIndex(s.job) {
		lost := p.lost.String()
		st.FailedIndexes = &lost
	}
}

// mayGo reports whether the pod's finalizer can be removed: the job is finished or deleted, or the pod is finished, unless its replacement
// still needs its number of index failures.
func (a *account) mayGo(s snapshot, p plan, q *corev1.Pod) bool {
	if s.job.DeletionTimestamp != nil || a.verdict != nil || q.Status.Phase == corev1.PodSucceeded {
		return true
	}
	if !failedPod(s.job, q) {
		return false
	}
	n, ok := indexOf(s.job, q)
	return !ok || p.replaced[n] != q
}

// clean counts the listed pods without a finalizer.
func (a *account) clean() {
	u := a.status.UncountedTerminatedPods
	gone := func(uid types.UID) bool {
		_, open := a.open[uid]
		return !open
	}
	succeeded, failed := len(u.Succeeded), len(u.Failed)
	u.Succeeded, u.Failed = slices.DeleteFunc(u.Succeeded, gone), slices.DeleteFunc(u.Failed, gone)
	if len(u.Succeeded) == 0 {
		u.Succeeded = nil
	}
	if len(u.Failed) == 0 {
		u.Failed = nil
	}
	a.status.Succeeded += int32(succeeded - len(u.Succeeded))
	a.status.Failed += int32(failed - len(u.Failed))
}

// settle counts the pods without a finalizer, which are those of freed, and finishes the job when all are counted. It reports whether the
// job is finished.
func (a *account) settle(s snapshot, freed []*corev1.Pod) bool {
	// a.status was written and is shared with the client now.
	a.status = *a.status.DeepCopy()
	st := &a.status
	if st.UncountedTerminatedPods == nil {
		st.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	for _, p := range freed {
		delete(a.open, p.UID)
	}
	a.clean()
	u := st.UncountedTerminatedPods
	if a.verdict == nil || a.full || len(freed) < len(a.free) || len(u.Succeeded)+len(u.Failed) > 0 || *st.Terminating > 0 {
		return false
	}
	if st.StartTime == nil && (!suspended(s.job) || s.job.Spec.Completions == nil || *s.job.Spec.Completions != 0) {
		st.StartTime = &metav1.Time{Time: s.now} // it ended while suspended
	}
	setCondition(&st.Conditions, a.verdict.final(), corev1.ConditionTrue, a.verdict.reason, a.verdict.message, s.now)
	if !a.verdict.failed() {
		st.CompletionTime = &metav1.Time{Time: s.now}
	}
	return true
}
