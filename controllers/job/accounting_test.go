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
		job *batchv1.Job,
	) {
		switch rapid.SampledFrom([]string{"plain", "indexed", "perIndex"}).Draw(t, "mode") {
		case "plain":
			job.Spec.BackoffLimit = &limit
		case "indexed":
			asIndexed(job)
			job.Spec.BackoffLimit = &limit
		case "perIndex":
			limitPerIndex(limit)(job)
		}
		if rapid.Bool().Draw(t, "onlyFailed") {
			job.Spec.PodReplacementPolicy = new(batchv1.Failed)
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
	snap := snapshot{
		job:                   w.job.DeepCopy(),
		pods:                  slices.Clone(w.pods),
		finalizerRemoved:      w.freed,
		expectationsSatisfied: true,
		now:                   w.now,
	}
	plan := decide(snap)
	var o outcome
	for i := range plan.create {
		if w.crash("creating") {
			return
		}
		w.made++
		q := newPod(fmt.Sprintf("pod-%03d", w.made))
		if isIndexed(w.job) {
			setIndex(w.job, q, plan.indexes[i], plan.replaced[plan.indexes[i]])
		}
		w.pods = append(w.pods, q)
		o.created++
	}
	for _, q := range slices.Concat(plan.remove, plan.terminate) {
		if w.crash("deleting") {
			return
		}
		if len(plan.remove) > 0 {
			w.forsaken[q.UID] = true
			w.free(q)
		}
		live := w.pods[slices.IndexFunc(w.pods, func(r *corev1.Pod) bool { return r.UID == q.UID })]
		w.change(live, func(r *corev1.Pod) { r.DeletionTimestamp = &metav1.Time{Time: w.now} })
		o.deleted = append(o.deleted, q)
	}
	accounting := newAccounting(snap, plan, o)
	if w.crash("before the status") {
		return
	}
	w.write(accounting.status)
	var freed []*corev1.Pod
	for _, q := range accounting.toRelease {
		if w.crash("freeing") {
			return
		}
		if rapid.IntRange(0, 9).Draw(w.t, "a patch fails") == 0 {
			continue
		}
		w.free(q)
		freed = append(freed, q)
	}
	accounting.countReleased(snap, freed)
	if w.crash("after freeing") {
		return
	}
	w.write(accounting.status)
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
		world := newWorld(t)
		for range 500 {
			if isFinished(world.job) {
				break
			}
			world.pass()
			world.live()
		}
		if !isFinished(world.job) {
			t.Fatalf("the job never ends: %+v", world.job.Status)
		}
		var won, lost int32
		done := map[int32]bool{}
		for _, p := range slices.Concat(world.pods, world.vanished) {
			switch {
			case world.forsaken[p.UID]:
			case p.Status.Phase == corev1.PodSucceeded:
				n, _ := indexOf(world.job, p)
				if !done[n] || !isIndexed(world.job) {
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
		if st := world.job.Status; st.Succeeded != won || st.Failed != lost {
			t.Errorf("%d succeeded and %d failed, counted are %d and %d", won, lost, st.Succeeded, st.Failed)
		}
		if c := condition(world.job.Status.Conditions, batchv1.JobComplete); c != nil &&
			won != *world.job.Spec.Completions {
			t.Errorf("complete after %d of %d", won, *world.job.Spec.Completions)
		}
	})
}

// TestQuiet: a pass over what a pass has left changes nothing.
func TestQuiet(t *testing.T) {
	j := newJob(4, 2, asIndexed)
	snap := snapshot{
		job:                   j,
		pods:                  []*corev1.Pod{newPod("a", index(0), done), newPod("b", index(1)), newPod("c", index(2))},
		expectationsSatisfied: true,
		now:                   now,
	}
	a := newAccounting(snap, decide(snap), outcome{})
	a.countReleased(snap, a.toRelease)
	j.Status = a.status
	snap.pods[0].Finalizers = nil
	snap.now = snap.now.Add(time.Hour)
	p := decide(snap)
	b := newAccounting(snap, p, outcome{})
	b.countReleased(snap, b.toRelease)
	if got := fmt.Sprint(summary(p), len(b.toRelease), b.status.Succeeded, b.status.CompletedIndexes); got != "0 10" ||
		b.status.String() != a.status.String() {
		t.Errorf("got %q and status %s, want %s", got, b.status.String(), a.status.String())
	}
}

func TestSuspension(t *testing.T) {
	job := newJob(1, 1, started, func(j *batchv1.Job) { j.Spec.Suspend = new(true) })
	snap := snapshot{job: job, expectationsSatisfied: true, now: now}
	accounting := newAccounting(snap, decide(snap), outcome{})
	if c := condition(accounting.status.Conditions, batchv1.JobSuspended); !accounting.suspended ||
		accounting.status.StartTime != nil ||
		c == nil || c.Message != "Job suspended" {
		t.Errorf("suspended: %v, since %v, %v", accounting.suspended, accounting.status.StartTime, c)
	}
	job.Status = accounting.status
	if again := newAccounting(snap, decide(snap), outcome{}); again.suspended {
		t.Error("it is said twice")
	}
	job.Spec.Suspend = new(false)
	accounting = newAccounting(snap, decide(snap), outcome{created: 1})
	c := condition(accounting.status.Conditions, batchv1.JobSuspended)
	if !accounting.resumed || !accounting.status.StartTime.Equal(&metav1.Time{Time: now}) ||
		c.Status != corev1.ConditionFalse ||
		c.Reason != "JobResumed" {
		t.Errorf("resumed: %v, since %v, %v", accounting.resumed, accounting.status.StartTime, c)
	}
}

// TestNothingToDo: a Job without completions is complete, also while it is suspended.
func TestNothingToDo(t *testing.T) {
	for _, suspend := range []bool{false, true} {
		job := newJob(0, 1, func(j *batchv1.Job) { j.Spec.Suspend = &suspend })
		snap := snapshot{job: job, expectationsSatisfied: true, now: now}
		accounting := newAccounting(snap, decide(snap), outcome{})
		c := condition(accounting.status.Conditions, batchv1.JobSuccessCriteriaMet)
		if c == nil || accounting.end == nil || c.Reason != batchv1.JobReasonCompletionsReached {
			t.Errorf("suspended %v: got %v", suspend, accounting.status.Conditions)
		}
	}
}

// TestMany: a status lists no more than a burst, and more than that is counted in several passes.
func TestMany(t *testing.T) {
	job := newJob(1200, 1200, started)
	snap := snapshot{job: job, expectationsSatisfied: true, now: now}
	for i := range 1200 {
		snap.pods = append(snap.pods, newPod(fmt.Sprintf("p%04d", i), done))
	}
	passes := 0
	for ; !isFinished(job) && passes < 10; passes++ {
		a := newAccounting(snap, decide(snap), outcome{})
		if n := len(a.status.UncountedTerminatedPods.Succeeded); n > burst {
			t.Fatalf("%d are listed", n)
		}
		for _, p := range a.toRelease {
			p.Finalizers = nil
		}
		a.countReleased(snap, a.toRelease)
		job.Status = a.status
	}
	if passes != 3 || job.Status.Succeeded != 1200 || !strings.Contains(job.Status.Conditions[1].Message, "Reached") {
		t.Errorf("after %d passes: %d succeeded, %v", passes, job.Status.Succeeded, job.Status.Conditions)
	}
}
