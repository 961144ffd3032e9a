// SPDX-License-Identifier: Apache-2.0

package cronjob

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

// stored is a cron job as a server has it at the beginning of a test.
func stored(name, schedule, zone string, f ...func(*batchv1.CronJob)) *batchv1.CronJob {
	cj := newCron(schedule, f...)
	cj.Name = name
	cj.UID = types.UID(name)
	cj.CreationTimestamp = metav1.NewTime(time.Now())
	cj.Spec.TimeZone = &zone
	return cj
}

// finish makes each job complete as soon as it is created, and returns the times for which they were started.
func finish(c *controllertest.Cluster) *[]string {
	var started []string
	c.Fake.PrependReactor("create", "jobs", func(a clienttesting.Action) (bool, runtime.Object, error) {
		j, ok := a.(clienttesting.CreateAction).GetObject().(*batchv1.Job)
		if !ok {
			return false, nil, nil
		}
		started = append(started, j.Annotations[batchv1.CronJobScheduledTimestampAnnotation])
		t := metav1.NewTime(time.Now())
		j.Status.StartTime = &t
		j.Status.CompletionTime = &t
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
		return false, nil, nil
	})
	return &started
}

// newController is New with metrics of its own.
func newController(env *framework.Env) (framework.Controller, error) { return New(env, NewMetrics()) }

// TestYear runs the Sundays of a year, as clocks are changed on Sundays, from midnight UTC to midnight UTC. What is due
// in the hour that does not exist is not run that day, and what is due in the hour that comes twice is run twice. On
// Lord Howe the clock moves by half an hour.
func TestYear(t *testing.T) {
	for zone, want := range map[string]struct {
		runs        int
		first, last string
	}{
		"America/New_York":    {51, "2000-01-02T02:30:00-05:00", "2000-12-24T02:30:00-05:00"},
		"Europe/Berlin":       {52, "2000-01-02T02:30:00+01:00", "2000-12-24T02:30:00+01:00"},
		"Australia/Lord_Howe": {53, "2000-01-02T02:30:00+11:00", "2000-12-31T02:30:00+11:00"},
		"Asia/Kolkata":        {53, "2000-01-02T02:30:00+05:30", "2000-12-31T02:30:00+05:30"},
	} {
		synctest.Test(t, func(t *testing.T) {
			cluster := controllertest.New(stored("tick", "30 2 * * sun", zone))
			started := finish(cluster)
			cluster.Start(t, "cronjob-controller", newController)
			time.Sleep(365 * 24 * time.Hour)
			synctest.Wait()
			s := *started
			if len(s) != want.runs || s[0] != want.first || s[len(s)-1] != want.last {
				t.Errorf("%s: %d runs, want %d; the first %s, want %s; the last %s, want %s", zone, len(s), want.runs,
					s[0], want.first, s[len(s)-1], want.last)
			}
			cj, err := cluster.BatchV1().CronJobs("default").Get(t.Context(), "tick", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			jobs, err := cluster.BatchV1().Jobs("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(jobs.Items) != 2 || len(cj.Status.Active) != 0 || cj.Status.LastSuccessfulTime == nil {
				t.Errorf("%s: %d jobs are kept, want 2; active %v, last success %v", zone, len(jobs.Items),
					cj.Status.Active, cj.Status.LastSuccessfulTime)
			}
		})
	}
}

// TestBad: an unusable schedule or time zone is reported once, and nothing is tried again.
func TestBad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(stored("a", "every day", "UTC"), stored("b", "* * * * *", "Mars/Base"),
			stored("c", "0 0 31 4 *", "UTC"))
		c.Start(t, "cronjob-controller", newController)
		time.Sleep(1000 * time.Hour)
		synctest.Wait()
		said := strings.Join(c.EventsSeen(), "\n")
		for _, want := range []string{
			`Warning UnparseableSchedule unparseable schedule: "every day" : expected exactly 5 fields, found 2: [every day]`,
			`Warning UnknownTimeZone invalid timeZone: "Mars/Base": unknown time zone Mars/Base`,
			"Warning InvalidSchedule invalid schedule: 0 0 31 4 * : that date never comes",
		} {
			if strings.Count(said, want) != 1 {
				t.Errorf("want once %q in\n%s", want, said)
			}
		}
	})
}

// TestPolicies: jobs that do not end meet the next one.
func TestPolicies(t *testing.T) {
	for p, want := range map[batchv1.ConcurrencyPolicy]struct {
		jobs, active int
		event        string
	}{
		batchv1.AllowConcurrent: {3, 3, "Normal SuccessfulCreate Created job tick-"},
		batchv1.ForbidConcurrent: {
			1, 1, "Normal JobAlreadyActive Not starting job because prior execution is running and concurrency " +
				"policy is Forbid",
		},
		batchv1.ReplaceConcurrent: {1, 1, "Normal SuccessfulDelete Deleted job tick-"},
	} {
		synctest.Test(t, func(t *testing.T) {
			cluster := controllertest.New(stored("tick", "* * * * *", "UTC", policy(p)))
			cluster.Start(t, "cronjob-controller", newController)
			time.Sleep(3*time.Minute + time.Second)
			synctest.Wait()
			jobs, err := cluster.BatchV1().Jobs("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			cj, err := cluster.BatchV1().CronJobs("default").Get(t.Context(), "tick", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(jobs.Items) != want.jobs || len(cj.Status.Active) != want.active {
				t.Errorf("%s: %d jobs, want %d; %d active, want %d", p, len(jobs.Items), want.jobs,
					len(cj.Status.Active), want.active)
			}
			if said := strings.Join(cluster.EventsSeen(), "\n"); !strings.Contains(said, want.event) ||
				strings.Contains(said, "UnexpectedJob") {
				t.Errorf("%s: want %q in\n%s", p, want.event, said)
			}
		})
	}
}

// TestUnexpectedJob: a job that is not active is reported, unless only the cache still has it.
func TestUnexpectedJob(t *testing.T) {
	for _, gone := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			cj := stored("tick", "0 0 1 1 *", "UTC")
			c := controllertest.New(cj, jobFor(cj, time.Now().Add(-time.Hour)))
			if gone {
				c.Fake.PrependReactor("get", "jobs", func(a clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewNotFound(a.GetResource().GroupResource(), "tick")
				})
			}
			c.Start(t, "cronjob-controller", newController)
			time.Sleep(time.Second)
			synctest.Wait()
			if said := strings.Join(c.EventsSeen(), "\n"); strings.Contains(said, "UnexpectedJob") == gone {
				t.Errorf("gone %v: events %q", gone, said)
			}
		})
	}
}

// TestRestart: a controller that ended between creating a job and noting it does not create another.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cj := stored("tick", "* * * * *", "UTC")
		cj.CreationTimestamp = metav1.NewTime(time.Now().Add(-90 * time.Second))
		due := time.Now()
		job := jobFor(cj, due)
		c := controllertest.New(cj, job)
		c.Start(t, "cronjob-controller", newController)
		time.Sleep(time.Second)
		synctest.Wait()
		got, err := c.BatchV1().CronJobs("default").Get(t.Context(), "tick", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Status.Active) != 1 || got.Status.Active[0].Name != job.Name ||
			!got.Status.LastScheduleTime.Time.Equal(due) {
			t.Errorf("got %+v, want %s active since %s", got.Status, job.Name, due)
		}
	})
}

// TestGoesDuringPass: the controller keeps nothing of a cron job that is deleted while its status is written.
func TestGoesDuringPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(stored("tick", "* * * * *", "UTC"))
		cluster.Fake.PrependReactor("update", "cronjobs", func(a clienttesting.Action) (bool, runtime.Object, error) {
			update, ok := a.(clienttesting.UpdateAction)
			if !ok {
				return false, nil, nil
			}
			if err := cluster.Fake.Tracker().Delete(batchv1.SchemeGroupVersion.WithResource("cronjobs"), "default",
				"tick"); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second) // until the controller has seen it
			return true, update.GetObject(), nil
		})
		var built *Controller
		cluster.Start(t, "cronjob-controller", func(env *framework.Env) (framework.Controller, error) {
			ctl, err := newController(env)
			built, _ = ctl.(*Controller)
			return ctl, err
		})
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := len(built.lastWritten); n != 0 {
			t.Errorf("%d cron jobs are remembered, want none", n)
		}
	})
}
