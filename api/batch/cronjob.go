// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"regexp"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/gates"
	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
	"keelson/lib/cron"
)

// timeSuffix is how much the controller appends to the name of a cron job to name a job.
const timeSuffix = 11

// CronJob describes batch/v1 CronJob.
func CronJob(on gates.On) *kind.Kind {
	return kind.Spec[*batchv1.CronJob]{
		Names:   names("CronJob", "cronjobs", "cronjob", "cj"),
		New:     func() *batchv1.CronJob { return &batchv1.CronJob{} },
		NewList: func() runtime.Object { return &batchv1.CronJobList{} },
		Default: defaultCronJob,
		PrepareCreate: func(c *batchv1.CronJob) {
			c.Generation = 1
			c.Status = batchv1.CronJobStatus{}
			c.Spec.JobTemplate.Spec.Scheduling = nil // behind a gate that is off
			podspec.DropDisabled(&c.Spec.JobTemplate.Spec.Template.Spec, nil, on)
		},
		PrepareUpdate: func(c, old *batchv1.CronJob) {
			c.Status = old.Status
			c.Generation = old.Generation
			if old.Spec.JobTemplate.Spec.Scheduling == nil {
				c.Spec.JobTemplate.Spec.Scheduling = nil
			}
			podspec.DropDisabled(&c.Spec.JobTemplate.Spec.Template.Spec, &old.Spec.JobTemplate.Spec.Template.Spec, on)
			if !equality.Semantic.DeepEqual(c.Spec, old.Spec) {
				c.Generation++
			}
		},
		Validate: func(c *batchv1.CronJob) field.ErrorList {
			errs := append(meta.Finalizers(c), validateCronSpec(&c.Spec, nil)...)
			if len(c.Name) > validation.DNS1035LabelMaxLength-timeSuffix {
				errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), c.Name,
					"must be no more than 52 characters"))
			}
			return errs
		},
		ValidateUpdate: func(c, old *batchv1.CronJob) field.ErrorList { return validateCronSpec(&c.Spec, &old.Spec) },
		Warnings:       cronWarnings,
		Columns: append([]metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Schedule", Type: "string", Description: batchv1.CronJobSpec{}.SwaggerDoc()["schedule"]},
			{Name: "Timezone", Type: "string", Description: batchv1.CronJobSpec{}.SwaggerDoc()["timeZone"]},
			{Name: "Suspend", Type: "boolean", Description: batchv1.CronJobSpec{}.SwaggerDoc()["suspend"]},
			{Name: "Active", Type: "integer", Description: batchv1.CronJobStatus{}.SwaggerDoc()["active"]},
			{
				Name:        "Last Schedule",
				Type:        "string",
				Description: batchv1.CronJobStatus{}.SwaggerDoc()["lastScheduleTime"],
			},
			kind.AgeColumn,
		}, podspec.TemplateColumns(batchv1.JobSpec{}.SwaggerDoc()["selector"])...),
		Row: cronRow,
		Status: &kind.Sub[*batchv1.CronJob]{
			PrepareUpdate:  func(c, old *batchv1.CronJob) { c.Spec = old.Spec },
			ValidateUpdate: func(*batchv1.CronJob, *batchv1.CronJob) field.ErrorList { return nil },
		},
	}.Erase()
}

func defaultCronJob(c *batchv1.CronJob) {
	s := &c.Spec
	if s.ConcurrencyPolicy == "" {
		s.ConcurrencyPolicy = batchv1.AllowConcurrent
	}
	kind.Fill(&s.Suspend, false)
	kind.Fill(&s.SuccessfulJobsHistoryLimit, 3)
	kind.Fill(&s.FailedJobsHistoryLimit, 1)
	defaultTemplate(&s.JobTemplate.Spec)
}

func cronWarnings(c, old *batchv1.CronJob) []string {
	var out []string
	if old == nil {
		out = podspec.NameWarnings(c.Name)
	}
	if old == nil || c.Generation != old.Generation {
		out = append(out, jobSpecWarnings(&c.Spec.JobTemplate.Spec, field.NewPath("spec", "jobTemplate", "spec"))...)
	}
	if old != nil && strings.Contains(c.Spec.Schedule, "TZ") { // a create is refused
		out = append(out, "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see "+
			"https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details")
	}
	return out
}

func cronRow(c *batchv1.CronJob) []any {
	const none = "<none>"
	last := none
	zone := none
	suspend := "<unset>"
	if t := c.Status.LastScheduleTime; t != nil {
		last = kind.Age(*t)
	}
	if z := c.Spec.TimeZone; z != nil {
		zone = *z
	}
	if s := c.Spec.Suspend; s != nil {
		suspend = map[bool]string{true: "True", false: "False"}[*s]
	}
	job := &c.Spec.JobTemplate.Spec
	return append(
		[]any{c.Name, c.Spec.Schedule, zone, suspend, int64(len(c.Status.Active)), last, kind.Age(c.CreationTimestamp)},
		podspec.TemplateCells(&job.Template, job.Selector)...)
}

func validateCronSpec(cronJobSpec, old *batchv1.CronJobSpec) field.ErrorList {
	errs := check.At(field.NewPath("spec"))
	validateSchedule(errs, cronJobSpec, old)
	if d := cronJobSpec.StartingDeadlineSeconds; d != nil {
		errs.NotNegative("startingDeadlineSeconds", *d)
	}
	if z := cronJobSpec.TimeZone; z != nil && (old == nil || old.TimeZone == nil || *old.TimeZone != *z) {
		validateZone(errs, *z)
	}
	check.OneOf(errs, "concurrencyPolicy", cronJobSpec.ConcurrencyPolicy, batchv1.AllowConcurrent,
		batchv1.ForbidConcurrent,
		batchv1.ReplaceConcurrent)
	job := &cronJobSpec.JobTemplate.Spec
	path := errs.Path("jobTemplate").Child("spec")
	errs.Add(validateCommon(job, path)...)
	if job.Selector != nil {
		errs.Add(field.Invalid(path.Child("selector"), job.Selector, "`selector` will be auto-generated"))
	}
	if kind.Value(job.ManualSelector) {
		errs.Add(field.NotSupported(path.Child("manualSelector"), job.ManualSelector, []string{"nil", "false"}))
	}
	check.NotNegatives(errs,
		check.NamedNumber[int32]{Name: "successfulJobsHistoryLimit", Value: cronJobSpec.SuccessfulJobsHistoryLimit},
		check.NamedNumber[int32]{Name: "failedJobsHistoryLimit", Value: cronJobSpec.FailedJobsHistoryLimit})
	return errs.Errors()
}

// validateSchedule: a zone in the schedule itself is for cron jobs that had one when that was allowed.
func validateSchedule(errs *check.List, cronJobSpec, old *batchv1.CronJobSpec) {
	const child = "schedule"
	if cronJobSpec.Schedule == "" {
		errs.Required(child, "")
		return
	}
	if _, err := cron.Parse(cronJobSpec.Schedule); err != nil {
		errs.Invalid(child, cronJobSpec.Schedule, err.Error())
	}
	if !strings.Contains(cronJobSpec.Schedule, "TZ") {
		return
	}
	if old == nil || !strings.Contains(old.Schedule, "TZ") {
		errs.Invalid(child, cronJobSpec.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead")
	} else if cronJobSpec.TimeZone != nil {
		errs.Invalid(child, cronJobSpec.Schedule, "cannot use both timeZone field and TZ or CRON_TZ in schedule")
	}
}

// zonePart is a component of a time zone's name (https://data.iana.org/time-zones/theory.html#naming), with the digits
// and plus signs of old names.
var zonePart = regexp.MustCompile(`^[A-Za-z._0-9+-]{1,14}$`)

func validateZone(errs *check.List, zone string) {
	const child = "timeZone"
	if zone == "" {
		errs.Invalid(child, zone, "timeZone must be nil or non-empty string")
		return
	}
	for part := range strings.SplitSeq(zone, "/") {
		if part == "." || part == ".." || strings.HasPrefix(part, "-") || !zonePart.MatchString(part) {
			errs.Invalid(child, zone, "unknown time zone "+zone)
			return
		}
	}
	if strings.EqualFold(zone, "Local") {
		errs.Invalid(child, zone, "timeZone must be an explicit time zone as defined in "+
			"https://www.iana.org/time-zones")
	}
	if _, err := time.LoadLocation(zone); err != nil {
		errs.Invalid(child, zone, err.Error())
	}
}
