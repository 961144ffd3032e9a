// SPDX-License-Identifier: Apache-2.0

// Package batch describes the kinds of batch/v1: jobs and cron jobs. The
// registry lists them. It knows what a schedule is but not what time it is.
package batch

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/gates"
	"keelson/api/kind"
	"keelson/api/meta"
)

// Labels of a job's pods in addition to those that batchv1 names: the same without a prefix, for old clients.
const (
	legacyUIDLabel  = "controller-uid"
	legacyNameLabel = "job-name"
)

func names(k, resource, singular string, short ...string) kind.Names {
	gv := batchv1.SchemeGroupVersion
	return kind.Names{
		Group:      gv.Group,
		Version:    gv.Version,
		Kind:       k,
		Resource:   resource,
		Singular:   singular,
		ShortNames: short,
		Categories: []string{"all"},
		Namespaced: true,
	}
}

// Job describes batch/v1 Job.
func Job(on gates.On) *kind.Kind {
	return kind.Spec[*batchv1.Job]{
		Names:   names("Job", "jobs", "job"),
		New:     func() *batchv1.Job { return &batchv1.Job{} },
		NewList: func() runtime.Object { return &batchv1.JobList{} },
		Default: defaultJob,
		PrepareCreate: func(j *batchv1.Job) {
			j.Generation = 1
			j.Status = batchv1.JobStatus{}
			j.Spec.Scheduling = nil // behind a gate that is off
			generateSelector(j)
			podspec.DropDisabled(&j.Spec.Template.Spec, nil, on)
		},
		PrepareUpdate: func(j, old *batchv1.Job) {
			j.Status = old.Status
			j.Generation = old.Generation
			j.Labels = maps.Clone(j.Labels)
			if old.Spec.Scheduling == nil {
				j.Spec.Scheduling = nil
			}
			podspec.DropDisabled(&j.Spec.Template.Spec, &old.Spec.Template.Spec, on)
			if !equality.Semantic.DeepEqual(j.Spec, old.Spec) {
				j.Generation++
			}
		},
		Validate:       validateJob,
		ValidateUpdate: validateJobUpdate,
		Warnings:       jobWarnings,
		Fields: func(j *batchv1.Job) fields.Set {
			return fields.Set{"status.successful": strconv.Itoa(int(j.Status.Succeeded))}
		},
		Columns: append([]metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Status", Type: "string", Description: "Status of the job."},
			{Name: "Completions", Type: "string", Description: batchv1.JobStatus{}.SwaggerDoc()["succeeded"]},
			{Name: "Duration", Type: "string", Description: "Time required to complete the job."},
			kind.AgeColumn,
		}, podspec.TemplateColumns(batchv1.JobSpec{}.SwaggerDoc()["selector"])...),
		Row: jobRow,
		Status: &kind.Sub[*batchv1.Job]{
			PrepareUpdate:  func(j, old *batchv1.Job) { j.Spec = old.Spec },
			ValidateUpdate: validateJobStatus,
		},
		OrphanByDefault: true,
	}.Erase()
}

func defaultJob(job *batchv1.Job) {
	spec := &job.Spec
	if spec.Completions == nil && spec.Parallelism == nil {
		kind.Fill(&spec.Completions, 1)
	}
	kind.Fill(&spec.Parallelism, 1)
	if spec.BackoffLimitPerIndex != nil {
		kind.Fill(&spec.BackoffLimit, math.MaxInt32)
	}
	kind.Fill(&spec.BackoffLimit, 6)
	if len(job.Labels) == 0 && len(spec.Template.Labels) > 0 {
		job.Labels = spec.Template.Labels // one map, until PrepareCreate has written into it
	}
	kind.Fill(&spec.CompletionMode, batchv1.NonIndexedCompletion)
	kind.Fill(&spec.Suspend, false)
	kind.Fill(&spec.ManualSelector, false)
	if spec.PodFailurePolicy != nil {
		kind.Fill(&spec.PodReplacementPolicy, batchv1.Failed)
	}
	kind.Fill(&spec.PodReplacementPolicy, batchv1.TerminatingOrFailed)
	defaultTemplate(spec)
}

// defaultTemplate is what a job and the template of one share.
func defaultTemplate(s *batchv1.JobSpec) {
	if p := s.PodFailurePolicy; p != nil {
		for i := range p.Rules {
			for j := range p.Rules[i].OnPodConditions {
				if c := &p.Rules[i].OnPodConditions[j]; c.Status == "" {
					c.Status = corev1.ConditionTrue
				}
			}
		}
	}
	podspec.DefaultTemplate(&s.Template)
}

// generateSelector makes the job's pods its own: they carry its uid and name, and it selects by the uid.
func generateSelector(job *batchv1.Job) {
	template := &job.Spec.Template
	// A job without labels has its template's, also those that come now.
	if shared := reflect.ValueOf(job.Labels).Pointer() == reflect.ValueOf(template.Labels).Pointer(); shared {
		defer func() { job.Labels = maps.Clone(template.Labels) }()
	}
	template.Labels = maps.Clone(template.Labels)
	if template.Labels == nil {
		template.Labels = map[string]string{}
	}
	if kind.Value(job.Spec.ManualSelector) {
		return
	}
	for key, value := range podLabels(job) {
		// What the user asked for is not overwritten: validation refuses it. What an earlier generated name left is.
		old, found := template.Labels[key]
		if !found || old != value && job.GenerateName != "" && strings.HasPrefix(old, job.GenerateName) {
			template.Labels[key] = value
		}
	}
	sel := job.Spec.Selector.DeepCopy()
	if sel == nil {
		sel = &metav1.LabelSelector{}
	}
	if sel.MatchLabels == nil {
		sel.MatchLabels = map[string]string{}
	}
	if _, found := sel.MatchLabels[batchv1.ControllerUidLabel]; !found {
		sel.MatchLabels[batchv1.ControllerUidLabel] = string(job.UID)
	}
	job.Spec.Selector = sel
}

func podLabels(j *batchv1.Job) map[string]string {
	return map[string]string{
		legacyUIDLabel:             string(j.UID),
		legacyNameLabel:            j.Name,
		batchv1.ControllerUidLabel: string(j.UID),
		batchv1.JobNameLabel:       j.Name,
	}
}

func jobWarnings(job, old *batchv1.Job) []string {
	var out []string
	switch {
	case old == nil:
		out = podspec.NameWarnings(job.Name)
	case job.Generation == old.Generation:
		return nil
	}
	return append(out, jobSpecWarnings(&job.Spec, field.NewPath("spec"))...)
}

// jobSpecWarnings are those of a job, and of what a cron job makes.
func jobSpecWarnings(spec *batchv1.JobSpec, path *field.Path) []string {
	var out []string
	if many := kind.Value(spec.Completions) > softCompletions && kind.Value(spec.Parallelism) > highParallelism; many &&
		kind.Value(spec.CompletionMode) == batchv1.IndexedCompletion {
		out = append(out,
			fmt.Sprintf("%s: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher "+
				"than 10^4, "+
				"Kubernetes might not be able to track completedIndexes when a big number of indexes fail", path))
	}
	return append(out, podspec.TemplateWarnings(&spec.Template, path.Child("template"))...)
}

func jobRow(job *batchv1.Job) []any {
	completions := fmt.Sprintf("%d/1", job.Status.Succeeded)
	if c := job.Spec.Completions; c != nil {
		completions = fmt.Sprintf("%d/%d", job.Status.Succeeded, *c)
	} else if n := kind.Value(job.Spec.Parallelism); n > 1 {
		completions = fmt.Sprintf("%d/1 of %d", job.Status.Succeeded, n)
	}
	took := ""
	if start := job.Status.StartTime; start != nil {
		if end := job.Status.CompletionTime; end != nil {
			took = duration.HumanDuration(end.Sub(start.Time))
		} else {
			took = duration.HumanDuration(time.Since(start.Time))
		}
	}
	return append([]any{job.Name, jobState(job), completions, took, kind.Age(job.CreationTimestamp)},
		podspec.TemplateCells(&job.Spec.Template, job.Spec.Selector)...)
}

func jobState(j *batchv1.Job) string {
	switch {
	case hasCondition(j, batchv1.JobComplete):
		return "Complete"
	case hasCondition(j, batchv1.JobFailed):
		return "Failed"
	case j.DeletionTimestamp != nil:
		return "Terminating"
	case hasCondition(j, batchv1.JobSuspended):
		return "Suspended"
	case hasCondition(j, batchv1.JobFailureTarget):
		return "FailureTarget"
	}
	return "Running"
}

func hasCondition(j *batchv1.Job, t batchv1.JobConditionType) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == t && c.Status == corev1.ConditionTrue
	})
}

func validateJob(j *batchv1.Job) field.ErrorList {
	errs := meta.Finalizers(j)
	errs = append(errs, validateGenerated(j)...)
	errs = append(errs, validateJobSpec(&j.Spec, field.NewPath("spec"))...)
	if n := kind.Value(j.Spec.Completions); kind.Value(j.Spec.CompletionMode) == batchv1.IndexedCompletion && n > 0 {
		// The controller appends the index to the name to make a host name.
		if last := fmt.Sprintf("%s-%d", j.Name, n-1); len(validation.IsDNS1123Label(last)) > 0 {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), j.Name,
				"will not able to create pod with invalid DNS label: "+last))
		}
	}
	return errs
}
