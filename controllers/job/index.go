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

// indexed reports whether the job has completion mode Indexed.
func indexed(j *batchv1.Job) bool {
	return j.Spec.CompletionMode != nil && *j.Spec.CompletionMode == batchv1.IndexedCompletion
}

// perIndex reports whether the job has a back-off limit per index.
func perIndex(j *batchv1.Job) bool { return indexed(j) && j.Spec.BackoffLimitPerIndex != nil }

// indexOf is the pod's index, if the job has this index.
func indexOf(j *batchv1.Job, p *corev1.Pod) (int32, bool) {
	n, ok := number(p.Annotations[batchv1.JobCompletionIndexAnnotation])
	return n, ok && j.Spec.Completions != nil && n < *j.Spec.Completions
}

func number(text string) (int32, bool) {
	n, err := strconv.ParseInt(text, 10, 32)
	return int32(n), err == nil && n >= 0
}

// past are the failures of an index before this pod; the podFailurePolicy excludes the ignored ones from the limit.
func past(p *corev1.Pod) (counted, ignored int32) {
	counted, _ = number(p.Annotations[batchv1.JobIndexFailureCountAnnotation])
	ignored, _ = number(p.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation])
	return counted, ignored
}

// carried are the failures of an index before the replacement of p, which may be nil.
func carried(j *batchv1.Job, p *corev1.Pod) (counted, ignored int32) {
	if p == nil {
		return 0, 0
	}
	counted, ignored = past(p)
	if rule(j.Spec.PodFailurePolicy, p).counts() {
		return counted + 1, ignored
	}
	return counted, ignored + 1
}

// indexes counts the results of the indexes.
func (t *tally) indexes(s snapshot) {
	j := s.job
	completions := *j.Spec.Completions
	t.before = batch.ReadIndexes(j.Status.CompletedIndexes, completions)
	var lost batch.Indexes
	if text := j.Status.FailedIndexes; text != nil {
		lost = batch.ReadIndexes(*text, completions)
	}
	var won, failed []int32
	for _, p := range s.pods {
		n, ok := indexOf(j, p)
		switch {
		case !ok || !tracked(p):
		case p.Status.Phase == corev1.PodSucceeded && !lost.Has(n):
			won = append(won, n)
		case perIndex(j) && failedPod(j, p) && indexFailed(j, p):
			failed = append(failed, n)
		}
	}
	slices.Sort(won)
	t.completed = t.before.With(won)
	t.succeeded = t.completed.Count()
	if !perIndex(j) {
		return
	}
	failed = slices.DeleteFunc(failed, t.completed.Has)
	slices.Sort(failed)
	t.lost = lost.With(failed)
	t.replaced = t.lastFailures(s)
}

// indexFailed reports whether the failure of p exceeds the limit of its index.
func indexFailed(j *batchv1.Job, p *corev1.Pod) bool {
	r := rule(j.Spec.PodFailurePolicy, p)
	counted, _ := past(p)
	return r.action == batchv1.PodFailurePolicyActionFailIndex || r.counts() && counted >= *j.Spec.BackoffLimitPerIndex
}

// lastFailures maps each index that needs a pod to the failed pod that is replaced. That pod keeps its finalizer, because only it has the
// number of failures of the index.
func (t *tally) lastFailures(s snapshot) map[int32]*corev1.Pod {
	has := map[int32]bool{}
	for _, p := range t.active {
		if n, ok := indexOf(s.job, p); ok {
			has[n] = true
		}
	}
	last := map[int32]*corev1.Pod{}
	for _, p := range s.pods {
		n, ok := indexOf(s.job, p)
		if !ok || has[n] || !s.tracked(p) || !failedPod(s.job, p) || t.completed.Has(n) || t.lost.Has(n) {
			continue
		}
		if q := last[n]; q == nil || !later(q, p) {
			last[n] = p
		}
	}
	return last
}

// later reports whether q failed later than p, at the same index.
func later(q, p *corev1.Pod) bool {
	a, b := past(q)
	c, d := past(p)
	return a+b > c+d || finished(q).After(finished(p))
}

// pending are at most n indexes that need a pod now; if there are none, wait is the time until one may get a pod.
func (t *tally) pending(s snapshot, n int32) (indexes []int32, wait time.Duration) {
	busy := make([]int32, 0, len(t.active))
	for _, p := range t.active {
		if i, ok := indexOf(s.job, p); ok {
			busy = append(busy, i)
		}
	}
	if onlyFailed(s.job) {
		for _, p := range s.pods {
			if i, ok := indexOf(s.job, p); ok && terminating(p) {
				busy = append(busy, i)
			}
		}
	}
	slices.Sort(busy)
	taken := t.completed.With(busy)
	for i := range taken.Union(t.lost).Gaps(*s.job.Spec.Completions) {
		if int32(len(indexes)) >= n {
			break
		}
		if p := t.replaced[i]; p != nil {
			counted, ignored := carried(s.job, p)
			if d := (failures{count: counted + ignored, last: finished(p)}).wait(s.now); d > 0 {
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
