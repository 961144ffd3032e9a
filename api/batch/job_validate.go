// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/internal/check"
	"keelson/api/invalid"
	"keelson/api/kind"
)

// Limits, chosen so that the status stays small: it lists indexes as ranges.
const (
	maxIndexedParallelism = 100_000
	maxFailedIndexes      = 100_000
	softCompletions       = 100_000 // above these, the next two hold
	highParallelism       = 10_000
	highFailedIndexes     = 10_000
	maxFailureRules       = 20
	maxExitCodes          = 255
	maxConditionPatterns  = 20
	maxManagedBy          = 63
	maxSuccessRules       = 20
	maxSucceededIndexes   = 64 * 1024
)

// validateGenerated checks that the labels and the selector are the ones generateSelector makes.
func validateGenerated(job *batchv1.Job) field.ErrorList {
	if kind.Value(job.Spec.ManualSelector) || job.Spec.Selector == nil {
		return nil
	}
	var errs field.ErrorList
	if job.UID == "" {
		errs = append(errs, field.Required(field.NewPath("metadata", "uid"), ""))
	}
	path := field.NewPath("spec", "template", "metadata", "labels")
	want := podLabels(job)
	for _, key := range []string{legacyUIDLabel, legacyNameLabel, batchv1.ControllerUidLabel, batchv1.JobNameLabel} {
		switch got, found := job.Spec.Template.Labels[key]; {
		case !found:
			errs = invalid.Append(errs, field.Required(path.Key(key), fmt.Sprintf("must be '%s'", want[key])))
		case got != want[key]:
			errs = invalid.Append(errs, field.Invalid(path.Key(key), job.Spec.Template.Labels,
				fmt.Sprintf("must be '%s'", want[key])))
		}
	}
	if sel, err := metav1.LabelSelectorAsSelector(job.Spec.Selector); err == nil && !sel.Matches(labels.Set(want)) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "selector"), job.Spec.Selector,
			"`selector` not auto-generated"))
	}
	return errs
}

func validateJobSpec(s *batchv1.JobSpec, path *field.Path) field.ErrorList {
	errs := validateCommon(s, path)
	if s.Selector == nil {
		errs = append(errs, field.Required(path.Child("selector"), ""))
	} else {
		errs = append(errs, metavalidation.ValidateLabelSelector(s.Selector,
			metavalidation.LabelSelectorValidationOptions{}, path.Child("selector"))...)
	}
	if sel, err := metav1.LabelSelectorAsSelector(s.Selector); err == nil &&
		!sel.Matches(labels.Set(s.Template.Labels)) {
		errs = append(errs, field.Invalid(path.Child("template", "metadata", "labels"), s.Template.Labels,
			"`selector` does not match template `labels`"))
	}
	return errs
}

// validateCommon checks what a job and the template of one share.
func validateCommon(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	errs := check.At(path)
	check.NotNegatives(errs,
		check.NamedNumber[int32]{Name: "parallelism", Value: spec.Parallelism}, check.NamedNumber[int32]{
			Name:  "completions",
			Value: spec.Completions,
		})
	if d := spec.ActiveDeadlineSeconds; d != nil {
		errs.NotNegative("activeDeadlineSeconds", *d)
	}
	check.NotNegatives(errs, check.NamedNumber[int32]{Name: "backoffLimit", Value: spec.BackoffLimit},
		check.NamedNumber[int32]{Name: "ttlSecondsAfterFinished", Value: spec.TTLSecondsAfterFinished},
		check.NamedNumber[int32]{Name: "backoffLimitPerIndex", Value: spec.BackoffLimitPerIndex},
		check.NamedNumber[int32]{Name: "maxFailedIndexes", Value: spec.MaxFailedIndexes})
	if spec.MaxFailedIndexes != nil && spec.BackoffLimitPerIndex == nil {
		errs.Required("backoffLimitPerIndex", "when maxFailedIndexes is specified")
	}
	if m := spec.ManagedBy; m != nil {
		errs.Add(validation.IsDomainPrefixedPath(errs.Path("managedBy"), *m)...)
		if len(*m) > maxManagedBy {
			errs.TooLong("managedBy", maxManagedBy)
		}
	}
	validateMode(errs, spec)
	validateFailurePolicy(errs, spec)
	validateSuccessPolicy(errs, spec)
	if p := spec.PodReplacementPolicy; p != nil {
		valid := []batchv1.PodReplacementPolicy{batchv1.Failed, batchv1.TerminatingOrFailed}
		if spec.PodFailurePolicy != nil {
			valid = valid[:1]
		}
		check.Pointer(errs, "podReplacementPolicy", p, valid...)
	}
	errs.Add(podspec.ValidateTemplate(&spec.Template, path.Child("template"))...)
	errs.Within("template", func() { errs.Within("spec", func() { validateRestart(errs, spec) }) })
	return errs.Errors()
}

func validateRestart(l *check.List, s *batchv1.JobSpec) {
	const child = "restartPolicy"
	switch p := s.Template.Spec.RestartPolicy; {
	case p == corev1.RestartPolicyAlways || p == "":
		l.Required(child, fmt.Sprintf("valid values: %q, %q", corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever))
	case p != corev1.RestartPolicyOnFailure && p != corev1.RestartPolicyNever:
		check.NotSupported(l, child, p, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
	case s.PodFailurePolicy != nil && p != corev1.RestartPolicyNever:
		l.Invalid(child, p, fmt.Sprintf("only %q is supported when podFailurePolicy is specified",
			corev1.RestartPolicyNever))
	}
}

func validateMode(errs *check.List, spec *batchv1.JobSpec) {
	mode := kind.Value(spec.CompletionMode)
	check.Pointer(errs, "completionMode", spec.CompletionMode, batchv1.NonIndexedCompletion, batchv1.IndexedCompletion)
	if mode == batchv1.IndexedCompletion {
		validateIndexed(errs, spec)
	}
	if spec.CompletionMode == nil || mode == batchv1.NonIndexedCompletion {
		const needs = "requires indexed completion mode"
		if spec.BackoffLimitPerIndex != nil {
			errs.Invalid("backoffLimitPerIndex", *spec.BackoffLimitPerIndex, needs)
		}
		if spec.MaxFailedIndexes != nil {
			errs.Invalid("maxFailedIndexes", *spec.MaxFailedIndexes, needs)
		}
	}
}

func validateIndexed(errs *check.List, spec *batchv1.JobSpec) {
	parallelism := kind.Value(spec.Parallelism)
	failed := kind.Value(spec.MaxFailedIndexes)
	if spec.Completions == nil {
		errs.Required("completions", fmt.Sprintf("when completion mode is %s", batchv1.IndexedCompletion))
	}
	if parallelism > maxIndexedParallelism {
		errs.Invalid("parallelism", parallelism,
			fmt.Sprintf("must be less than or equal to %d when completion mode is %s", maxIndexedParallelism,
				batchv1.IndexedCompletion))
	}
	if spec.Completions != nil && failed > *spec.Completions {
		errs.Invalid("maxFailedIndexes", failed, "must be less than or equal to completions")
	}
	if failed > maxFailedIndexes {
		errs.Invalid("maxFailedIndexes", failed, fmt.Sprintf("must be less than or equal to %d", maxFailedIndexes))
	}
	if kind.Value(spec.Completions) <= softCompletions || spec.BackoffLimitPerIndex == nil {
		return
	}
	if spec.MaxFailedIndexes == nil {
		errs.Required("maxFailedIndexes", fmt.Sprintf("must be specified when completions is above %d",
			softCompletions))
	}
	const high = "must be less than or equal to %d when completions are above %d and used with backoff limit per index"
	if parallelism > highParallelism {
		errs.Invalid("parallelism", parallelism, fmt.Sprintf(high, highParallelism, softCompletions))
	}
	if failed > highFailedIndexes {
		errs.Invalid("maxFailedIndexes", failed, fmt.Sprintf(high, highFailedIndexes, softCompletions))
	}
}

// The words of pod failure policies, in the order messages print them.
var (
	failureActions = []batchv1.PodFailurePolicyAction{
		batchv1.PodFailurePolicyActionCount, batchv1.PodFailurePolicyActionFailIndex,
		batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionIgnore,
	}
	exitOperators = []batchv1.PodFailurePolicyOnExitCodesOperator{
		batchv1.PodFailurePolicyOnExitCodesOpIn, batchv1.PodFailurePolicyOnExitCodesOpNotIn,
	}
	statuses = []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown}
)

// word reports v unless it is one of valid; for an empty one the error lists the valid ones.
func word[T ~string](l *check.List, child string, v T, valid []T) {
	if v == "" {
		l.Required(child, fmt.Sprintf("valid values: %q", valid))
	} else if !slices.Contains(valid, v) {
		check.NotSupported(l, child, v, valid...)
	}
}

func validateFailurePolicy(errs *check.List, spec *batchv1.JobSpec) {
	if spec.PodFailurePolicy == nil {
		return
	}
	errs.In("podFailurePolicy")
	defer errs.Out()
	rules := spec.PodFailurePolicy.Rules
	if len(rules) > maxFailureRules {
		errs.Add(field.TooMany(errs.Path("rules"), len(rules), maxFailureRules))
	}
	var containers []string
	for _, c := range slices.Concat(spec.Template.Spec.Containers, spec.Template.Spec.InitContainers) {
		containers = append(containers, c.Name)
	}
	check.Each(errs, "rules", rules, func(_ int, rule *batchv1.PodFailurePolicyRule) {
		if rule.Action == batchv1.PodFailurePolicyActionFailIndex {
			if spec.BackoffLimitPerIndex == nil {
				errs.Invalid("action", rule.Action, "requires the backoffLimitPerIndex to be set")
			}
		} else {
			word(errs, "action", rule.Action, failureActions)
		}
		if rule.OnExitCodes != nil {
			errs.Within("onExitCodes", func() { validateExitCodes(errs, rule.OnExitCodes, containers) })
		}
		validatePatterns(errs, rule.OnPodConditions)
		switch byCode, byCondition := rule.OnExitCodes != nil, len(rule.OnPodConditions) > 0; {
		case byCode && byCondition:
			errs.Invalid("", field.OmitValueType{}, "specifying both OnExitCodes and OnPodConditions is not supported")
		case !byCode && !byCondition:
			errs.Invalid("", field.OmitValueType{}, "specifying one of OnExitCodes and OnPodConditions is required")
		}
	})
}

func validatePatterns(l *check.List, patterns []batchv1.PodFailurePolicyOnPodConditionsPattern) {
	if len(patterns) > maxConditionPatterns {
		l.Add(field.TooMany(l.Path("onPodConditions"), len(patterns), maxConditionPatterns))
	}
	check.Each(l, "onPodConditions", patterns, func(_ int, p *batchv1.PodFailurePolicyOnPodConditionsPattern) {
		l.Qualified("type", string(p.Type))
		word(l, "status", p.Status, statuses)
	})
}

func validateExitCodes(
	errs *check.List, requirement *batchv1.PodFailurePolicyOnExitCodesRequirement, containers []string,
) {
	word(errs, "operator", requirement.Operator, exitOperators)
	if c := requirement.ContainerName; c != nil && !slices.Contains(containers, *c) {
		errs.Invalid("containerName", *c, "must be one of the container or initContainer names in the pod template")
	}
	if len(requirement.Values) == 0 {
		errs.Invalid("values", requirement.Values, "at least one value is required")
	} else if len(requirement.Values) > maxExitCodes {
		errs.Add(field.TooMany(errs.Path("values"), len(requirement.Values), maxExitCodes))
	}
	seen := map[int32]bool{}
	check.Each(errs, "values", requirement.Values, func(_ int, v *int32) {
		if requirement.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn && *v == 0 {
			errs.Invalid("", *v, "must not be 0 for the In operator")
		}
		if seen[*v] {
			errs.Duplicate("", *v)
		}
		seen[*v] = true
	})
	if !slices.IsSorted(requirement.Values) {
		errs.Invalid("values", requirement.Values, "must be ordered")
	}
}

func validateSuccessPolicy(errs *check.List, spec *batchv1.JobSpec) {
	successPolicy := spec.SuccessPolicy
	if successPolicy == nil {
		return
	}
	if kind.Value(spec.CompletionMode) != batchv1.IndexedCompletion {
		errs.Invalid("successPolicy", *successPolicy, "requires indexed completion mode")
		return
	}
	errs.In("successPolicy")
	defer errs.Out()
	if len(successPolicy.Rules) == 0 {
		errs.Required("rules", "at least one rules must be specified when the successPolicy is specified")
	}
	if len(successPolicy.Rules) > maxSuccessRules {
		errs.Add(field.TooMany(errs.Path("rules"), len(successPolicy.Rules), maxSuccessRules))
	}
	completions := kind.Value(spec.Completions)
	check.Each(errs, "rules", successPolicy.Rules, func(_ int, r *batchv1.SuccessPolicyRule) {
		validateSuccessRule(errs, r, completions)
	})
}

func validateSuccessRule(errs *check.List, rule *batchv1.SuccessPolicyRule, completions int32) {
	if rule.SucceededCount == nil && rule.SucceededIndexes == nil {
		errs.Required("", "at least one of succeededCount or succeededIndexes must be specified")
	}
	var total int32
	if text := rule.SucceededIndexes; text != nil {
		if len(*text) > maxSucceededIndexes {
			errs.TooLong("succeededIndexes", maxSucceededIndexes)
		}
		list, err := parseIndexes(*text, completions)
		if err != nil {
			errs.Invalid("succeededIndexes", *text, "error parsing succeededIndexes: "+err.Error())
		}
		total = list.Count()
	}
	if n := rule.SucceededCount; n != nil {
		errs.NotNegative("succeededCount", int64(*n))
		if *n > completions {
			errs.Invalid("succeededCount", *n,
				fmt.Sprintf("must be less than or equal to %d (the number of specified completions)", completions))
		}
		if rule.SucceededIndexes != nil && *n > total {
			errs.Invalid("succeededCount", *n,
				fmt.Sprintf("must be less than or equal to %d (the number of indexes in the specified "+
					"succeededIndexes field)", total))
		}
	}
}
