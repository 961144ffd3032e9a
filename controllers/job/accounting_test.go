// SPDX-License-Identifier: Apache-2.0

package job

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"keelson/api/batch"
	"keelson/api/core/pod"
	"keelson/api/gates"
)

// world is a server, its pods and their nodes, and a controller that crashes.
type world struct {
	t        *rapid.T
	job      *batchv1.Job
	pods     []*corev1.Pod
	vanished []*corev1.Pod
	freed    map[types.UID]struct{}
	forsaken map[types.UID]bool
	now      time.Time
	made     int
}

func newWorld(t *rapid.T) *world {
	w := &world{
		t:        t,
		freed:    map[types.UID]struct{}{},
		forsaken: map[types.UID]bool{},
		now:      now,
	}
	limit := rapid.Int32Range(0, 4).Draw(t, "limit")
	w.job = newJob(rapid.Int32Range(1, 8).Draw(t, "completions"), rapid.Int32Range(1, 4).Draw(t, "parallelism"), func(
		j *batchv1.Job,
	) {
		switch rapid.SampledFrom([]string{"plain", "indexed", "perIndex"}).Draw(t, "mode") {
		case "plain":
			j.Spec.BackoffLimit = &limit
		case "indexed":
			asIndexed(j)
			j.Spec.BackoffLimit = &limit
		case "perIndex":
			limitPerIndex(limit)(j)
		}
		if rapid.Bool().Draw(t, "onlyFailed") {
			j.Spec.PodReplacementPolicy = new(batchv1.Failed)
		}
	})
	return w
}

// write stores a status as the server does: it refuses what makes no sense.
func (w *world) write(st batchv1.JobStatus) {
	next := w.job.DeepCopy()
	next.Status = *st.DeepCopy()
	if errs := batch.Job(gates.On{}).Subs["status"].ValidateUpdate(next, w.job); len(errs) > 0 {
		w.t.Fatalf("the server refuses a status: %v\nfrom %+v\nto %+v", errs, w.job.Status, next.Status)
	}
	w.job = next
}

func (w *world) crash(where string) bool {
	if rapid.IntRange(0, 9).Draw(w.t, where) > 0 {
		return false
	}
	w.freed = map[types.UID]struct{}{} // the memory is lost
	return true
}

// free takes a finalizer, and with it a pod that was waiting for that.
func (w *world) free(p *corev1.Pod) {
	i := slices.IndexFunc(w.pods, func(q *corev1.Pod) bool { return q.UID == p.UID })
	if i < 0 {
		return
	}
	w.pods[i] = w.pods[i].DeepCopy()
	w.pods[i].Finalizers = nil
	w.collect()
}

func (w *world) collect() {
	w.pods = slices.DeleteFunc(w.pods, func(p *corev1.Pod) bool {
		gone := p.DeletionTimestamp != nil && pod.Terminal(p) && len(p.Finalizers) == 0
		if gone {
			w.vanished = append(w.vanished, p)
		}
		return gone
	})
}

// change gives one pod a new state.
func (w *world) change(p *corev1.Pod, f func(*corev1.Pod)) *corev1.Pod {
	q := p.DeepCopy()
	f(q)
	w.pods[slices.Index(w.pods, p)] = q
	return q
}

// pass is one of the controller's, which may crash anywhere.
func (w *world) pass() {
	w.now = w.now.Add(time.Hour) // no back-off
	s := snapshot{
		job:                   w.job.DeepCopy(),
		pods:                  slices.Clone(w.pods),
		finalizerRemoved:      w.freed,
		expectationsSatisfied: true,
		now:                   w.now,
	}
	p := decide(s)
	var o outcome
	for i := range p.create {
		if w.crash("creating") {
			return
		}
		w.made++
		q := newPod(fmt.Sprintf("pod-%03d", w.made))
		if isIndexed(w.job) {
			setIndex(w.job, q, p.indexes[i], p.replaced[p.indexes[i]])
		}
		w.pods = append(w.pods, q)
		o.created++
	}
	for _, q := range slices.Concat(p.remove, p.terminate) {
		if w.crash("deleting") {
			return
		}
		if len(p.remove) > 0 {
			w.forsaken[q.UID] = true
			w.free(q)
		}
		live := w.pods[slices.IndexFunc(w.pods, func(r *corev1.Pod) bool { return r.UID == q.UID })]
		w.change(live, func(r *corev1.Pod) { r.DeletionTimestamp = &metav1.Time{Time: w.now} })
		o.deleted = append(o.deleted, q)
	}
	a := newAccounting(s, p, o)
	if w.crash("before the status") {
		return
	}
	w.write(a.status)
	var freed []*corev1.Pod
	for _, q := range a.toRelease {
		if w.crash("freeing") {
			return
		}
		if rapid.IntRange(0, 9).Draw(w.t, "a patch fails") == 0 {
			continue
		}
		w.free(q)
		freed = append(freed, q)
	}
	a.countReleased(s, freed)
	if w.crash("after freeing") {
		return
	}
	w.write(a.status)
}

// live lets one thing happen to a pod.
func (w *world) live() {
	var active []*corev1.Pod
	for _, p := range w.pods {
		if !pod.Terminal(p) {
			active = append(active, p)
		}
	}
	if len(active) == 0 {
		return
	}
	p := rapid.SampledFrom(active).Draw(w.t, "pod")
	switch {
	case p.DeletionTimestamp != nil:
		w.change(p, func(q *corev1.Pod) { q.Status.Phase = corev1.PodFailed })
	case rapid.IntRange(0, 9).Draw(w.t, "deleted") == 0:
		w.change(p, func(q *corev1.Pod) { q.DeletionTimestamp = &metav1.Time{Time: w.now} })
	case rapid.IntRange(0, 2).Draw(w.t, "fails") == 0:
		w.change(p, func(q *corev1.Pod) { q.Status.Phase = corev1.PodFailed })
	default:
		w.change(p, func(q *corev1.Pod) { q.Status.Phase = corev1.PodSucceeded })
	}
	w.collect()
}

// TestCountedOnce: whatever crashes, each pod that has ended is counted once when the job has, the server accepts every
// status, and the job ends.
func TestCountedOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range 500 {
			if isFinished(w.job) {
				break
			}
			w.pass()
			w.live()
		}
		if !isFinished(w.job) {
			t.Fatalf("the job never ends: %+v", w.job.Status)
		}
		var won, lost int32
		done := map[int32]bool{}
		for _, p := range slices.Concat(w.pods, w.vanished) {
			switch {
			case w.forsaken[p.UID]:
			case p.Status.Phase == corev1.PodSucceeded:
				n, _ := indexOf(w.job, p)
				if !done[n] || !isIndexed(w.job) {
					won++
				}
				done[n] = true
			case p.Status.Phase == corev1.PodFailed || p.DeletionTimestamp != nil:
				lost++
			}
			if tracked(p) {
				t.Errorf("pod %s keeps its finalizer", p.Name)
			}
		}
		if st := w.job.Status; st.Succeeded != won || st.Failed != lost {
			t.Errorf("%d succeeded and %d failed, counted are %d and %d", won, lost, st.Succeeded, st.Failed)
		}
		if c := condition(w.job.Status.Conditions, batchv1.JobComplete); c != nil && won != *w.job.Spec.Completions {
			t.Errorf("complete after %d of %d", won, *w.job.Spec.Completions)
		}
	})
}

// TestQuiet: a pass over what a pass has left changes nothing.
func TestQuiet(t *testing.T) {
	j := newJob(4, 2, asIndexed)
	s := snapshot{
		job:                   j,
		pods:                  []*corev1.Pod{newPod("a", index(0), done), newPod("b", index(1)), newPod("c", index(2))},
		expectationsSatisfied: true,
		now:                   now,
	}
	a := newAccounting(s, decide(s), outcome{})
	a.countReleased(s, a.toRelease)
	j.Status = a.status
	s.pods[0].Finalizers = nil
	s.now = s.now.Add(time.Hour)
	p := decide(s)
	b := newAccounting(s, p, outcome{})
	b.countReleased(s, b.toRelease)
	if got := fmt.Sprint(told(p), len(b.toRelease), b.status.Succeeded, b.status.CompletedIndexes); got != "0 10" ||
		b.status.String() != a.status.String() {
		t.Errorf("got %q and status %s, want %s", got, b.status.String(), a.status.String())
	}
}

func TestSuspension(t *testing.T) {
	j := newJob(1, 1, started, func(j *batchv1.Job) { j.Spec.Suspend = new(true) })
	s := snapshot{job: j, expectationsSatisfied: true, now: now}
	a := newAccounting(s, decide(s), outcome{})
	if c := condition(a.status.Conditions, batchv1.JobSuspended); !a.suspended || a.status.StartTime != nil ||
		c == nil || c.Message != "Job suspended" {
		t.Errorf("suspended: %v, since %v, %v", a.suspended, a.status.StartTime, c)
	}
	j.Status = a.status
	if again := newAccounting(s, decide(s), outcome{}); again.suspended {
		t.Error("it is said twice")
	}
	j.Spec.Suspend = new(false)
	a = newAccounting(s, decide(s), outcome{created: 1})
	c := condition(a.status.Conditions, batchv1.JobSuspended)
	if !a.resumed || !a.status.StartTime.Equal(&metav1.Time{Time: now}) || c.Status != corev1.ConditionFalse ||
		c.Reason != "JobResumed" {
		t.Errorf("resumed: %v, since %v, %v", a.resumed, a.status.StartTime, c)
	}
}

// TestMany: a status lists no more than a burst, and more than that is counted in several passes.
func TestMany(t *testing.T) {
	j := newJob(1200, 1200, started)
	s := snapshot{job: j, expectationsSatisfied: true, now: now}
	for i := range 1200 {
		s.pods = append(s.pods, newPod(fmt.Sprintf("p%04d", i), done))
	}
	passes := 0
	for ; !isFinished(j) && passes < 10; passes++ {
		a := newAccounting(s, decide(s), outcome{})
		if n := len(a.status.UncountedTerminatedPods.Succeeded); n > burst {
			t.Fatalf("%d are listed", n)
		}
		for _, p := range a.toRelease {
			p.Finalizers = nil
		}
		a.countReleased(s, a.toRelease)
		j.Status = a.status
	}
	if passes != 3 || j.Status.Succeeded != 1200 || !strings.Contains(j.Status.Conditions[1].Message, "Reached") {
		t.Errorf("after %d passes: %d succeeded, %v", passes, j.Status.Succeeded, j.Status.Conditions)
	}
}
