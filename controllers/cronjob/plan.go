// SPDX-License-Identifier: Apache-2.0

package cronjob

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/lib/cron"
)

const (
	// manyMissed is the number of missed starts that is reported as an event: the cluster was stopped for long, or the
	// clock is wrong.
	manyMissed = 100
	// startDelay is how long after its time a Job is created, because clocks are adjusted slightly.
	startDelay = 100 * time.Millisecond
)

// clusterEvent is an Event object of the CronJob.
type clusterEvent struct{ kind, reason, message string }

// plan is the result of a pass.
type plan struct {
	status batchv1.CronJobStatus
	// remove are finished Jobs beyond the history limits.
	remove []*batchv1.Job
	// missing are active Jobs that the cache does not have.
	missing []corev1.ObjectReference
	// unexpected are Jobs of the cache that run and are not active: or this controller has deleted them, and the cache
	// is behind.
	unexpected []*batchv1.Job
	// due is the time of the start to make; zero: none.
	due time.Time
	// replace: the due Job replaces the active ones.
	replace bool
	// next is the next time of the schedule; zero: none.
	next   time.Time
	events []clusterEvent
}

func (p *plan) addEvent(kind, reason, format string, args ...any) {
	p.events = append(p.events, clusterEvent{kind, reason, fmt.Sprintf(format, args...)})
}

// decide decides what to do for a CronJob with its Jobs.
func decide(cj *batchv1.CronJob, jobs []*batchv1.Job, now time.Time) plan {
	var p plan
	cj.Status.DeepCopyInto(&p.status)
	p.updateActive(jobs)
	p.remove = append(beyondHistoryLimit(jobs, batchv1.JobComplete, cj.Spec.SuccessfulJobsHistoryLimit),
		beyondHistoryLimit(jobs, batchv1.JobFailed, cj.Spec.FailedJobsHistoryLimit)...)
	if cj.DeletionTimestamp == nil {
		p.schedule(cj, now)
	}
	return p
}

// updateActive updates the list of active Jobs.
func (p *plan) updateActive(jobs []*batchv1.Job) {
	known := map[types.UID]bool{}
	for _, job := range jobs {
		known[job.UID] = true
		active := slices.ContainsFunc(p.status.Active, func(r corev1.ObjectReference) bool { return r.UID == job.UID })
		end := finishedCondition(job)
		switch {
		case end == "" && !active:
			p.unexpected = append(p.unexpected, job)
		case end != "" && active:
			p.removeActive(job.UID)
			p.addEvent(corev1.EventTypeNormal, "SawCompletedJob", "Saw completed job: %s, condition: %v", job.Name, end)
		}
		if t := job.Status.CompletionTime; end == batchv1.JobComplete && t != nil {
			if last := p.status.LastSuccessfulTime; last == nil || t.After(last.Time) {
				p.status.LastSuccessfulTime = t
			}
		}
	}
	for _, r := range p.status.Active {
		if !known[r.UID] {
			p.missing = append(p.missing, r)
		}
	}
}

// removeActive removes a Job from the active list.
func (p *plan) removeActive(uid types.UID) {
	p.status.Active = slices.DeleteFunc(p.status.Active, func(r corev1.ObjectReference) bool { return r.UID == uid })
	if len(p.status.Active) == 0 {
		p.status.Active = nil
	}
}

// schedule determines whether a start is due, and the next one.
func (p *plan) schedule(cj *batchv1.CronJob, now time.Time) {
	if cj.Spec.Suspend != nil && *cj.Spec.Suspend {
		return
	}
	s := p.parse(cj)
	if s == nil {
		return
	}
	from := cj.CreationTimestamp.Time
	if t := cj.Status.LastScheduleTime; t != nil {
		from = t.Time
	}
	first := s.Next(from)
	if first.IsZero() {
		p.addEvent(corev1.EventTypeWarning, "InvalidSchedule", "invalid schedule: %s : %s", cj.Spec.Schedule,
			"that date never comes")
		return
	}
	if first.After(now) {
		p.next = first
		return
	}
	last, missed := s.Latest(from, now, manyMissed+1)
	p.next = s.Next(last)
	if d := cj.Spec.StartingDeadlineSeconds; d != nil {
		limit := now.Add(-time.Duration(min(*d, int64(math.MaxInt64/time.Second))) * time.Second)
		if last.Before(limit) {
			return // the deadline of the last start is over
		}
		if limit.After(from) {
			_, missed = s.Latest(limit, now, manyMissed+1)
		}
	}
	if missed > manyMissed {
		p.addEvent(corev1.EventTypeWarning, "TooManyMissedTimes",
			"too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	p.due = last
}

// applyConcurrencyPolicy applies the concurrency policy to the due Job when the active Jobs are known.
func (p *plan) applyConcurrencyPolicy(cj *batchv1.CronJob) {
	if p.due.IsZero() {
		return
	}
	if slices.ContainsFunc(p.status.Active, func(r corev1.ObjectReference) bool { return r.Name == name(cj, p.due) }) {
		p.due = time.Time{} // the Job exists already
		return
	}
	switch {
	case len(p.status.Active) == 0:
	case cj.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent:
		p.addEvent(corev1.EventTypeNormal, "JobAlreadyActive",
			"Not starting job because prior execution is running and concurrency policy is Forbid")
		p.due = time.Time{}
	case cj.Spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent:
		p.replace = true
	}
}

// parse parses the schedule; nil: it is invalid until the CronJob changes.
func (p *plan) parse(cj *batchv1.CronJob) *cron.Schedule {
	zone := time.UTC
	if z := cj.Spec.TimeZone; z != nil {
		var err error
		if zone, err = time.LoadLocation(*z); err != nil {
			p.addEvent(corev1.EventTypeWarning, "UnknownTimeZone", "invalid timeZone: %q: %s", *z, err)
			return nil
		}
	}
	if strings.Contains(cj.Spec.Schedule, "TZ") {
		p.addEvent(corev1.EventTypeWarning, "UnsupportedSchedule",
			"CRON_TZ or TZ used in schedule %q is not officially supported, "+
				"see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details",
			cj.Spec.Schedule)
	}
	s, err := cron.Parse(cj.Spec.Schedule)
	if err != nil {
		p.addEvent(corev1.EventTypeWarning, "UnparseableSchedule", "unparseable schedule: %q : %s", cj.Spec.Schedule,
			err)
		return nil
	}
	if cj.Spec.TimeZone == nil {
		zone = time.Local // the machine's time zone
	}
	return s.In(zone)
}

// finishedCondition is the condition with which j has finished, or "".
func finishedCondition(j *batchv1.Job) batchv1.JobConditionType {
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

// beyondHistoryLimit are the oldest Jobs that finished with this condition, beyond the limit.
func beyondHistoryLimit(jobs []*batchv1.Job, end batchv1.JobConditionType, limit *int32) []*batchv1.Job {
	if limit == nil {
		return nil
	}
	var list []*batchv1.Job
	for _, j := range jobs {
		if finishedCondition(j) == end && j.DeletionTimestamp == nil {
			list = append(list, j)
		}
	}
	slices.SortFunc(list, func(a, b *batchv1.Job) int {
		x := a.Status.StartTime
		y := b.Status.StartTime
		switch {
		case x == nil && y == nil, x != nil && y != nil && x.Equal(y):
			return cmp.Compare(a.Name, b.Name)
		case x == nil:
			return 1
		case y == nil:
			return -1
		}
		return x.Compare(y.Time)
	})
	return list[:max(0, len(list)-int(*limit))]
}

// name is the name of the Job for a time. It is deterministic, so that no time gets two Jobs.
func name(cj *batchv1.CronJob, due time.Time) string {
	return fmt.Sprintf("%s-%d", cj.Name, due.Unix()/60)
}

// jobFor is the Job to create for a time.
func jobFor(cj *batchv1.CronJob, due time.Time) *batchv1.Job {
	spec := &cj.Spec.JobTemplate
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
		Name:            name(cj, due),
		Namespace:       cj.Namespace,
		Labels:          maps.Clone(spec.Labels),
		Annotations:     maps.Clone(spec.Annotations),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(cj, kind)},
	}}
	zone := time.UTC
	if z := cj.Spec.TimeZone; z != nil {
		if l, err := time.LoadLocation(*z); err == nil {
			zone = l
		}
	}
	if job.Annotations == nil {
		job.Annotations = map[string]string{}
	}
	job.Annotations[batchv1.CronJobScheduledTimestampAnnotation] = due.In(zone).Format(time.RFC3339)
	spec.Spec.DeepCopyInto(&job.Spec)
	return job
}
