// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/gates"
	"keelson/api/kind"
)

func job(k *kind.Kind) *batchv1.Job {
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pi", UID: "u"},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "c", Image: "busybox"}},
		}}},
	}
	k.Default(j)
	k.PrepareCreate(j)
	return j
}

func wantErrors(t *testing.T, what string, errs field.ErrorList, want ...string) {
	t.Helper()
	var got []string
	for _, e := range errs {
		got = append(got, e.Error())
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func conditions(types ...batchv1.JobConditionType) []batchv1.JobCondition {
	var out []batchv1.JobCondition
	for _, t := range types {
		out = append(out, batchv1.JobCondition{Type: t, Status: corev1.ConditionTrue})
	}
	return out
}

func TestStatus(t *testing.T) {
	k := Job(gates.On{})
	sub := k.Subs["status"]
	start := metav1.Unix(100, 0)
	end := metav1.Unix(200, 0)
	old := job(k)
	old.Status = batchv1.JobStatus{Active: 1, Failed: 2, StartTime: &start}

	done := old.DeepCopy()
	done.Status = batchv1.JobStatus{
		StartTime:      &start,
		CompletionTime: &end,
		Succeeded:      1,
		Failed:         2,
		Conditions:     conditions(batchv1.JobSuccessCriteriaMet, batchv1.JobComplete),
	}
	wantErrors(t, "complete", sub.ValidateUpdate(done, old))

	bad := old.DeepCopy()
	bad.Status = batchv1.JobStatus{
		Active:           1,
		Failed:           1,
		CompletedIndexes: "1",
		Conditions:       conditions(batchv1.JobComplete, batchv1.JobFailed),
	}
	errs := sub.ValidateUpdate(bad, old)
	for _, want := range []string{
		"cannot set Complete=True and Failed=true conditions",
		"cannot set Failed=True condition without the FailureTarget=true condition",
		"cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
		"completionTime is required for Complete jobs",
		"active>0 is invalid for finished job", "startTime is required for finished job",
		"cannot decrease the failed counter",
		"cannot set non-empty completedIndexes when non-indexed completion mode",
		"startTime cannot be removed for unsuspended job",
	} {
		if !slices.ContainsFunc(errs, func(e *field.Error) bool { return e.Detail == want }) {
			t.Errorf("missing error %q in %v", want, errs)
		}
	}

	later := old.DeepCopy()
	later.Status.StartTime = &end
	wantErrors(t, "another start", sub.ValidateUpdate(later, old),
		`status.startTime: Invalid value: "1970-01-01T00:03:20Z": field is immutable`)

	undone := done.DeepCopy()
	undone.Status.Conditions = conditions(batchv1.JobSuccessCriteriaMet)
	undone.Status.CompletionTime = nil
	wantErrors(t, "completed no more", sub.ValidateUpdate(undone, done),
		"status.conditions: Invalid value: cannot disable the terminal Complete=True condition")
	// What was wrong before the rules came may stay.
	wantErrors(t, "unchanged", sub.ValidateUpdate(bad, bad))
}

func TestSuspendedJobMayMove(t *testing.T) {
	k := Job(gates.On{})
	old := job(k)
	old.Spec.Suspend = new(true)
	j := old.DeepCopy()
	j.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	j.Spec.Template.Labels["queue"] = "a"
	wantErrors(t, "not started", k.ValidateUpdate(j, old))
	started := old.DeepCopy()
	started.Status.StartTime = &metav1.Time{Time: time.Unix(1, 0)}
	if errs := k.ValidateUpdate(j, started); len(errs) != 1 || errs[0].Field != "spec.template" ||
		!strings.Contains(errs[0].Detail, "field is immutable") {
		t.Errorf("started: got %v, want spec.template: field is immutable", errs)
	}
}

// TestStoppedJobMayMove: a job that ran, and was suspended since, may change like one that never did.
func TestStoppedJobMayMove(t *testing.T) {
	spec := Job(gates.On{})
	old := job(spec)
	old.Spec.Suspend = new(true)
	old.Status = batchv1.JobStatus{
		StartTime:  &metav1.Time{Time: time.Unix(1, 0)},
		Conditions: conditions(batchv1.JobSuspended),
	}
	j := old.DeepCopy()
	j.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	j.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("2"),
	}
	wantErrors(t, "suspended", spec.ValidateUpdate(j, old))
	busy := old.DeepCopy()
	busy.Status.Active = 1
	if errs := spec.ValidateUpdate(j, busy); len(errs) != 1 || errs[0].Field != "spec.template" {
		t.Errorf("with a pod: got %v, want spec.template: field is immutable", errs)
	}
	j.Spec.Template.Spec.Containers[0].Image = "other"
	if errs := spec.ValidateUpdate(j, old); len(errs) != 1 || errs[0].Field != "spec.template" {
		t.Errorf("another image: got %v, want spec.template: field is immutable", errs)
	}
}

// TestStatusOfChangedJobs: what a controller must be able to write after the spec has changed.
func TestStatusOfChangedJobs(t *testing.T) {
	spec := Job(gates.On{})
	sub := spec.Subs["status"]
	first := metav1.Unix(100, 0)
	second := metav1.Unix(200, 0)

	stopped := job(spec)
	stopped.Status = batchv1.JobStatus{StartTime: &first, Conditions: conditions(batchv1.JobSuspended)}
	resumed := stopped.DeepCopy()
	resumed.Status = batchv1.JobStatus{StartTime: &second}
	wantErrors(t, "resumed", sub.ValidateUpdate(resumed, stopped))

	shrunk := job(spec)
	shrunk.Spec.CompletionMode = new(batchv1.IndexedCompletion)
	shrunk.Spec.Completions = new(int32(2))
	shrunk.Spec.Parallelism = new(int32(2))
	shrunk.Status = batchv1.JobStatus{StartTime: &first, Succeeded: 2, CompletedIndexes: "0,5"}
	next := shrunk.DeepCopy()
	next.Status.Succeeded = 1
	next.Status.CompletedIndexes = "0"
	wantErrors(t, "shrunk", sub.ValidateUpdate(next, shrunk))

	empty := job(spec)
	empty.Spec.Suspend = new(true)
	empty.Spec.Completions = new(int32(0))
	done := empty.DeepCopy()
	done.Status = batchv1.JobStatus{
		CompletionTime: &first,
		Conditions:     conditions(batchv1.JobSuccessCriteriaMet, batchv1.JobComplete),
	}
	wantErrors(t, "nothing to do, suspended", sub.ValidateUpdate(done, empty))
}

func TestElasticIndexedJob(t *testing.T) {
	k := Job(gates.On{})
	old := job(k)
	old.Spec.CompletionMode = new(batchv1.IndexedCompletion)
	j := old.DeepCopy()
	j.Spec.Completions = new(int32(3))
	j.Spec.Parallelism = new(int32(3))
	wantErrors(t, "in tandem", k.ValidateUpdate(j, old))
	j.Spec.Parallelism = new(int32(2))
	wantErrors(t, "alone", k.ValidateUpdate(j, old),
		"spec.completions: Invalid value: 3: can only be modified in tandem with spec.parallelism")
}

func TestGeneratedNameTwice(t *testing.T) {
	k := Job(gates.On{})
	j := job(k)
	j.GenerateName = "pi-"
	j.Name = "pi-aaaaa"
	j.Spec.Template.Labels = nil
	j.Spec.Selector = nil
	k.PrepareCreate(j)
	j.Name = "pi-bbbbb" // the first name was taken
	k.PrepareCreate(j)
	wantErrors(t, "second name", k.Validate(j))
}

func TestIndexes(t *testing.T) {
	for _, c := range []struct {
		text, err string
		n         int32
	}{
		{"", "", 0},
		{"0,2-4", "", 4},
		{"9", "", 1},
		{"10", `too large index: "10"`, 0},
		{"1,1", "non-increasing order, previous: 1, current: 1", 0},
		{"3-2", "non-increasing order, previous: 3, current: 2", 0},
		{"a", `cannot convert string to integer for index: "a"`, 0},
		{
			"1-2-3",
			`the fragment "1-2-3" violates the requirement that an index interval can have at most two parts separated by '-'`,
			0,
		},
	} {
		list, err := parseIndexes(c.text, 10)
		if msg := errText(err); msg != c.err || list.Count() != c.n {
			t.Errorf("%q: got %d, %q, want %d, %q", c.text, list.Count(), msg, c.n, c.err)
		}
	}
	a, _ := parseIndexes("0-2,5", 10)
	b, _ := parseIndexes("3,5-6", 10)
	if at, both := a.overlap(b); !both || at != 5 {
		t.Errorf("overlap: got %d, %v, want 5", at, both)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// FuzzIndexes: a list that is taken rises, and is within the completions.
func FuzzIndexes(f *testing.F) {
	for _, s := range []string{"", "0,2-4", "1,1", "3-2", "-1", "0-", "9,10"} {
		f.Add(s, int32(10))
	}
	f.Fuzz(func(t *testing.T, text string, completions int32) {
		list, err := parseIndexes(text, completions)
		if err != nil {
			return
		}
		last := int32(-1)
		for _, i := range list {
			if i.low <= last || i.high < i.low || i.high >= completions {
				t.Errorf("%q of %d: %v", text, completions, list)
			}
			last = i.high
		}
	})
}
