// SPDX-License-Identifier: Apache-2.0

package job

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/batch"
	"keelson/api/core/pod"
)

// burst is the maximum number of pods that one pass creates, deletes or counts. It also limits the size of
// uncountedTerminatedPods.
const burst = 500

// snapshot is the input of a decision. Nothing in it is modified.
type snapshot struct {
	job *batchv1.Job
	// pods are the pods that the job controls and selects, in any state.
	pods []*corev1.Pod
	// finalizerRemoved are the pods whose finalizer the controller has removed; the cache may still show it.
	finalizerRemoved map[types.UID]struct{}
	// expectationsSatisfied is false while creations or deletions are expected: then nothing may be created or deleted,
	// and the job cannot finish.
	expectationsSatisfied bool
	// failures are kept from earlier passes.
	failures backoffRecord
	now      time.Time
}

// tracked reports whether p must still be counted.
func (s snapshot) tracked(p *corev1.Pod) bool {
	_, freed := s.finalizerRemoved[p.UID]
	return tracked(p) && !freed
}

// tracked reports whether p has the job tracking finalizer.
func tracked(p *corev1.Pod) bool { return slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer) }

// terminating pods are being deleted and not finished.
func terminating(p *corev1.Pod) bool { return p.DeletionTimestamp != nil && !pod.Terminal(p) }

// suspended is spec.suspend.
func suspended(j *batchv1.Job) bool { return j.Spec.Suspend != nil && *j.Spec.Suspend }

// onlyReplaceFailedPods reports whether a pod is replaced, and counted as failed, only when it is finished.
func onlyReplaceFailedPods(j *batchv1.Job) bool {
	return j.Spec.PodFailurePolicy != nil ||
		j.Spec.PodReplacementPolicy != nil && *j.Spec.PodReplacementPolicy == batchv1.Failed
}

// isPodFailed reports whether p counts as failed. A pod in deletion may never reach the phase Failed.
func isPodFailed(j *batchv1.Job, p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed || !onlyReplaceFailedPods(j) && terminating(p)
}

// endCondition is how the job ends: by a condition FailureTarget or SuccessCriteriaMet. The final condition follows
// when all pods are finished and counted.
type endCondition struct {
	kind            batchv1.JobConditionType
	reason, message string
}

func failure(reason, message string) *endCondition {
	return &endCondition{batchv1.JobFailureTarget, reason, message}
}

func (v *endCondition) failed() bool { return v != nil && v.kind == batchv1.JobFailureTarget }

// finalType is the final condition of the job.
func (v *endCondition) finalType() batchv1.JobConditionType {
	if v.failed() {
		return batchv1.JobFailed
	}
	return batchv1.JobComplete
}

// podCounts has the counts of a job's pods.
type podCounts struct {
	active             []*corev1.Pod
	ready, terminating int32
	// succeeded and failed are all so far, including those that the status does not count yet.
	succeeded, failed int32
	failures          backoffRecord
	// For an indexed job: the completed indexes in the status, the actual ones, the failed ones, and the pods to be
	// replaced.
	previousCompleted, completed, failedIndexes batch.Indexes
	replaced                                    map[int32]*corev1.Pod
}

// plan is the result of a pass.
type plan struct {
	podCounts
	end *endCondition
	// managed: the number of pods could be decided.
	managed      bool
	create       int
	indexes      []int32       // to create, for an indexed job
	remove       []*corev1.Pod // surplus: they are deleted and not counted
	terminate    []*corev1.Pod // still running although the job has ended: they are deleted, then counted
	requeueAfter time.Duration // when time alone will change something; 0: never
}

// decide decides about the job's pods.
func decide(snap snapshot) plan {
	steps := plan{podCounts: countPods(snap)}
	steps.end = steps.decideEnd(snap)
	if d := snap.job.Spec.ActiveDeadlineSeconds; steps.end == nil && d != nil && !suspended(snap.job) {
		start := snap.now
		if t := snap.job.Status.StartTime; t != nil {
			start = t.Time
		}
		steps.requeueAfter = start.Add(seconds(*d)).Sub(snap.now)
	}
	switch {
	case steps.end != nil && !snap.expectationsSatisfied:
		steps.end = nil // not all created pods are observed yet, so they could not all be deleted and counted
	case steps.end != nil:
		steps.terminate = steps.active
	case snap.expectationsSatisfied && snap.job.DeletionTimestamp == nil:
		steps.managed = true
		steps.managePods(snap)
	}
	return steps
}

func countPods(snap snapshot) podCounts {
	var t podCounts
	for _, p := range snap.pods {
		switch {
		case pod.Active(p):
			t.active = append(t.active, p)
			if pod.Ready(p) {
				t.ready++
			}
		case terminating(p):
			t.terminating++
		}
	}
	var won, lost []*corev1.Pod
	listed := uncountedPods(&snap.job.Status)
	for _, p := range snap.pods {
		_, valid := indexOf(snap.job, p)
		_, known := listed[p.UID]
		switch {
		case known || !snap.tracked(p) || isIndexed(snap.job) && !valid:
		case p.Status.Phase == corev1.PodSucceeded:
			won = append(won, p)
		case isPodFailed(snap.job, p):
			lost = append(lost, p)
		}
	}
	t.failures = snap.failures.add(won, lost)
	lost = slices.DeleteFunc(lost, func(p *corev1.Pod) bool {
		return !matchPodFailurePolicy(snap.job.Spec.PodFailurePolicy, p).countsAsFailure()
	})
	t.succeeded = snap.job.Status.Succeeded + int32(len(won))
	t.failed = snap.job.Status.Failed + int32(len(lost))
	if u := snap.job.Status.UncountedTerminatedPods; u != nil {
		t.succeeded += int32(len(u.Succeeded))
		t.failed += int32(len(u.Failed))
	}
	if isIndexed(snap.job) {
		t.indexes(snap)
	}
	return t
}

// uncountedPods are the finished but uncounted pods in the status.
func uncountedPods(st *batchv1.JobStatus) map[types.UID]struct{} {
	out := map[types.UID]struct{}{}
	if u := st.UncountedTerminatedPods; u != nil {
		for _, uid := range u.Succeeded {
			out[uid] = struct{}{}
		}
		for _, uid := range u.Failed {
			out[uid] = struct{}{}
		}
	}
	return out
}

// decideEnd decides whether and how the job ends; nil: it continues.
func (t *podCounts) decideEnd(snap snapshot) *endCondition {
	job := snap.job
	for _, kind := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobFailureTarget} {
		if c := condition(job.Status.Conditions, kind); c != nil && c.Status == corev1.ConditionTrue {
			return &endCondition{kind, c.Reason, c.Message}
		}
	}
	if job.Spec.PodFailurePolicy != nil {
		for _, p := range snap.pods {
			if !isPodFailed(job, p) {
				continue
			}
			if r := matchPodFailurePolicy(job.Spec.PodFailurePolicy,
				p); r.action == batchv1.PodFailurePolicyActionFailJob {
				return failure(batchv1.JobReasonPodFailurePolicy, r.message)
			}
		}
	}
	switch limit := *job.Spec.BackoffLimit; {
	case t.failed > limit || restartedTooOften(snap, limit):
		return failure(batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
	case pastDeadline(snap):
		return failure(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
	}
	if !isIndexed(job) {
		return nil
	}
	if n := t.failedIndexes.Count(); n > 0 {
		if most := job.Spec.MaxFailedIndexes; most != nil && n > *most {
			return failure(batchv1.JobReasonMaxFailedIndexesExceeded,
				"Job has exceeded the specified maximal number of failed indexes")
		}
		if n+t.completed.Count() >= *job.Spec.Completions {
			return failure(batchv1.JobReasonFailedIndexes, "Job has failed indexes")
		}
	}
	if message, met := matchSuccessPolicy(job.Spec.SuccessPolicy, t.completed, *job.Spec.Completions); met {
		return &endCondition{batchv1.JobSuccessCriteriaMet, batchv1.JobReasonSuccessPolicy, message}
	}
	return nil
}

// restartedTooOften: with restartPolicy OnFailure the containers fail, not the pods.
func restartedTooOften(s snapshot, limit int32) bool {
	if s.job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return false
	}
	var n int32
	for _, p := range s.pods {
		if p.Status.Phase != corev1.PodRunning && p.Status.Phase != corev1.PodPending {
			continue
		}
		for _, c := range p.Status.InitContainerStatuses {
			n += c.RestartCount
		}
		for _, c := range p.Status.ContainerStatuses {
			n += c.RestartCount
		}
	}
	return n > 0 && n >= limit
}

func pastDeadline(s snapshot) bool {
	d := s.job.Spec.ActiveDeadlineSeconds
	start := s.job.Status.StartTime
	return d != nil && start != nil && !suspended(s.job) && s.now.Sub(start.Time) >= seconds(*d)
}

// seconds converts n seconds, limited to the longest Duration.
func seconds(n int64) time.Duration {
	return time.Duration(min(n, int64(math.MaxInt64/time.Second))) * time.Second
}

// managePods decides how many pods to create, or which to delete; never both in one pass.
func (p *plan) managePods(snap snapshot) {
	if suspended(snap.job) {
		p.remove = p.active
		return
	}
	active := int32(len(p.active))
	want := p.desiredActive(snap.job)
	if p.remove = p.activePodsForRemoval(snap.job, int(max(0, active-want))); len(p.remove) > 0 {
		p.remove = p.remove[:min(len(p.remove), burst)]
		return
	}
	missing := want - active
	if onlyReplaceFailedPods(snap.job) {
		missing -= p.terminating
	}
	if missing <= 0 {
		return
	}
	missing = min(missing, burst)
	var wait time.Duration
	if !hasBackoffLimitPerIndex(snap.job) {
		wait = p.failures.wait(snap.now)
	}
	switch {
	case wait > 0:
	case isIndexed(snap.job):
		p.indexes, wait = p.pending(snap, missing)
		p.create = len(p.indexes)
	default:
		p.create = int(missing)
	}
	if wait > 0 && (p.requeueAfter == 0 || wait < p.requeueAfter) {
		p.requeueAfter = wait
	}
}

// desiredActive is the number of active pods wanted.
func (t *podCounts) desiredActive(j *batchv1.Job) int32 {
	parallelism := *j.Spec.Parallelism
	switch {
	case j.Spec.Completions != nil:
		return max(0, min(parallelism, *j.Spec.Completions-t.succeeded))
	case t.succeeded > 0:
		return int32(len(t.active)) // after the first success running pods may finish, but none are added
	}
	return parallelism
}

// activePodsForRemoval are the active pods to delete: at least n, and those of an indexed job with a missing, invalid
// or duplicate index.
func (t *podCounts) activePodsForRemoval(j *batchv1.Job, n int) []*corev1.Pod {
	rest := slices.SortedFunc(slices.Values(t.active), compareForRemoval)
	var out []*corev1.Pod
	if isIndexed(j) {
		out, rest = splitDuplicates(j, rest)
	}
	if more := n - len(out); more > 0 {
		out = append(out, rest[:more]...)
	}
	return out
}

// splitDuplicates separates pods with an invalid or duplicate index. Of several with one index the last in order stays.
func splitDuplicates(j *batchv1.Job, pods []*corev1.Pod) (out, rest []*corev1.Pod) {
	keep := map[int32]*corev1.Pod{}
	for _, p := range pods {
		n, ok := indexOf(j, p)
		if old := keep[n]; ok && old != nil {
			out = append(out, old)
		}
		if ok {
			keep[n] = p
		} else {
			out = append(out, p)
		}
	}
	return out, slices.SortedFunc(maps.Values(keep), compareForRemoval)
}

// compareForRemoval sorts pods with less progress first, which are deleted first.
func compareForRemoval(a, b *corev1.Pod) int {
	return cmp.Or(
		cmp.Compare(boolToInt(a.Spec.NodeName != ""), boolToInt(b.Spec.NodeName != "")),
		cmp.Compare(phaseOrder(a.Status.Phase), phaseOrder(b.Status.Phase)),
		cmp.Compare(boolToInt(pod.Ready(a)), boolToInt(pod.Ready(b))),
		b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
		cmp.Compare(a.UID, b.UID),
	)
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func phaseOrder(p corev1.PodPhase) int {
	switch p {
	case corev1.PodRunning:
		return 2
	case corev1.PodUnknown:
		return 1
	}
	return 0
}

// condition returns a condition, which is part of list; nil: there is none.
func condition(list []batchv1.JobCondition, t batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range list {
		if list[i].Type == t {
			return &list[i]
		}
	}
	return nil
}

// setCondition modifies list, which the caller owns, and reports whether anything changed. A missing condition is not
// added as False.
func setCondition(
	list *[]batchv1.JobCondition, t batchv1.JobConditionType, status corev1.ConditionStatus, reason, message string,
	now time.Time,
) bool {
	jobCondition := batchv1.JobCondition{
		Type:               t,
		Status:             status,
		LastProbeTime:      metav1.NewTime(now),
		LastTransitionTime: metav1.NewTime(now),
		Reason:             reason,
		Message:            message,
	}
	switch old := condition(*list, t); {
	case old == nil && status == corev1.ConditionFalse:
		return false
	case old == nil:
		*list = append(*list, jobCondition)
	case old.Status == status && old.Reason == reason && old.Message == message:
		return false
	default:
		*old = jobCondition
	}
	return true
}

// isFinished reports whether the job is Complete or Failed.
func isFinished(j *batchv1.Job) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
	})
}
