// SPDX-License-Identifier: Apache-2.0

package cronjob

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
)

var now = time.Date(2026, 3, 1, 12, 0, 30, 0, time.UTC)

func at(d time.Duration) *metav1.Time { return &metav1.Time{Time: now.Add(d)} }

// newCron is a cron job created a minute ago, as changed by f.
func newCron(schedule string, f ...func(*batchv1.CronJob)) *batchv1.CronJob {
	cj := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{
		Name:              "tick",
		Namespace:         "default",
		UID:               "cron",
		CreationTimestamp: *at(-time.Minute),
	}}
	cj.Spec = batchv1.CronJobSpec{
		Schedule:                   schedule,
		ConcurrencyPolicy:          batchv1.AllowConcurrent,
		TimeZone:                   new("Etc/UTC"),
		SuccessfulJobsHistoryLimit: new(int32(2)),
		FailedJobsHistoryLimit:     new(int32(1)),
	}
	for _, g := range f {
		g(cj)
	}
	return cj
}

func created(ago time.Duration) func(*batchv1.CronJob) {
	return func(cj *batchv1.CronJob) { cj.CreationTimestamp = *at(-ago) }
}

func deadline(seconds int64) func(*batchv1.CronJob) {
	return func(cj *batchv1.CronJob) { cj.Spec.StartingDeadlineSeconds = &seconds }
}

func active(names ...string) func(*batchv1.CronJob) {
	return func(cj *batchv1.CronJob) {
		for _, n := range names {
			cj.Status.Active = append(cj.Status.Active, corev1.ObjectReference{Name: n, UID: types.UID(n)})
		}
	}
}

func policy(p batchv1.ConcurrencyPolicy) func(*batchv1.CronJob) {
	return func(cj *batchv1.CronJob) { cj.Spec.ConcurrencyPolicy = p }
}

// run is a job of the cron job: it has ended so, or runs if end is "".
func run(name string, end batchv1.JobConditionType, ago time.Duration) *batchv1.Job {
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Status: batchv1.JobStatus{
			StartTime: at(-ago),
		},
	}
	if end != "" {
		job.Status.Conditions = []batchv1.JobCondition{{Type: end, Status: corev1.ConditionTrue}}
	}
	if end == batchv1.JobComplete {
		job.Status.CompletionTime = at(-ago + time.Second)
	}
	return job
}

func TestDecide(t *testing.T) {
	type jobs = []*batchv1.Job
	const complete, failed = batchv1.JobComplete, batchv1.JobFailed
	zone := func(z string) func(*batchv1.CronJob) { return func(cj *batchv1.CronJob) { cj.Spec.TimeZone = &z } }
	tests := []struct {
		name string
		cj   *batchv1.CronJob
		jobs jobs
		want string
	}{
		{"due", newCron("* * * * *"), nil, "start 12:00 next 12:01"},
		{"not yet", newCron("30 * * * *"), nil, "next 12:30"},
		{
			"done already", newCron("* * * * *", func(cj *batchv1.CronJob) {
				cj.Status.LastScheduleTime = at(-30 * time.Second)
			}), nil, "next 12:01",
		},
		{"the last of those missed", newCron("0 * * * *", created(5*time.Hour)), nil, "start 12:00 next 13:00"},
		{
			"very many missed", newCron("* * * * *", created(200*time.Minute)), nil,
			"start 12:00 next 12:01; TooManyMissedTimes",
		},
		{
			"and one a century ago", newCron("@hourly", created(100*365*24*time.Hour)), nil,
			"start 12:00 next 13:00; TooManyMissedTimes",
		},
		{
			"few within the deadline", newCron("* * * * *", created(200*time.Minute), deadline(600)), nil,
			"start 12:00 next 12:01",
		},
		{"too late", newCron("50 * * * *", created(5*time.Hour), deadline(60)), nil, "next 12:50"},
		{"just in time", newCron("0 * * * *", created(5*time.Hour), deadline(30)), nil, "start 12:00 next 13:00"},
		{"the clock was set back", newCron("* * * * *", created(-time.Hour)), nil, "next 13:01"},
		{"suspended", newCron("* * * * *", func(cj *batchv1.CronJob) { cj.Spec.Suspend = new(true) }), nil, ""},
		{"going", newCron("* * * * *", func(cj *batchv1.CronJob) { cj.DeletionTimestamp = at(0) }), nil, ""},
		{
			"in its zone", newCron("30 17 * * *", zone("Asia/Kolkata"), created(time.Hour)), nil,
			"start 12:00 next 12:00",
		},
		{"no such zone", newCron("* * * * *", zone("Mars/Base")), nil, "; UnknownTimeZone"},
		{"no such schedule", newCron("* * * *"), nil, "; UnparseableSchedule"},
		{"never due", newCron("0 0 30 2 *"), nil, "; InvalidSchedule"},
		{
			"a zone in the schedule", newCron("TZ=Asia/Kolkata 30 17 * * *", func(cj *batchv1.CronJob) {
				cj.Spec.TimeZone = nil
			}, created(time.Hour)), nil,
			"start 12:00 next 12:00; UnsupportedSchedule",
		},

		{
			"another one", newCron("* * * * *", active("a")),
			jobs{run("a", "", time.Hour)},
			"start 12:00 next 12:01 active [a]",
		},
		{
			"one at a time", newCron("* * * * *", active("a"), policy(batchv1.ForbidConcurrent)),
			jobs{run("a", "", time.Hour)},
			"next 12:01 active [a]; JobAlreadyActive",
		},
		{
			"it has just ended", newCron("* * * * *", active("a"), policy(batchv1.ForbidConcurrent)),
			jobs{run("a", complete, time.Hour)},
			"start 12:00 next 12:01 last 11:00; SawCompletedJob",
		},
		{
			"in its place", newCron("* * * * *", active("a"), policy(batchv1.ReplaceConcurrent)),
			jobs{run("a", "", time.Hour)},
			"start 12:00 replacing next 12:01 active [a]",
		},
		{
			"it is there already", newCron("* * * * *", active("tick-29539440")),
			jobs{run("tick-29539440", "", 0)},
			"next 12:01 active [tick-29539440]",
		},
		{"somebody else's", newCron("30 * * * *"), jobs{run("a", "", time.Hour)}, "next 12:30 unexpected [a]"},
		{
			"one has vanished", newCron("30 * * * *", active("a", "b")),
			jobs{run("b", failed, time.Hour)},
			"next 12:30 active [a] missing [a]; SawCompletedJob",
		},
		{"old ones go", newCron("30 * * * *"), jobs{
			run("a", complete, time.Hour), run("b", complete, 3*time.Hour), run("c", failed, time.Hour),
			run("d", complete, 2*time.Hour), run("e", failed, 4*time.Hour),
		}, "next 12:30 last 11:00 remove [b e]"},
	}
	for _, tt := range tests {
		if got := summary(tt.cj, decide(tt.cj, tt.jobs, now)); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// summary is a plan in short.
func summary(cj *batchv1.CronJob, steps plan) string {
	steps.applyConcurrencyPolicy(cj)
	var parts []string
	say := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if !steps.due.IsZero() {
		say("start %s", steps.due.UTC().Format("15:04"))
	}
	if steps.replace {
		say("replacing")
	}
	if !steps.next.IsZero() {
		say("next %s", steps.next.UTC().Format("15:04"))
	}
	refs := func(what string, list []corev1.ObjectReference) {
		var names []string
		for _, r := range list {
			names = append(names, r.Name)
		}
		if len(names) > 0 {
			say("%s %v", what, names)
		}
	}
	refs("active", steps.status.Active)
	refs("missing", steps.missing)
	for _, j := range steps.unexpected {
		say("unexpected [%s]", j.Name)
	}
	if t := steps.status.LastSuccessfulTime; t != nil {
		say("last %s", t.UTC().Format("15:04"))
	}
	var names []string
	for _, j := range steps.remove {
		names = append(names, j.Name)
	}
	if slices.Sort(names); len(names) > 0 {
		say("remove %v", names)
	}
	out := strings.Join(parts, " ")
	for _, e := range steps.events {
		out += "; " + e.reason
	}
	return out
}

func TestJob(t *testing.T) {
	cj := newCron("* * * * *", func(cj *batchv1.CronJob) {
		cj.Spec.TimeZone = new("Europe/Berlin")
		cj.Spec.JobTemplate.Labels = map[string]string{"a": "b"}
		cj.Spec.JobTemplate.Spec.BackoffLimit = new(int32(3))
	})
	j := jobFor(cj, time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC))
	if j.Name != "tick-29715120" ||
		j.Annotations[batchv1.CronJobScheduledTimestampAnnotation] != "2026-07-01T14:00:00+02:00" ||
		j.Labels["a"] != "b" || *j.Spec.BackoffLimit != 3 || !metav1.IsControlledBy(j, cj) {
		t.Errorf("got %+v", j)
	}
}

// TestLongDeadline: with a deadline of more seconds than a time.Duration has, no start is too late.
func TestLongDeadline(t *testing.T) {
	if p := decide(newCron("* * * * *", deadline(9_999_999_999)), nil, now); p.due.IsZero() {
		t.Error("nothing is due, want a job a minute after the cron job was created")
	}
}
