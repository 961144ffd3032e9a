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
func validateGenerated(j *batchv1.Job) field.ErrorList {
	if kind.Value(j.Spec.ManualSelector) || j.Spec.Selector == nil {
		return nil
	}
	var errs field.ErrorList
	if j.UID == "" {
		errs = append(errs, field.Required(field.NewPath("metadata", "uid"), ""))
	}
	path := field.NewPath("spec", "template", "metadata", "labels")
	want := podLabels(j)
	for _, key := range []string{legacyUIDLabel, legacyNameLabel, batchv1.ControllerUidLabel, batchv1.JobNameLabel} {
		switch got, found := j.Spec.Template.Labels[key]; {
		case !found:
			errs = append(errs, field.Required(path.Key(key), fmt.Sprintf("must be '%s'", want[key])))
		case got != want[key]:
			errs = append(errs, field.Invalid(path.Key(key), j.Spec.Template.Labels,
				fmt.Sprintf("must be '%s'", want[key])))
		}
	}
	if sel, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil && !sel.Matches(labels.Set(want)) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "selector"), j.Spec.Selector,
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
func validateCommon(s *batchv1.JobSpec, path *field.Path) field.ErrorList {
	l := check.At(path)
	check.NotNegatives(l, check.NamedNumber[int32]{Name: "parallelism", Value: s.Parallelism}, check.NamedNumber[int32]{
		Name:  "completions",
		Value: s.Completions,
	})
	if d := s.ActiveDeadlineSeconds; d != nil {
		l.NotNegative("activeDeadlineSeconds", *d)
	}
	check.NotNegatives(l, check.NamedNumber[int32]{Name: "backoffLimit", Value: s.BackoffLimit},
		check.NamedNumber[int32]{Name: "ttlSecondsAfterFinished", Value: s.TTLSecondsAfterFinished},
		check.NamedNumber[int32]{Name: "backoffLimitPerIndex", Value: s.BackoffLimitPerIndex},
		check.NamedNumber[int32]{Name: "maxFailedIndexes", Value: s.MaxFailedIndexes})
	if s.MaxFailedIndexes != nil && s.BackoffLimitPerIndex == nil {
		l.Required("backoffLimitPerIndex", "when maxFailedIndexes is specified")
	}
	if m := s.ManagedBy; m != nil {
		l.Add(validation.IsDomainPrefixedPath(l.Path("managedBy"), *m)...)
		if len(*m) > maxManagedBy {
			l.TooLong("managedBy", maxManagedBy)
		}
	}
	validateMode(l, s)
	validateFailurePolicy(l, s)
	validateSuccessPolicy(l, s)
	if p := s.PodReplacementPolicy; p != nil {
		valid := []batchv1.PodReplacementPolicy{batchv1.Failed, batchv1.TerminatingOrFailed}
		if s.PodFailurePolicy != nil {
			valid = valid[:1]
		}
		check.Pointer(l, "podReplacementPolicy", p, valid...)
	}
	l.Add(podspec.ValidateTemplate(&s.Template, path.Child("template"))...)
	l.Within("template", func() { l.Within("spec", func() { validateRestart(l, s) }) })
	return l.Errors()
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

func validateMode(l *check.List, s *batchv1.JobSpec) {
	mode := kind.Value(s.CompletionMode)
	check.Pointer(l, "completionMode", s.CompletionMode, batchv1.NonIndexedCompletion, batchv1.IndexedCompletion)
	if mode == batchv1.IndexedCompletion {
		validateIndexed(l, s)
	}
	if s.CompletionMode == nil || mode == batchv1.NonIndexedCompletion {
		const needs = "requires indexed completion mode"
		if s.BackoffLimitPerIndex != nil {
			l.Invalid("backoffLimitPerIndex", *s.BackoffLimitPerIndex, needs)
		}
		if s.MaxFailedIndexes != nil {
			l.Invalid("maxFailedIndexes", *s.MaxFailedIndexes, needs)
		}
	}
}

func validateIndexed(l *check.List, s *batchv1.JobSpec) {
	parallelism := kind.Value(s.Parallelism)
	failed := kind.Value(s.MaxFailedIndexes)
	if s.Completions == nil {
		l.Required("completions", fmt.Sprintf("when completion mode is %s", batchv1.IndexedCompletion))
	}
	if parallelism > maxIndexedParallelism {
		l.Invalid("parallelism", parallelism,
			fmt.Sprintf("must be less than or equal to %d when completion mode is %s", maxIndexedParallelism,
				batchv1.IndexedCompletion))
	}
	if s.Completions != nil && failed > *s.Completions {
		l.Invalid("maxFailedIndexes", failed, "must be less than or equal to completions")
	}
	if failed > maxFailedIndexes {
		l.Invalid("maxFailedIndexes", failed, fmt.Sprintf("must be less than or equal to %d", maxFailedIndexes))
	}
	if kind.Value(s.Completions) <= softCompletions || s.BackoffLimitPerIndex == nil {
		return
	}
	if s.MaxFailedIndexes == nil {
		l.Required("maxFailedIndexes", fmt.Sprintf("must be specified when completions is above %d", softCompletions))
	}
	const high = "must be less than or equal to %d when completions are above %d and used with backoff limit per index"
	if parallelism > highParallelism {
		l.Invalid("parallelism", parallelism, fmt.Sprintf(high, highParallelism, softCompletions))
	}
	if failed > highFailedIndexes {
		l.Invalid("maxFailedIndexes", failed, fmt.Sprintf(high, highFailedIndexes, softCompletions))
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

// word reports v unless it is one of valid; the empty one is told what there is.
func word[T ~string](l *check.List, child string, v T, valid []T) {
	if v == "" {
		l.Required(child, fmt.Sprintf("valid values: %q", valid))
	} else if !slices.Contains(valid, v) {
		check.NotSupported(l, child, v, valid...)
	}
}

func validateFailurePolicy(l *check.List, s *batchv1.JobSpec) {
	if s.PodFailurePolicy == nil {
		return
	}
	l.In("podFailurePolicy")
	defer l.Out()
	rules := s.PodFailurePolicy.Rules
	if len(rules) > maxFailureRules {
		l.Add(field.TooMany(l.Path("rules"), len(rules), maxFailureRules))
	}
	var containers []string
	for _, c := range slices.Concat(s.Template.Spec.Containers, s.Template.Spec.InitContainers) {
		containers = append(containers, c.Name)
	}
	check.Each(l, "rules", rules, func(_ int, r *batchv1.PodFailurePolicyRule) {
		if r.Action == batchv1.PodFailurePolicyActionFailIndex {
			if s.BackoffLimitPerIndex == nil {
				l.Invalid("action", r.Action, "requires the backoffLimitPerIndex to be set")
			}
		} else {
			word(l, "action", r.Action, failureActions)
		}
		if r.OnExitCodes != nil {
			l.Within("onExitCodes", func() { validateExitCodes(l, r.OnExitCodes, containers) })
		}
		validatePatterns(l, r.OnPodConditions)
		switch byCode, byCondition := r.OnExitCodes != nil, len(r.OnPodConditions) > 0; {
		case byCode && byCondition:
			l.Invalid("", field.OmitValueType{}, "specifying both OnExitCodes and OnPodConditions is not supported")
		case !byCode && !byCondition:
			l.Invalid("", field.OmitValueType{}, "specifying one of OnExitCodes and OnPodConditions is required")
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

func validateExitCodes(l *check.List, r *batchv1.PodFailurePolicyOnExitCodesRequirement, containers []string) {
	word(l, "operator", r.Operator, exitOperators)
	if c := r.ContainerName; c != nil && !slices.Contains(containers, *c) {
		l.Invalid("containerName", *c, "must be one of the container or initContainer names in the pod template")
	}
	if len(r.Values) == 0 {
		l.Invalid("values", r.Values, "at least one value is required")
	} else if len(r.Values) > maxExitCodes {
		l.Add(field.TooMany(l.Path("values"), len(r.Values), maxExitCodes))
	}
	seen := map[int32]bool{}
	check.Each(l, "values", r.Values, func(_ int, v *int32) {
		if r.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn && *v == 0 {
			l.Invalid("", *v, "must not be 0 for the In operator")
		}
		if seen[*v] {
			l.Duplicate("", *v)
		}
		seen[*v] = true
	})
	if !slices.IsSorted(r.Values) {
		l.Invalid("values", r.Values, "must be ordered")
	}
}

func validateSuccessPolicy(l *check.List, s *batchv1.JobSpec) {
	p := s.SuccessPolicy
	if p == nil {
		return
	}
	if kind.Value(s.CompletionMode) != batchv1.IndexedCompletion {
		l.Invalid("successPolicy", *p, "requires indexed completion mode")
		return
	}
	l.In("successPolicy")
	defer l.Out()
	if len(p.Rules) == 0 {
		l.Required("rules", "at least one rules must be specified when the successPolicy is specified")
	}
	if len(p.Rules) > maxSuccessRules {
		l.Add(field.TooMany(l.Path("rules"), len(p.Rules), maxSuccessRules))
	}
	completions := kind.Value(s.Completions)
	check.Each(l, "rules", p.Rules, func(_ int, r *batchv1.SuccessPolicyRule) {
		validateSuccessRule(l, r, completions)
	})
}

func validateSuccessRule(l *check.List, r *batchv1.SuccessPolicyRule, completions int32) {
	if r.SucceededCount == nil && r.SucceededIndexes == nil {
		l.Required("", "at least one of succeededCount or succeededIndexes must be specified")
	}
	var total int32
	if text := r.SucceededIndexes; text != nil {
		if len(*text) > maxSucceededIndexes {
			l.TooLong("succeededIndexes", maxSucceededIndexes)
		}
		list, err := parseIndexes(*text, completions)
		if err != nil {
			l.Invalid("succeededIndexes", *text, "error parsing succeededIndexes: "+err.Error())
		}
		total = list.Count()
	}
	if n := r.SucceededCount; n != nil {
		l.NotNegative("succeededCount", int64(*n))
		if *n > completions {
			l.Invalid("succeededCount", *n,
				fmt.Sprintf("must be less than or equal to %d (the number of specified completions)", completions))
		}
		if r.SucceededIndexes != nil && *n > total {
			l.Invalid("succeededCount", *n,
				fmt.Sprintf("must be less than or equal to %d (the number of indexes in the specified "+
					"succeededIndexes field)", total))
		}
	}
}
