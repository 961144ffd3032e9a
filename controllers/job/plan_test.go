// SPDX-License-Identifier: Apache-2.0

package job

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/apitest"
	"keelson/api/batch"
	"keelson/api/gates"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// newJob is a job as the API server stores it, as changed by f.
func newJob(completions, parallelism int32, f ...func(*batchv1.Job)) *batchv1.Job {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
		Name:            "pi",
		Namespace:       "default",
		UID:             "job",
		ResourceVersion: "1",
	}}
	job.Spec.Completions = &completions
	job.Spec.Parallelism = &parallelism
	job.Spec.Template.Spec = corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{
			{Name: "c", Image: "i"},
		},
	}
	for _, g := range f {
		g(job)
	}
	k := batch.Job(gates.On{})
	k.Default(job)
	st := job.Status
	k.PrepareCreate(job)
	job.Status = st
	return job
}

func started(j *batchv1.Job) {
	t := ago(time.Minute)
	j.Status.StartTime = &t
}

func asIndexed(j *batchv1.Job) { j.Spec.CompletionMode = new(batchv1.IndexedCompletion) }

func limitPerIndex(n int32) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		asIndexed(j)
		j.Spec.BackoffLimitPerIndex = &n
	}
}

func failurePolicy(rules ...batchv1.PodFailurePolicyRule) func(*batchv1.Job) {
	return func(j *batchv1.Job) { j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: rules} }
}

func onExit(
	a batchv1.PodFailurePolicyAction, op batchv1.PodFailurePolicyOnExitCodesOperator, codes ...int32,
) batchv1.PodFailurePolicyRule {
	return batchv1.PodFailurePolicyRule{
		Action: a,
		OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
			Operator: op,
			Values:   codes,
		},
	}
}

func onDisruption(a batchv1.PodFailurePolicyAction) batchv1.PodFailurePolicyRule {
	return batchv1.PodFailurePolicyRule{
		Action: a,
		OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{
			{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue},
		},
	}
}

// newPod is a running pod of the job, as changed by f.
func newPod(name string, f ...func(*corev1.Pod)) *corev1.Pod {
	return apitest.Pod(name, append([]func(*corev1.Pod){
		apitest.On("n1"), apitest.Phase(corev1.PodRunning), apitest.Created(now.Add(-time.Hour)), func(p *corev1.Pod) {
			p.Finalizers = []string{batchv1.JobTrackingFinalizer}
			p.Annotations = map[string]string{}
		},
	}, f...)...)
}

// exit ends the pod's container, some time ago.
func exit(code int32, before time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodSucceeded
		if code != 0 {
			p.Status.Phase = corev1.PodFailed
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "c",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode:   code,
				FinishedAt: ago(before),
			}},
		}}
	}
}

func done(p *corev1.Pod)   { exit(0, time.Minute)(p) }
func broken(p *corev1.Pod) { exit(1, time.Hour)(p) }
func going(p *corev1.Pod) {
	t := ago(0)
	p.DeletionTimestamp = &t
}

func pending(p *corev1.Pod) {
	p.Status.Phase = corev1.PodPending
	p.Spec.NodeName = ""
}

func disrupted(p *corev1.Pod) {
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
		Type:   corev1.DisruptionTarget,
		Status: corev1.ConditionTrue,
	})
}

func index(n int) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[batchv1.JobCompletionIndexAnnotation] = strconv.Itoa(n) }
}

func failedBefore(counted, ignored int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(counted)
		p.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation] = strconv.Itoa(ignored)
	}
}

// summary is a plan in short: what to create, what to delete and how the job ends.
func summary(steps plan) string {
	out := ""
	if steps.create > 0 {
		out += fmt.Sprintf("create %d", steps.create)
	}
	if len(steps.indexes) > 0 {
		out += fmt.Sprintf(" %v", steps.indexes)
	}
	names := func(verb string, pods []*corev1.Pod) {
		var list []string
		for _, q := range pods {
			list = append(list, q.Name)
		}
		if len(list) > 0 {
			slices.Sort(list)
			out += fmt.Sprintf("%s %v", verb, list)
		}
	}
	names("remove", steps.remove)
	names("end", steps.terminate)
	if steps.end != nil {
		out += fmt.Sprintf(" %s %s", steps.end.kind, steps.end.reason)
	}
	if steps.requeueAfter > 0 {
		out += fmt.Sprintf(" again %s", steps.requeueAfter)
	}
	return out
}

func TestDecide(t *testing.T) {
	type pods = []*corev1.Pod
	suspend := func(j *batchv1.Job) { j.Spec.Suspend = new(true) }
	workQueue := func(j *batchv1.Job) { j.Spec.Completions = nil }
	onlyFailedPods := func(j *batchv1.Job) { j.Spec.PodReplacementPolicy = new(batchv1.Failed) }
	deadline := func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds = new(int64(60)) }
	limit := func(n int32) func(*batchv1.Job) { return func(j *batchv1.Job) { j.Spec.BackoffLimit = &n } }
	const failJob, failIndex, ignore = batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionFailIndex,
		batchv1.PodFailurePolicyActionIgnore
	const in, notIn = batchv1.PodFailurePolicyOnExitCodesOpIn, batchv1.PodFailurePolicyOnExitCodesOpNotIn
	tests := []struct {
		name string
		job  *batchv1.Job
		pods pods
		want string
	}{
		{"as many as may run at once", newJob(5, 2), nil, "create 2"},
		{"no more than are needed", newJob(5, 4, func(j *batchv1.Job) { j.Status.Succeeded = 3 }), nil, "create 2"},
		{"enough", newJob(5, 2), pods{newPod("a"), newPod("b", pending)}, ""},
		{"too many: what is least far on", newJob(5, 1), pods{newPod("a"), newPod("b", pending)}, "remove [b]"},
		{"a pod that goes is replaced", newJob(1, 1), pods{newPod("a", going, func(p *corev1.Pod) {
			t := ago(time.Hour)
			p.DeletionTimestamp = &t
		})}, "create 1"},
		{"not before it has ended, if asked so", newJob(1, 1, onlyFailedPods), pods{newPod("a", going)}, ""},
		{"at most a burst", newJob(5000, 5000), nil, "create 500"},
		{
			"suspended: all go", newJob(5, 2, suspend),
			pods{newPod("a"), newPod("b", pending), newPod("c", done)},
			"remove [a b]",
		},
		{"a work queue: as many as may run", newJob(0, 3, workQueue), pods{newPod("a")}, "create 2"},
		{"a work queue: one has found it empty", newJob(0, 3, workQueue), pods{newPod("a"), newPod("b", done)}, ""},
		{
			"a work queue: pods may be lowered after that", newJob(0, 1, workQueue),
			pods{newPod("a"), newPod("c"), newPod("b", done)},
			"",
		},
		{"after a failure it waits", newJob(1, 1), pods{newPod("a", exit(1, 4*time.Second))}, " again 6s"},
		{
			"longer after several", newJob(1, 1),
			pods{
				newPod("a", exit(1, time.Minute)), newPod("b", exit(1, time.Minute)),
				newPod("c", exit(1, 4*time.Second)),
			},
			" again 36s",
		},
		{
			"not after a success", newJob(3, 2),
			pods{newPod("a", exit(1, 4*time.Second)), newPod("b", exit(0, time.Second))},
			"create 2",
		},
		{"a failure after a success counts alone", newJob(3, 2), pods{
			newPod("a", exit(1, 9*time.Second)), newPod("b", exit(0, 8*time.Second)),
			newPod("c", exit(1, 4*time.Second)),
		}, " again 6s"},
		{
			"one failure too many", newJob(2, 2, limit(0)),
			pods{newPod("a", broken), newPod("b")},
			"end [b] FailureTarget BackoffLimitExceeded",
		},
		{
			"a deleted pod failed", newJob(1, 1, limit(0)),
			pods{newPod("a", going)},
			" FailureTarget BackoffLimitExceeded",
		},
		{
			"containers restarted too often", newJob(1, 1, limit(2), func(j *batchv1.Job) {
				j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
			}),
			pods{
				newPod("a", func(p *corev1.Pod) {
					p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 2}}
				}),
			},
			"end [a] FailureTarget BackoffLimitExceeded",
		},
		{"the deadline is to come", newJob(1, 1, deadline, func(j *batchv1.Job) {
			t := ago(50 * time.Second)
			j.Status.StartTime = &t
		}), pods{newPod("a")}, " again 10s"},
		{
			"the deadline has passed", newJob(1, 1, deadline, started),
			pods{newPod("a")},
			"end [a] FailureTarget DeadlineExceeded",
		},
		{"not while it is suspended", newJob(1, 1, deadline, started, suspend), nil, ""},
		{"a job that goes does nothing", newJob(1, 1, func(j *batchv1.Job) {
			t := ago(0)
			j.DeletionTimestamp = &t
		}), nil, ""},
		{"it was decided before", newJob(1, 1, func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{
				{Type: batchv1.JobFailureTarget, Status: corev1.ConditionTrue, Reason: "Because"},
			}
		}), pods{newPod("a")}, "end [a] FailureTarget Because"},

		{"indexes: the first ones", newJob(5, 3, asIndexed), nil, "create 3 [0 1 2]"},
		{
			"indexes: those missing", newJob(5, 4, asIndexed, func(j *batchv1.Job) {
				j.Status.CompletedIndexes = "1"
				j.Status.Succeeded = 1
			}),
			pods{newPod("a", index(3)), newPod("b", index(0), done)},
			"create 2 [2 4]",
		},
		{
			"indexes: no two pods of one, none without", newJob(3, 3, asIndexed),
			pods{newPod("a", index(1)), newPod("b", index(1), pending), newPod("c", index(7)), newPod("d")},
			"remove [b c d]",
		},
		{
			"indexes: fewer at once", newJob(3, 1, asIndexed),
			pods{newPod("a", index(0)), newPod("b", index(1), pending)},
			"remove [b]",
		},
		{
			"indexes: a pod that goes keeps its index, if asked so", newJob(2, 2, asIndexed, onlyFailedPods),
			pods{newPod("a", index(0), going)},
			"create 1 [1]",
		},

		{
			"per index: others go on", newJob(3, 3, limitPerIndex(1)),
			pods{newPod("a", index(0), exit(1, 4*time.Second))},
			"create 2 [1 2] again 6s",
		},
		{
			"per index: failed ones are left", newJob(3, 3, limitPerIndex(0)),
			pods{newPod("a", index(0), broken), newPod("b", index(1))},
			"create 1 [2]",
		},
		{
			"per index: all have ended", newJob(2, 2, limitPerIndex(0)),
			pods{newPod("a", index(0), broken), newPod("b", index(1), done)},
			" FailureTarget FailedIndexes",
		},
		{
			"per index: too many have failed", newJob(5, 3, limitPerIndex(0), func(j *batchv1.Job) {
				j.Spec.MaxFailedIndexes = new(int32(1))
			}),
			pods{newPod("a", index(0), broken), newPod("b", index(1), broken), newPod("c", index(2))},
			"end [c] FailureTarget MaxFailedIndexesExceeded",
		},
		{
			"per index: the wait doubles", newJob(1, 1, limitPerIndex(5)),
			pods{newPod("a", index(0), exit(1, 4*time.Second), failedBefore(1, 1))},
			" again 36s",
		},

		{
			"policy: fail the job", newJob(2, 2, failurePolicy(onExit(failJob, in, 1, 42))),
			pods{newPod("a", exit(42, 0)), newPod("b")},
			"end [b] FailureTarget PodFailurePolicy",
		},
		{
			"policy: another code",
			newJob(2, 2, limit(0), failurePolicy(onExit(failJob, in, 42), onExit(ignore, notIn, 42))),
			pods{newPod("a", broken), newPod("b")},
			"create 1",
		},
		{
			"policy: disruptions do not count", newJob(1, 1, limit(0), failurePolicy(onDisruption(ignore))),
			pods{newPod("a", broken, disrupted)},
			"create 1",
		},
		{
			"policy: the first rule that matches",
			newJob(1, 1, failurePolicy(onDisruption(ignore), onExit(failJob, in, 1))),
			pods{newPod("a", broken, disrupted)},
			"create 1",
		},
		{
			"policy: fail the index", newJob(2, 2, limitPerIndex(9), failurePolicy(onExit(failIndex, in, 1))),
			pods{newPod("a", index(0), broken)},
			"create 1 [1]",
		},
		{
			"policy: ignored failures do not end an index",
			newJob(1, 1, limitPerIndex(0), failurePolicy(onDisruption(ignore))),
			pods{newPod("a", index(0), broken, disrupted)},
			"create 1 [0]",
		},
		{
			"success: these indexes", newJob(3, 3, asIndexed, success("0-1", 0)),
			pods{newPod("a", index(0), done), newPod("b", index(1), done), newPod("c", index(2))},
			"end [c] SuccessCriteriaMet SuccessPolicy",
		},
		{
			"success: so many of these", newJob(3, 3, asIndexed, success("0,2", 1)),
			pods{newPod("a", index(1), done), newPod("c", index(2), done)},
			" SuccessCriteriaMet SuccessPolicy",
		},
		{
			"success: so many", newJob(3, 3, asIndexed, success("", 2)),
			pods{newPod("a", index(1), done)},
			"create 2 [0 2]",
		},
	}
	for _, tt := range tests {
		s := snapshot{
			job:                   tt.job,
			pods:                  tt.pods,
			expectationsSatisfied: true,
			now:                   now,
		}
		if got := summary(decide(s)); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
		s.expectationsSatisfied = false
		if p := decide(s); p.create > 0 || len(p.remove)+len(p.terminate) > 0 || p.end != nil {
			t.Errorf("%s, unsettled: got %q, want nothing", tt.name, summary(p))
		}
	}
}

func success(indexes string, count int32) func(*batchv1.Job) {
	r := batchv1.SuccessPolicyRule{}
	if indexes != "" {
		r.SucceededIndexes = &indexes
	}
	if count > 0 {
		r.SucceededCount = &count
	}
	return func(j *batchv1.Job) {
		j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{r}}
	}
}

func TestMessages(t *testing.T) {
	policy := &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		onDisruption(batchv1.PodFailurePolicyActionFailJob),
		onExit(batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyOnExitCodesOpIn, 42),
	}}
	for want, p := range map[string]*corev1.Pod{
		"Container c for pod default/a failed with exit code 42 matching FailJob rule at index 1": newPod("a",
			exit(42, 0)),
		"Pod default/a has condition DisruptionTarget matching FailJob rule at index 0": newPod("a",
			exit(42, 0), disrupted),
		"": newPod("a", exit(1, 0)),
	} {
		if got := matchPodFailurePolicy(policy, p).message; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got, _ := matchSuccessPolicy(newJob(3, 3, success("7", 0), success("0", 0)).Spec.SuccessPolicy,
		batch.ReadIndexes("0", 3), 3); got != "Matched rules at index 0" {
		t.Errorf("got %q", got)
	}
}

func TestBackoff(t *testing.T) {
	for n, want := range map[int32]time.Duration{
		0:       0,
		1:       10 * time.Second,
		2:       20 * time.Second,
		3:       40 * time.Second,
		6:       320 * time.Second,
		7:       10 * time.Minute,
		1 << 30: 10 * time.Minute,
	} {
		if got := (backoffRecord{n, now}).wait(now); got != want {
			t.Errorf("after %d failures: got %s, want %s", n, got, want)
		}
	}
}

func TestFinished(t *testing.T) {
	sidecar := corev1.Container{Name: "s", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		want time.Duration
	}{
		{"its container", newPod("a", exit(1, time.Minute)), time.Minute},
		{"its sidecar ends last", newPod("a", exit(1, time.Minute), func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{sidecar}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{
				{
					Name: "s",
					State: corev1.ContainerState{
						Terminated: &corev1.ContainerStateTerminated{FinishedAt: ago(time.Second)},
					},
				},
			}
		}), time.Second},
		{"not ready since", newPod("a", func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: ago(time.Minute)},
			}
		}), time.Minute},
		{"deleted, its grace gone", newPod("a", func(p *corev1.Pod) {
			t := ago(0)
			p.DeletionTimestamp = &t
			p.DeletionGracePeriodSeconds = new(int64(30))
		}), 30 * time.Second},
		{"never", newPod("a"), time.Hour},
	} {
		if got := now.Sub(finished(c.pod)); got != c.want {
			t.Errorf("%s: got %s ago, want %s", c.name, got, c.want)
		}
	}
}

func TestTemplate(t *testing.T) {
	job := newJob(12, 2, limitPerIndex(3), func(j *batchv1.Job) {
		j.Name = "a-name-of-fifty-five-characters-which-is-rather-longish"
		j.Spec.Template.Labels = map[string]string{"app": "x"}
		j.Spec.Template.Spec.InitContainers = []corev1.Container{
			{Name: "i", Image: "i", Env: []corev1.EnvVar{{Name: "JOB_COMPLETION_INDEX", Value: "own"}}},
		}
	})
	first := podFor(job)
	one := *first
	two := *first
	setIndex(job, &one, 3, nil)
	setIndex(job, &two, 11, newPod("a", exit(1, 0), failedBefore(1, 2)))
	if one.GenerateName != "a-name-of-fifty-five-characters-which-is-rather-longish-3-"[:55]+"-3-" ||
		len(two.GenerateName) != 58 || two.Spec.Hostname != job.Name+"-11" {
		t.Errorf("names: %q, %q, host name %q", one.GenerateName, two.GenerateName, two.Spec.Hostname)
	}
	if one.Labels[batchv1.JobCompletionIndexAnnotation] != "3" || one.Labels["app"] != "x" ||
		one.Labels["job-name"] != job.Name ||
		one.Labels[batchv1.ControllerUidLabel] != "job" ||
		job.Spec.Template.Labels[batchv1.JobCompletionIndexAnnotation] != "" {
		t.Errorf("labels: %v; the template's %v", one.Labels, job.Spec.Template.Labels)
	}
	for key, want := range map[string]string{
		batchv1.JobCompletionIndexAnnotation:          "11",
		batchv1.JobIndexFailureCountAnnotation:        "2",
		batchv1.JobIndexIgnoredFailureCountAnnotation: "2",
	} {
		if two.Annotations[key] != want {
			t.Errorf("annotation %s: got %q, want %q", key, two.Annotations[key], want)
		}
	}
	if _, ok := one.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation]; ok ||
		one.Annotations[batchv1.JobIndexFailureCountAnnotation] != "0" {
		t.Errorf("annotations of a first pod: %v", one.Annotations)
	}
	if e := one.Spec.Containers[0].Env; len(e) != 1 ||
		e[0].ValueFrom.FieldRef.FieldPath != "metadata.labels['batch.kubernetes.io/job-completion-index']" {
		t.Errorf("environment: %v", e)
	}
	if e := one.Spec.InitContainers[0].Env; len(e) != 1 || e[0].Value != "own" {
		t.Errorf("a variable of the user's: %v", e)
	}
	if !tracked(&one) || len(job.Spec.Template.Spec.Containers[0].Env) != 0 {
		t.Errorf("finalizers %v, the template's environment %v", one.Finalizers,
			job.Spec.Template.Spec.Containers[0].Env)
	}
}

// TestLongDeadline: a deadline of more seconds than a time.Duration has is far away, not past.
func TestLongDeadline(t *testing.T) {
	j := newJob(1, 1, started, func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds = new(int64(9_999_999_999)) })
	if p := decide(snapshot{job: j, expectationsSatisfied: true, now: now}); p.end != nil || p.create != 1 {
		t.Errorf("got verdict %+v and %d pods to create, want none and one", p.end, p.create)
	}
}
