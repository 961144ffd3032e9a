// SPDX-License-Identifier: Apache-2.0

package job

import (
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"keelson/api/batch"
)

// isIndexed reports whether the job has completion mode Indexed.
func isIndexed(j *batchv1.Job) bool {
	return j.Spec.CompletionMode != nil && *j.Spec.CompletionMode == batchv1.IndexedCompletion
}

// hasBackoffLimitPerIndex reports whether the job has a back-off limit per index.
func hasBackoffLimitPerIndex(j *batchv1.Job) bool {
	return isIndexed(j) && j.Spec.BackoffLimitPerIndex != nil
}

// indexOf is the pod's index, if the job has this index.
func indexOf(j *batchv1.Job, p *corev1.Pod) (int32, bool) {
	n, ok := parseIndex(p.Annotations[batchv1.JobCompletionIndexAnnotation])
	return n, ok && j.Spec.Completions != nil && n < *j.Spec.Completions
}

func parseIndex(text string) (int32, bool) {
	n, err := strconv.ParseInt(text, 10, 32)
	return int32(n), err == nil && n >= 0
}

// indexFailures are the failures of an index before this pod; the podFailurePolicy excludes the ignored ones from the
// limit.
func indexFailures(p *corev1.Pod) (counted, ignored int32) {
	counted, _ = parseIndex(p.Annotations[batchv1.JobIndexFailureCountAnnotation])
	ignored, _ = parseIndex(p.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation])
	return counted, ignored
}

// replacementFailures are the failures of an index before the replacement of p, which may be nil.
func replacementFailures(j *batchv1.Job, p *corev1.Pod) (counted, ignored int32) {
	if p == nil {
		return 0, 0
	}
	counted, ignored = indexFailures(p)
	if matchPodFailurePolicy(j.Spec.PodFailurePolicy, p).countsAsFailure() {
		return counted + 1, ignored
	}
	return counted, ignored + 1
}

// indexes counts the results of the indexes.
func (t *podCounts) indexes(snap snapshot) {
	job := snap.job
	completions := *job.Spec.Completions
	t.previousCompleted = batch.ReadIndexes(job.Status.CompletedIndexes, completions)
	var lost batch.Indexes
	if text := job.Status.FailedIndexes; text != nil {
		lost = batch.ReadIndexes(*text, completions)
	}
	var won, failed []int32
	for _, p := range snap.pods {
		n, ok := indexOf(job, p)
		switch {
		case !ok || !tracked(p):
		case p.Status.Phase == corev1.PodSucceeded && !lost.Has(n):
			won = append(won, n)
		case hasBackoffLimitPerIndex(job) && isPodFailed(job, p) && indexFailed(job, p):
			failed = append(failed, n)
		}
	}
	slices.Sort(won)
	t.completed = t.previousCompleted.With(won)
	t.succeeded = t.completed.Count()
	if !hasBackoffLimitPerIndex(job) {
		return
	}
	failed = slices.DeleteFunc(failed, t.completed.Has)
	slices.Sort(failed)
	t.failedIndexes = lost.With(failed)
	t.replaced = t.lastFailures(snap)
}

// indexFailed reports whether the failure of p exceeds the limit of its index.
func indexFailed(j *batchv1.Job, p *corev1.Pod) bool {
	r := matchPodFailurePolicy(j.Spec.PodFailurePolicy, p)
	counted, _ := indexFailures(p)
	return r.action == batchv1.PodFailurePolicyActionFailIndex ||
		r.countsAsFailure() && counted >= *j.Spec.BackoffLimitPerIndex
}

// lastFailures maps each index that needs a pod to the failed pod that is replaced. That pod keeps its finalizer,
// because only it has the number of failures of the index.
func (t *podCounts) lastFailures(s snapshot) map[int32]*corev1.Pod {
	has := map[int32]bool{}
	for _, p := range t.active {
		if n, ok := indexOf(s.job, p); ok {
			has[n] = true
		}
	}
	last := map[int32]*corev1.Pod{}
	for _, p := range s.pods {
		n, ok := indexOf(s.job, p)
		if !ok || has[n] || !s.tracked(p) || !isPodFailed(s.job, p) || t.completed.Has(n) || t.failedIndexes.Has(n) {
			continue
		}
		if q := last[n]; q == nil || !finishedLater(q, p) {
			last[n] = p
		}
	}
	return last
}

// finishedLater reports whether q failed later than p, at the same index.
func finishedLater(q, p *corev1.Pod) bool {
	a, b := indexFailures(q)
	c, d := indexFailures(p)
	return a+b > c+d || finished(q).After(finished(p))
}

// pending are at most n indexes that need a pod now; if there are none, wait is the time until one may get a pod.
func (t *podCounts) pending(snap snapshot, n int32) (indexes []int32, wait time.Duration) {
	busy := make([]int32, 0, len(t.active))
	for _, p := range t.active {
		if i, ok := indexOf(snap.job, p); ok {
			busy = append(busy, i)
		}
	}
	if onlyReplaceFailedPods(snap.job) {
		for _, p := range snap.pods {
			if i, ok := indexOf(snap.job, p); ok && terminating(p) {
				busy = append(busy, i)
			}
		}
	}
	slices.Sort(busy)
	taken := t.completed.With(busy)
	for i := range taken.Union(t.failedIndexes).Gaps(*snap.job.Spec.Completions) {
		if int32(len(indexes)) >= n {
			break
		}
		if p := t.replaced[i]; p != nil {
			counted, ignored := replacementFailures(snap.job, p)
			if d := (backoffRecord{count: counted + ignored, last: finished(p)}).wait(snap.now); d > 0 {
				if wait == 0 || d < wait {
					wait = d
				}
				continue
			}
		}
		indexes = append(indexes, i)
	}
	return indexes, wait
}
