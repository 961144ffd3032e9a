// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"fmt"
	"math"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/lib/cron"
	"keelson/lib/words"
)

const (
	// mostMissed limits the missed starts that are counted.
	mostMissed = 100
	// promptly is how late a start may be without being missed.
	promptly = 10 * time.Second
)

// Cron is a CronJob with related objects.
type Cron struct {
	CronJob *batchv1.CronJob
	Jobs    []batchv1.Job // in its namespace
	// Controllers is what is wrong with the controllers; empty: nothing known.
	Controllers string
}

// Explain says when a CronJob ran last and will run next, and what prevents that.
func (c *Cron) Explain(now time.Time) *Answer {
	cj := c.CronJob
	answer := of("cronjob", cj)
	answer.State = words.Count(len(cj.Status.Active), "active job")
	c.past(answer, now)
	switch schedule := c.schedule(answer); {
	case cj.DeletionTimestamp != nil:
		answer.State = "Terminating"
		answer.because("it is being deleted and starts nothing; finalizers: %s", or(some(cj.Finalizers), "none"))
	case cj.Spec.Suspend != nil && *cj.Spec.Suspend:
		answer.State = "Suspended"
		answer.because("its spec.suspend is true: it starts nothing")
		answer.do("`kubectl patch cronjob/%s -n %s -p '{\"spec\":{\"suspend\":false}}'` lets it start again; the last "+
			"start that it missed is made up for at once, "+
			"unless it is older than spec.startingDeadlineSeconds", cj.Name, cj.Namespace)
	case schedule != nil:
		c.starts(answer, schedule, now)
	}
	if c.Controllers != "" {
		answer.because("the controllers do not work, so no jobs are started: %s", c.Controllers)
	}
	return answer
}

// past describes the last start, active jobs, and how the newest finished job ended.
func (c *Cron) past(answer *Answer, now time.Time) {
	st := &c.CronJob.Status
	if st.LastScheduleTime == nil {
		answer.because("it has never started a job; it was created at %s", clock(c.CronJob.CreationTimestamp.Time))
	} else {
		answer.because("it last started a job for %s, %s ago", clock(st.LastScheduleTime.Time),
			since(st.LastScheduleTime.Time, now))
	}
	for i, r := range st.Active {
		if i == mostNamed {
			answer.because("and %s", words.Count(len(st.Active)-mostNamed, "more job"))
			break
		}
		answer.because("job %s runs%s", r.Name, c.startedAt(r.Name))
	}
	if len(st.Active) > 0 {
		answer.do("`keelson why job/%s -n %s` says how its pods are", st.Active[0].Name, answer.Namespace)
	}
	newest, how := c.newestEnded()
	switch {
	case newest == nil && st.LastSuccessfulTime != nil:
		answer.because("a job of it last succeeded at %s", clock(st.LastSuccessfulTime.Time))
	case newest == nil:
	case how.Type == batchv1.JobComplete:
		answer.because("its newest job that ended, %s, succeeded at %s", newest.Name,
			clock(how.LastTransitionTime.Time))
	default:
		last := "none has succeeded yet"
		if st.LastSuccessfulTime != nil {
			last = "the last success was at " + clock(st.LastSuccessfulTime.Time)
		}
		answer.because("its newest job that ended, %s, failed: %s; %s", newest.Name,
			answer.quote(how.Reason, how.Message),
			last)
		answer.do("`kubectl logs -n %s job/%s` has its words, while its pods are kept", answer.Namespace, newest.Name)
	}
}

func (c *Cron) startedAt(job string) string {
	for i := range c.Jobs {
		if j := &c.Jobs[i]; j.Name == job && j.Status.StartTime != nil {
			return " since " + clock(j.Status.StartTime.Time)
		}
	}
	return ""
}

// newestEnded is the CronJob's newest finished job, with its final condition.
func (c *Cron) newestEnded() (newest *batchv1.Job, how *batchv1.JobCondition) {
	for i := range c.Jobs {
		j := &c.Jobs[i]
		at := slices.IndexFunc(j.Status.Conditions, func(k batchv1.JobCondition) bool {
			return (k.Type == batchv1.JobComplete || k.Type == batchv1.JobFailed) && k.Status == corev1.ConditionTrue
		})
		if at >= 0 && metav1.IsControlledBy(j, c.CronJob) &&
			(newest == nil || newest.CreationTimestamp.Before(&j.CreationTimestamp)) {
			newest = j
			how = &j.Status.Conditions[at]
		}
	}
	return newest, how
}

// schedule parses the schedule; nil: it never runs, which is added to the answer.
func (c *Cron) schedule(answer *Answer) *cron.Schedule {
	spec := &c.CronJob.Spec
	zone := time.Local // the controller uses its machine's time zone
	if z := spec.TimeZone; z != nil {
		var err error
		if zone, err = time.LoadLocation(*z); err != nil {
			answer.because("its spec.timeZone %q cannot be used: %v", *z, err)
			answer.do("give it a name such as Europe/Berlin or Etc/UTC")
			return nil
		}
	}
	s, err := cron.Parse(spec.Schedule)
	if err != nil {
		answer.because("its schedule %q cannot be read: %v", spec.Schedule, err)
		answer.do("write it as \"minute hour day-of-month month day-of-week\", such as \"*/5 * * * *\"")
		return nil
	}
	return s.In(zone)
}

// starts explains a start that is due but missing, and gives the next one.
func (c *Cron) starts(answer *Answer, s *cron.Schedule, now time.Time) {
	cj := c.CronJob
	from := cj.CreationTimestamp.Time
	if t := cj.Status.LastScheduleTime; t != nil {
		from = t.Time
	}
	last, missed := s.Latest(from, now.Add(-promptly), mostMissed+1)
	if missed > 0 {
		c.missed(answer, last, missed, now)
	}
	next := s.Next(now)
	if next.IsZero() {
		answer.because("its schedule %q names a date that never comes", cj.Spec.Schedule)
		answer.do("change spec.schedule")
		return
	}
	zone := "of its controller's machine, taken for this one's"
	if cj.Spec.TimeZone != nil {
		zone = *cj.Spec.TimeZone
	}
	words := ""
	switch n := len(cj.Status.Active); {
	case n > 0 && cj.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent:
		words = "; while its job runs that start is put off (concurrencyPolicy Forbid)"
	case n > 0 && cj.Spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent:
		words = "; it ends the job that runs then (concurrencyPolicy Replace)"
	}
	answer.because("it is due next at %s, in %s (schedule %q, time zone %s)%s", clock(next), since(now, next),
		cj.Spec.Schedule, zone, words)
}

// missed explains why the last due start did not happen.
func (c *Cron) missed(answer *Answer, last time.Time, missed int, now time.Time) {
	cj := c.CronJob
	lead := "the start of " + clock(last)
	switch {
	case missed > mostMissed:
		lead = fmt.Sprintf("more than %d starts, the last of which was %s,", mostMissed, clock(last))
	case missed > 1:
		lead = fmt.Sprintf("%d starts, the last of which was %s,", missed, clock(last))
	}
	deadline := cj.Spec.StartingDeadlineSeconds
	late := deadline != nil &&
		now.Sub(last) > time.Duration(min(*deadline, int64(math.MaxInt64/time.Second)))*time.Second
	running := len(cj.Status.Active) > 0 && cj.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent
	switch {
	case running && late:
		answer.because("%s did not come: job %s ran (concurrencyPolicy Forbid), and now it is past its "+
			"startingDeadlineSeconds (%d)", lead, cj.Status.Active[0].Name, *deadline)
	case running:
		answer.because("%s did not come: job %s runs (concurrencyPolicy Forbid); the last one comes when that has "+
			"ended",
			lead, cj.Status.Active[0].Name)
	case late:
		answer.because("%s did not come within startingDeadlineSeconds (%d), and will not", lead, *deadline)
		answer.do("raise spec.startingDeadlineSeconds, if a late start is better than none; `keelson logs " +
			"controller-manager` says what the controllers did then")
	default:
		answer.because("%s did not come", lead)
		answer.do("see whether the controllers run and what they say (`keelson status`, `keelson logs " +
			"controller-manager`)")
		answer.cannot("whether its schedule was changed or it was suspended since: a changed schedule starts at its " +
			"next " +
			"time")
	}
}

// since is the time between two times in whole seconds.
func since(from, to time.Time) string { return to.Sub(from).Round(time.Second).String() }
