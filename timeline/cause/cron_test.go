// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
)

// TestCron: when it ran, when it will, and what keeps it from it. The cron job is of 10:00, it is 12:00:30.
func TestCron(t *testing.T) {
	now := time.Date(2030, 1, 2, 12, 0, 30, 0, time.UTC)
	const hourly = `schedule: "0 * * * *", timeZone: Etc/UTC, `
	ranAt := func(hour string) string { return `lastScheduleTime: "2030-01-02T` + hour + `:00:00Z", ` }
	const active = `active: [{name: c-1}]`
	job := func(name, at, condition string) batchv1.Job {
		return *object[batchv1.Job](t, `{metadata: {name: `+name+`, creationTimestamp: "2030-01-02T`+at+
			`:00Z", ownerReferences: [{uid: u, controller: true, name: c, kind: CronJob, apiVersion: batch/v1}]},
			status: {startTime: "2030-01-02T`+at+`:01Z", conditions: [`+condition+`]}}`)
	}
	failed := job("c-0", "11:00",
		`{type: Failed, status: "True", reason: BackoffLimitExceeded, message: Job has reached the specified backoff limit}`)
	done := job("c-9", "10:00", `{type: Complete, status: "True", lastTransitionTime: "2030-01-02T10:00:05Z"}`)
	for what, c := range map[string]struct {
		spec, status string
		jobs         []batchv1.Job
		controllers  string
		want, not    []string
	}{
		"in time": {hourly, ranAt("12"), nil, "", []string{
			"c   0 active jobs", "last started a job for 2030-01-02 12:00:00 UTC, 30s ago",
			`due next at 2030-01-02 13:00:00 UTC, in 59m30s (schedule "0 * * * *", time zone Etc/UTC)`,
		}, []string{"did not come", "next  ", "not known"}},
		"new": {
			`schedule: "0 0 * * *", timeZone: Etc/UTC`, "", nil, "",
			[]string{
				"never started a job; it was created at 2030-01-02 10:00:00 UTC", "due next at 2030-01-03 00:00:00 UTC",
			},
			[]string{"did not come"},
		},
		"its clock": {
			`schedule: "@every 1h"`, ranAt("12"), nil, "",
			[]string{"time zone of its controller's machine, taken for this one's"},
			nil,
		},
		"suspended": {
			hourly + `suspend: true`, ranAt("10"), nil, "",
			[]string{"c   Suspended", "spec.suspend is true", "kubectl patch cronjob/c -n a -p"},
			[]string{"did not come", "due next"},
		},
		"runs": {
			hourly, ranAt("12") + active,
			[]batchv1.Job{job("c-1", "12:00", "")},
			"",
			[]string{"1 active job\n", "job c-1 runs since 2030-01-02 12:00:01 UTC", "keelson why job/c-1 -n a"},
			[]string{"put off"},
		},
		"many run": {
			hourly, ranAt("12") + `active: [{name: a}, {name: b}, {name: c}, {name: d}, {name: e}, {name: f}]`, nil, "",
			[]string{"6 active jobs", "job e runs\n", "and 1 more job\n"},
			[]string{"job f runs"},
		},
		"failed": {
			hourly, ranAt("11") + `lastSuccessfulTime: "2030-01-02T10:00:05Z"`,
			[]batchv1.Job{done, failed},
			"",
			[]string{
				"c-0, failed: BackoffLimitExceeded: Job has reached",
				"the last success was at 2030-01-02 10:00:05 UTC", "kubectl logs -n a job/c-0",
			},
			[]string{"c-9"},
		},
		"succeeded": {
			hourly, ranAt("11"), []batchv1.Job{done}, "", []string{"c-9, succeeded at 2030-01-02 10:00:05 UTC"}, nil,
		},
		"forbidden": {
			hourly + `concurrencyPolicy: Forbid`, ranAt("10") + active, nil, "",
			[]string{
				"2 starts, the last of which was 2030-01-02 12:00:00 UTC, did not come: job c-1 runs " +
					"(concurrencyPolicy Forbid); the last one comes when", "is put off",
			},
			nil,
		},
		"forbidden too long": {
			hourly + `concurrencyPolicy: Forbid, startingDeadlineSeconds: 20`, ranAt("11") + active, nil, "",
			[]string{
				"the start of 2030-01-02 12:00:00 UTC did not come: job c-1 ran",
				"past its startingDeadlineSeconds (20)",
			},
			nil,
		},
		"replaced": {hourly + `concurrencyPolicy: Replace`, ranAt("12") +
			active, nil, "", []string{"it ends the job that runs then"}, nil},
		"missed": {
			hourly, ranAt("11"), nil, "no process holds the lease",
			[]string{
				"the start of 2030-01-02 12:00:00 UTC did not come\n", "the controllers do not work, so no jobs " +
					"are started: no process holds the lease", "keelson logs controller-manager", "not known",
			},
			nil,
		},
		"many missed": {
			`schedule: "* * * * *"`, ranAt("08"), nil, "",
			[]string{"more than 100 starts, the last of which was 2030-01-02 12:00:00 UTC, did not come"},
			nil,
		},
		"too late": {
			hourly + `startingDeadlineSeconds: 20`, ranAt("11"), nil, "",
			[]string{
				"did not come within startingDeadlineSeconds (20), and will not", "raise spec.startingDeadlineSeconds",
			},
			nil,
		},
		"never": {
			`schedule: "0 0 31 4 *"`, "", nil, "", []string{"names a date that never comes"}, []string{"due next"},
		},
		"unreadable": {
			`schedule: "every day"`, "", nil, "",
			[]string{`its schedule "every day" cannot be read: expected exactly 5 fields`, "minute hour day-of-month"},
			[]string{"due next"},
		},
		"no such zone": {
			`schedule: "0 * * * *", timeZone: Mars/Base`, "", nil, "",
			[]string{`its spec.timeZone "Mars/Base" cannot be used: unknown time zone`},
			[]string{"due next"},
		},
	} {
		cj := object[batchv1.CronJob](t,
			`{metadata: {namespace: a, name: c, uid: u, creationTimestamp: "2030-01-02T10:00:00Z"}, spec: {`+c.spec+
				`}, status: {`+c.status+`}}`)
		a := (&Cron{CronJob: cj, Jobs: c.jobs, Controllers: c.controllers}).Explain(now)
		says(t, what, a, c.want...)
		var b strings.Builder
		Render(&b, a, false, 0)
		for _, w := range c.not {
			if strings.Contains(b.String(), w) {
				t.Errorf("%s: %q in\n%s", what, w, b.String())
			}
		}
	}
	gone := object[batchv1.CronJob](t,
		`{metadata: {name: c, deletionTimestamp: "2030-01-02T10:00:00Z", finalizers: [x/y]}, spec: {schedule: "0 * * * *"}}`)
	says(t, "deleted", (&Cron{CronJob: gone}).Explain(now), "Terminating", "finalizers: x/y")
}
