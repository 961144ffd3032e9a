// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/scheduler/policy"
)

// validateArgs validates the arguments of an in-tree plugin.
func validateArgs(at *field.Path, args any) (errs field.ErrorList) {
	switch a := args.(type) {
	case *policy.Args:
		_, errs = a.CompileAll(at)
	case *configv1.DefaultPreemptionArgs:
		percent := *a.MinCandidateNodesPercentage
		absolute := *a.MinCandidateNodesAbsolute
		if percent < 0 || percent > 100 {
			errs = append(errs, field.Invalid(at.Child("minCandidateNodesPercentage"), percent,
				"not in valid range [0, 100]"))
		}
		if absolute < 0 {
			errs = append(errs, field.Invalid(at.Child("minCandidateNodesAbsolute"), absolute,
				"not in valid range [0, inf)"))
		}
		if percent == 0 && absolute == 0 {
			errs = append(errs, field.Invalid(at.Child("minCandidateNodesPercentage"), percent,
				"cannot be zero at the same time as minCandidateNodesAbsolute"))
		}
	case *configv1.InterPodAffinityArgs:
		if w := *a.HardPodAffinityWeight; w < 0 || w > 100 {
			errs = append(errs, field.Invalid(at.Child("hardPodAffinityWeight"), w, "not in valid range [0, 100]"))
		}
	case *configv1.NodeResourcesBalancedAllocationArgs:
		seen := map[string]bool{}
		for i, r := range a.Resources {
			at := at.Child("resources").Index(i)
			if seen[r.Name] {
				errs = append(errs, field.Duplicate(at.Child("name"), r.Name))
			}
			if seen[r.Name] = true; r.Weight != 1 {
				errs = append(errs, field.Invalid(at.Child("weight"), r.Weight, "must be 1"))
			}
		}
	case *configv1.VolumeBindingArgs:
		if s := *a.BindTimeoutSeconds; s < 0 {
			errs = append(errs, field.Invalid(at.Child("bindTimeoutSeconds"), s,
				"invalid BindTimeoutSeconds, should not be a negative value"))
		}
		errs = append(errs, validateShape(at.Child("shape"), a.Shape)...)
	case *configv1.DynamicResourcesArgs:
		if d := a.FilterTimeout.Duration; d < 0 {
			errs = append(errs, field.Invalid(at.Child("filterTimeout"), d.String(), "must be zero or positive"))
		}
		if d := a.BindingTimeout.Duration; d < time.Second {
			errs = append(errs, field.Invalid(at.Child("bindingTimeout"), d.String(), "must be at least 1 second"))
		}
	case *configv1.NodeAffinityArgs:
		return validateAddedAffinity(at.Child("addedAffinity"), a.AddedAffinity)
	case *configv1.PodTopologySpreadArgs:
		return validateSpread(at, a)
	case *configv1.NodeResourcesFitArgs:
		return validateFit(at, a)
	}
	return errs
}

func validateAddedAffinity(at *field.Path, nodeAffinity *corev1.NodeAffinity) (errs field.ErrorList) {
	if nodeAffinity == nil {
		return nil
	}
	add := func(at *field.Path, err error) {
		var all utilerrors.Aggregate
		switch {
		case err == nil:
		case errors.As(err, &all):
			for _, e := range utilerrors.Flatten(all).Errors() {
				if one, ok := errors.AsType[*field.Error](e); ok {
					errs = append(errs, one)
				} else {
					errs = append(errs, field.Invalid(at, "", e.Error()))
				}
			}
		default:
			errs = append(errs, field.Invalid(at, "", err.Error()))
		}
	}
	if required := nodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		at := at.Child("requiredDuringSchedulingIgnoredDuringExecution")
		_, err := nodeaffinity.NewNodeSelector(required, field.WithPath(at))
		add(at, err)
	}
	if terms := nodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(terms) > 0 {
		at := at.Child("preferredDuringSchedulingIgnoredDuringExecution")
		_, err := nodeaffinity.NewPreferredSchedulingTerms(terms, field.WithPath(at))
		add(at, err)
	}
	return errs
}

func validateSpread(at *field.Path, args *configv1.PodTopologySpreadArgs) (errs field.ErrorList) {
	kinds := []string{string(configv1.SystemDefaulting), string(configv1.ListDefaulting)}
	if !slices.Contains(kinds, string(args.DefaultingType)) {
		errs = append(errs, field.NotSupported(at.Child("defaultingType"), string(args.DefaultingType), kinds))
	} else if args.DefaultingType == configv1.SystemDefaulting && len(args.DefaultConstraints) > 0 {
		errs = append(errs, field.Invalid(at.Child("defaultingType"), args.DefaultingType,
			"when .defaultConstraints are not empty"))
	}
	for i, constraint := range args.DefaultConstraints {
		at := at.Child("defaultConstraints").Index(i)
		if constraint.MaxSkew <= 0 {
			errs = append(errs, field.Invalid(at.Child("maxSkew"), constraint.MaxSkew, "not in valid range (0, inf)"))
		}
		if constraint.TopologyKey == "" {
			errs = append(errs, field.Required(at.Child("topologyKey"), "can not be empty"))
		} else {
			errs = append(errs, metav1validation.ValidateLabelName(constraint.TopologyKey, at.Child("topologyKey"))...)
		}
		ways := []string{string(corev1.DoNotSchedule), string(corev1.ScheduleAnyway)}
		if constraint.WhenUnsatisfiable == "" {
			errs = append(errs, field.Required(at.Child("whenUnsatisfiable"), "can not be empty"))
		} else if !slices.Contains(ways, string(constraint.WhenUnsatisfiable)) {
			errs = append(errs, field.NotSupported(at.Child("whenUnsatisfiable"), string(constraint.WhenUnsatisfiable),
				ways))
		}
		if constraint.LabelSelector != nil {
			errs = append(errs, field.Forbidden(at.Child("labelSelector"),
				"constraint must not define a selector, as they deduced for each pod"))
		}
		if slices.ContainsFunc(args.DefaultConstraints[:i], func(o corev1.TopologySpreadConstraint) bool {
			return o.TopologyKey == constraint.TopologyKey && o.WhenUnsatisfiable == constraint.WhenUnsatisfiable
		}) {
			errs = append(errs,
				field.Duplicate(at, "{"+constraint.TopologyKey+", "+string(constraint.WhenUnsatisfiable)+"}"))
		}
	}
	return errs
}

func validateFit(at *field.Path, args *configv1.NodeResourcesFitArgs) (errs field.ErrorList) {
	for i, r := range args.IgnoredResources {
		errs = append(errs, metav1validation.ValidateLabelName(r, at.Child("ignoredResources").Index(i))...)
	}
	for i, g := range args.IgnoredResourceGroups {
		at := at.Child("ignoredResourceGroups").Index(i)
		if strings.Contains(g, "/") {
			errs = append(errs, field.Invalid(at, g, "resource group name can't contain '/'"))
		}
		errs = append(errs, metav1validation.ValidateLabelName(g, at)...)
	}
	at = at.Child("scoringStrategy")
	strategy := args.ScoringStrategy
	kinds := []string{
		string(configv1.LeastAllocated), string(configv1.MostAllocated), string(configv1.RequestedToCapacityRatio),
	}
	if !slices.Contains(kinds, string(strategy.Type)) {
		errs = append(errs, field.NotSupported(at.Child("type"), string(strategy.Type), kinds))
	}
	for i, r := range strategy.Resources {
		if r.Weight <= 0 || r.Weight > 100 {
			errs = append(errs, field.Invalid(at.Child("resources").Index(i).Child("weight"), r.Weight,
				"resource weight of "+r.Name+" not in valid range (0, 100]"))
		}
	}
	ratio := at.Child("requestedToCapacityRatio")
	switch {
	case strategy.Type != configv1.RequestedToCapacityRatio && strategy.RequestedToCapacityRatio != nil:
		errs = append(errs, field.Forbidden(ratio, "must be nil when type is not RequestedToCapacityRatio"))
	case strategy.Type == configv1.RequestedToCapacityRatio && strategy.RequestedToCapacityRatio == nil:
		errs = append(errs, field.Required(ratio, "must be specified when type is RequestedToCapacityRatio"))
	case strategy.RequestedToCapacityRatio != nil:
		errs = append(errs, validateShape(ratio.Child("shape"), strategy.RequestedToCapacityRatio.Shape)...)
	}
	return errs
}

func validateShape(at *field.Path, shape []configv1.UtilizationShapePoint) (errs field.ErrorList) {
	if len(shape) == 0 {
		return field.ErrorList{field.Required(at, "at least one point must be specified")}
	}
	for i, p := range shape {
		at := at.Index(i)
		if i > 0 && shape[i-1].Utilization >= p.Utilization {
			errs = append(errs, field.Invalid(at.Child("utilization"), p.Utilization,
				"values must be sorted in increasing order"))
		}
		if p.Utilization < 0 || p.Utilization > 100 {
			errs = append(errs, field.Invalid(at.Child("utilization"), p.Utilization, "not in valid range [0, 100]"))
		}
		if p.Score < 0 || p.Score > 10 {
			errs = append(errs, field.Invalid(at.Child("score"), p.Score, "not in valid range [0, 10]"))
		}
	}
	return errs
}
