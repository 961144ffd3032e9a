// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
)

// validateJobUpdate: a job is its pods, so little of it may change; where they run may, while none has been started.
func validateJobUpdate(j, old *batchv1.Job) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateJobSpec(&j.Spec, path)
	l := check.At(path)
	s := &j.Spec
	was := &old.Spec
	validateCompletions(l, s, was)
	l.Immutable("selector", s.Selector, was.Selector)
	l.Immutable("template", &s.Template, allowedTemplate(j, old))
	l.Immutable("completionMode", s.CompletionMode, was.CompletionMode)
	l.Immutable("podFailurePolicy", s.PodFailurePolicy, was.PodFailurePolicy)
	l.Immutable("backoffLimitPerIndex", s.BackoffLimitPerIndex, was.BackoffLimitPerIndex)
	l.Immutable("managedBy", s.ManagedBy, was.ManagedBy)
	l.Immutable("successPolicy", s.SuccessPolicy, was.SuccessPolicy)
	return append(errs, l.Errors()...)
}

// validateCompletions: an indexed job may grow and shrink, by completions and parallelism together.
func validateCompletions(l *check.List, s, old *batchv1.JobSpec) {
	if kind.Value(s.CompletionMode) != batchv1.IndexedCompletion {
		l.Immutable("completions", s.Completions, old.Completions)
		return
	}
	if s.Completions == nil || equality.Semantic.DeepEqual(s.Completions, old.Completions) {
		return
	}
	if *s.Completions != kind.Value(s.Parallelism) {
		l.Invalid("completions", s.Completions, "can only be modified in tandem with "+l.Path("").Root().Child(
			"parallelism").String())
	}
}

// movable reports whether the job is suspended and has no pods: where they will run, and what they will get, may
// change.
func movable(j *batchv1.Job) bool {
	return kind.Value(j.Spec.Suspend) && j.Status.Active == 0 &&
		(j.Status.StartTime == nil || hasCondition(j, batchv1.JobSuspended))
}

// allowedTemplate is old's template with everything of j's in it that may still change.
func allowedTemplate(j, old *batchv1.Job) *corev1.PodTemplateSpec {
	was := &old.Spec.Template
	if !movable(old) {
		return was
	}
	was = was.DeepCopy()
	allowResources(was.Spec.Containers, j.Spec.Template.Spec.Containers)
	allowResources(was.Spec.InitContainers, j.Spec.Template.Spec.InitContainers)
	template := &j.Spec.Template
	now := j.Spec.Template.Spec.Affinity
	before := was.Spec.Affinity
	switch {
	case now == nil && before != nil:
		before.NodeAffinity = nil
		if *before == (corev1.Affinity{}) {
			was.Spec.Affinity = nil
		}
	case now != nil && before == nil:
		was.Spec.Affinity = &corev1.Affinity{NodeAffinity: now.NodeAffinity}
	case now != nil:
		before.NodeAffinity = now.NodeAffinity
	}
	was.Spec.NodeSelector = template.Spec.NodeSelector
	was.Spec.Tolerations = template.Spec.Tolerations
	was.Spec.SchedulingGates = template.Spec.SchedulingGates
	was.Annotations = template.Annotations
	was.Labels = template.Labels
	return was
}

// allowResources gives the containers of was the resources that they have in now.
func allowResources(was, now []corev1.Container) {
	for i := range was[:min(len(was), len(now))] {
		if was[i].Name == now[i].Name {
			was[i].Resources = now[i].Resources
		}
	}
}

// validateJobStatus refuses states that contradict themselves or the past; what was wrong before may stay wrong.
func validateJobStatus(job, old *batchv1.Job) field.ErrorList {
	var known []string
	for _, e := range jobStatusErrors(old) {
		known = append(known, e.Field+e.Detail)
	}
	errs := slices.DeleteFunc(jobStatusErrors(job), func(e *field.Error) bool {
		return slices.Contains(known, e.Field+e.Detail)
	})
	l := check.At(field.NewPath("status"))
	for _, t := range []batchv1.JobConditionType{batchv1.JobFailed, batchv1.JobComplete, batchv1.JobFailureTarget} {
		if hasCondition(old, t) && !hasCondition(job, t) {
			l.Invalid("conditions", field.OmitValueType{}, fmt.Sprintf("cannot disable the terminal %s=True condition",
				t))
		}
	}
	if job.Status.Failed < old.Status.Failed {
		l.Invalid("failed", job.Status.Failed, "cannot decrease the failed counter")
	}
	// An indexed job that has shrunk has lost the successes of the indexes that it has no more.
	elastic := kind.Value(job.Spec.CompletionMode) == batchv1.IndexedCompletion &&
		equality.Semantic.DeepEqual(job.Spec.Completions, job.Spec.Parallelism)
	if job.Status.Succeeded < old.Status.Succeeded && !elastic {
		l.Invalid("succeeded", job.Status.Succeeded, "cannot decrease the succeeded counter")
	}
	if a, b := job.Status.CompletionTime, old.Status.CompletionTime; a != nil && b != nil && !a.Equal(b) {
		l.Invalid("completionTime", a, "completionTime cannot be mutated")
	}
	if b := old.Status.StartTime; b != nil && !b.Equal(job.Status.StartTime) && !kind.Value(job.Spec.Suspend) &&
		!hasCondition(old, batchv1.JobSuspended) {
		if job.Status.StartTime == nil {
			l.Required("startTime", "startTime cannot be removed for unsuspended job")
		} else {
			l.Invalid("startTime", job.Status.StartTime, apivalidation.FieldImmutableErrorMsg)
		}
	}
	met := hasCondition(job, batchv1.JobSuccessCriteriaMet)
	wasMet := hasCondition(old, batchv1.JobSuccessCriteriaMet)
	if wasMet && !met {
		l.Invalid("conditions", field.OmitValueType{}, "cannot disable the SuccessCriteriaMet=True condition")
	}
	if hasCondition(old, batchv1.JobComplete) && !wasMet && met {
		l.Invalid("conditions", field.OmitValueType{},
			"cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions")
	}
	return append(errs, l.Errors()...)
}

func jobStatusErrors(job *batchv1.Job) field.ErrorList {
	errs := check.At(field.NewPath("status"))
	status := &job.Status
	check.NotNegatives(errs, check.NamedNumber[int32]{Name: "active", Value: &status.Active},
		check.NamedNumber[int32]{Name: "succeeded", Value: &status.Succeeded},
		check.NamedNumber[int32]{
			Name:  "failed",
			Value: &status.Failed,
		}, check.NamedNumber[int32]{Name: "ready", Value: status.Ready},
		check.NamedNumber[int32]{Name: "terminating", Value: status.Terminating})
	validateUncounted(errs, status.UncountedTerminatedPods)
	validateJobConditions(errs, job)
	validateJobTimes(errs, job)
	validateFinished(errs, job)
	validateStatusIndexes(errs, job)
	if status.Ready != nil && *status.Ready > status.Active {
		errs.Invalid("ready", *status.Ready, "cannot set more ready pods than active")
	}
	return errs.Errors()
}

func validateUncounted(errs *check.List, pods *batchv1.UncountedTerminatedPods) {
	if pods == nil {
		return
	}
	errs.In("uncountedTerminatedPods")
	defer errs.Out()
	var seen check.Set
	once := func(_ int, uid *types.UID) {
		if *uid == "" {
			errs.Invalid("", *uid, "must not be empty")
		} else if !seen.Add(string(*uid)) {
			errs.Duplicate("", *uid)
		}
	}
	check.Each(errs, "succeeded", pods.Succeeded, once)
	check.Each(errs, "failed", pods.Failed, once)
}

// validateJobConditions: a job ends one way, and says that it is about to before it does.
func validateJobConditions(errs *check.List, job *batchv1.Job) {
	complete := hasCondition(job, batchv1.JobComplete)
	failed := hasCondition(job, batchv1.JobFailed)
	failing := hasCondition(job, batchv1.JobFailureTarget)
	met := hasCondition(job, batchv1.JobSuccessCriteriaMet)
	for _, c := range []struct {
		wrong bool
		text  string
	}{
		{complete && failed, "cannot set Complete=True and Failed=true conditions"},
		{complete && failing, "cannot set Complete=True and FailureTarget=true conditions"},
		{failed && !failing, "cannot set Failed=True condition without the FailureTarget=true condition"},
		{complete && !met, "cannot set Complete=True condition without the SuccessCriteriaMet=true condition"},
		{met && failed, "cannot set SuccessCriteriaMet=True and Failed=true conditions"},
		{met && failing, "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions"},
		{
			job.Spec.SuccessPolicy != nil && !met && complete,
			"cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
		},
	} {
		if c.wrong {
			errs.Invalid("conditions", field.OmitValueType{}, c.text)
		}
	}
}

func validateJobTimes(errs *check.List, j *batchv1.Job) {
	s := &j.Status
	complete := hasCondition(j, batchv1.JobComplete)
	switch {
	case s.CompletionTime != nil && !complete:
		errs.Invalid("completionTime", s.CompletionTime,
			"cannot set completionTime when there is no Complete=True condition")
	case s.CompletionTime == nil && complete:
		errs.Required("completionTime", "completionTime is required for Complete jobs")
	}
	if before(s.CompletionTime, s.StartTime) {
		errs.Invalid("completionTime", s.CompletionTime, "completionTime cannot be set before startTime")
	}
}

func before(a, b *metav1.Time) bool { return a != nil && b != nil && a.Before(b) }

func validateFinished(errs *check.List, j *batchv1.Job) {
	if !hasCondition(j, batchv1.JobComplete) && !hasCondition(j, batchv1.JobFailed) {
		return
	}
	status := &j.Status
	if status.Active > 0 {
		errs.Invalid("active", status.Active, "active>0 is invalid for finished job")
	}
	neverStarted := kind.Value(j.Spec.Suspend) && j.Spec.Completions != nil && *j.Spec.Completions == 0
	if status.StartTime == nil && !neverStarted {
		errs.Required("startTime", "startTime is required for finished job")
	}
	if u := status.UncountedTerminatedPods; u != nil && len(u.Failed)+len(u.Succeeded) > 0 {
		errs.Invalid("uncountedTerminatedPods", u, "uncountedTerminatedPods needs to be empty for finished job")
	}
	if kind.Value(status.Terminating) > 0 {
		errs.Invalid("terminating", status.Terminating, "terminating>0 is invalid for finished job")
	}
}

func validateStatusIndexes(errs *check.List, job *batchv1.Job) {
	status := &job.Status
	if status.CompletedIndexes != "" && kind.Value(job.Spec.CompletionMode) != batchv1.IndexedCompletion {
		errs.Invalid("completedIndexes", status.CompletedIndexes,
			"cannot set non-empty completedIndexes when non-indexed completion mode")
	}
	if status.FailedIndexes != nil && job.Spec.BackoffLimitPerIndex == nil {
		errs.Invalid("failedIndexes", *status.FailedIndexes,
			"cannot set non-null failedIndexes when backoffLimitPerIndex is null")
	}
	if job.Spec.Completions == nil {
		return
	}
	completed, err := parseIndexes(status.CompletedIndexes, *job.Spec.Completions)
	if err != nil {
		errs.Invalid("completedIndexes", status.CompletedIndexes, "error parsing completedIndexes: "+err.Error())
	}
	failed, err := parseIndexes(kind.Value(status.FailedIndexes), *job.Spec.Completions)
	if err != nil && job.Spec.BackoffLimitPerIndex != nil {
		errs.Invalid("failedIndexes", status.FailedIndexes, "error parsing failedIndexes: "+err.Error())
	}
	if at, both := completed.overlap(failed); both {
		errs.Invalid("failedIndexes", *status.FailedIndexes,
			fmt.Sprintf("failedIndexes and completedIndexes overlap at index: %d", at))
	}
}
