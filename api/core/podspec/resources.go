// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	helper "k8s.io/component-helpers/resource"

	"keelson/api/internal/check"
	"keelson/api/resources"
	"keelson/lib/quantity"
)

// checkRequirements checks limits, requests and claims; name checks a resource's name.
func checkRequirements(errs *check.List, spec *corev1.PodSpec, r *corev1.ResourceRequirements, name func(*check.List, corev1.ResourceName) bool) {
	computed := false
	huge := false
	note := func(n corev1.ResourceName) {
		computed = computed || n == corev1.ResourceCPU || n == corev1.ResourceMemory
		huge = huge || resources.IsHugePages(n)
	}
	errs.In("limits")
	from := errs.Len()
	for n, q := range r.Limits {
		note(n)
		checkQuantity(errs, n, q, name)
	}
	errs.Sort(from)
	errs.Out()
	errs.In("requests")
	from = errs.Len()
	for n, q := range r.Requests {
		note(n)
		checkQuantity(errs, n, q, name)
	}
	errs.Sort(from)
	errs.Out()
	checkWithinLimits(errs, r)
	if huge && !computed {
		errs.Forbidden("", "HugePages require cpu or memory")
	}
	if len(r.Claims) > 0 {
		checkClaims(errs, spec, r.Claims)
	}
}

// ValidateLimits checks a list of resources as the limits of a container at path.
func ValidateLimits(list corev1.ResourceList, path *field.Path) field.ErrorList {
	errs := check.At(path)
	checkRequirements(errs, &corev1.PodSpec{}, &corev1.ResourceRequirements{Limits: list}, ContainerResourceName)
	return errs.Errors()
}

// checkQuantity checks one entry of a resource list; the list stands at the resource list.
func checkQuantity(errs *check.List, n corev1.ResourceName, q resource.Quantity, name func(*check.List, corev1.ResourceName) bool) {
	errs.Key(string(n))
	name(errs, n)
	Quantity(errs, n, q)
	if resources.IsHugePages(n) && !pageMultiple(n, q) {
		errs.Invalid("", q.String(), fmt.Sprintf("%s is not positive integer multiple of %s", q.String(), n))
	}
	errs.Out()
}

// Quantity checks the value of a resource at the current field.
func Quantity(l *check.List, n corev1.ResourceName, q resource.Quantity) {
	if q.Sign() < 0 {
		l.Invalid("", q.String(), apivalidation.IsNegativeErrorMsg)
	}
	if resources.IsWhole(n) && !resources.Whole(&q) {
		l.Invalid("", q, "must be an integer")
	}
}

// pageMultiple reports whether q is a multiple of the page size that n names; an invalid size passes.
func pageMultiple(n corev1.ResourceName, q resource.Quantity) bool {
	size, err := quantity.Parse(strings.TrimPrefix(string(n), corev1.ResourceHugePagesPrefix))
	if err != nil || size.Sign() <= 0 {
		return false
	}
	pages := size.Value()
	return pages > 0 && q.Value()%pages == 0
}

// checkWithinLimits wants each request at most its limit, and equal to it where the resource cannot be overcommitted.
func checkWithinLimits(errs *check.List, r *corev1.ResourceRequirements) {
	from := errs.Len()
	for n, q := range r.Requests {
		limit, limited := r.Limits[n]
		switch {
		case limited && q.Cmp(limit) != 0 && !resources.MayOvercommit(n):
			errs.Invalid("requests", q.String(), fmt.Sprintf("must be equal to %s limit of %s", n, limit.String()))
		case limited && q.Cmp(limit) > 0:
			errs.Invalid("requests", q.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", n,
				limit.String()))
		case !limited && !resources.MayOvercommit(n):
			errs.Required("limits", "Limit must be set for non overcommitable resources")
		}
	}
	errs.SortByDetail(from)
}

// ContainerResourceName wants a standard resource of containers or an extended one; true when it is.
func ContainerResourceName(errs *check.List, resourceName corev1.ResourceName) bool {
	switch resourceName {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return true
	}
	before := errs.Len()
	ResourceName(errs, resourceName)
	switch {
	case !strings.Contains(string(resourceName), "/"):
		if !resources.IsContainer(resourceName) {
			errs.Invalid("", resourceName, "must be a standard resource for containers")
		}
	case !resources.IsNative(resourceName) && !resources.IsExtended(resourceName):
		errs.Invalid("", resourceName, "doesn't follow extended resource name standard")
	}
	return errs.Len() == before
}

// checkPodResourceName wants a resource that can be given to the pod as a whole.
func checkPodResourceName(errs *check.List, n corev1.ResourceName) bool {
	before := errs.Len()
	ResourceName(errs, n)
	if errs.Len() == before && !helper.IsSupportedPodLevelResource(n) {
		check.NotSupported(errs, "", n, corev1.ResourceCPU, corev1.ResourceName(corev1.ResourceHugePagesPrefix),
			corev1.ResourceMemory)
	}
	return errs.Len() == before
}

// ResourceName wants a standard name or a fully qualified one.
func ResourceName(l *check.List, n corev1.ResourceName) {
	before := l.Len()
	l.Qualified("", string(n))
	if l.Len() == before && !strings.Contains(string(n), "/") && !resources.IsStandard(n) {
		l.Invalid("", n, "must be a standard resource type or fully qualified")
	}
}

// checkClaims wants references to the pod's resource claims, of which none covers another.
func checkClaims(errs *check.List, spec *corev1.PodSpec, claims []corev1.ResourceClaim) {
	seen := map[string]bool{}
	errs.In("claims")
	for i := range claims {
		claim := &claims[i]
		errs.Index(i)
		if claim.Name == "" {
			errs.Required("", "")
			errs.Out()
			continue
		}
		key := claim.Name
		if seen[key] {
			errs.Duplicate("", key)
		} else {
			if claim.Request != "" {
				errs.Label("request", claim.Request)
				key += "/" + claim.Request
			}
			if seen[key] {
				errs.Duplicate("", key)
			} else if claim.Request == "" {
				for other := range seen {
					if strings.HasPrefix(other, claim.Name+"/") {
						errs.Duplicate("", claim.Name)
					}
				}
			}
			seen[key] = true
		}
		checkClaimExists(errs, spec, claim.Name)
		errs.Out()
	}
	errs.Out()
}

func checkClaimExists(errs *check.List, spec *corev1.PodSpec, name string) {
	var names []string
	for i := range spec.ResourceClaims {
		if n := spec.ResourceClaims[i].Name; n == name {
			return
		} else if n != "" {
			names = append(names, n)
		}
	}
	err := field.NotFound(errs.Path(""), name)
	err.Detail = "must be one of the names in pod.spec.resourceClaims"
	if len(names) == 0 {
		err.Detail += " which is empty"
	} else {
		slices.Sort(names)
		err.Detail += ": " + strings.Join(slices.Compact(names), ", ")
	}
	errs.Add(err)
}

// checkPodResources checks resources of the pod as a whole (KEP-2837): they must cover what the containers ask for.
func checkPodResources(errs *check.List, spec *corev1.PodSpec) {
	requirements := spec.Resources
	if requirements == nil {
		return
	}
	errs.In("resources")
	if requirements.Claims != nil {
		errs.Forbidden("claims", "claims may not be set for Resources at pod-level")
	}
	checkRequirements(errs, spec, requirements, checkPodResourceName)
	pod := corev1.Pod{Spec: *spec}
	from := errs.Len()
	for n, sum := range helper.AggregateContainerRequests(&pod, helper.PodResourcesOptions{}) {
		if !helper.IsSupportedPodLevelResource(n) {
			continue
		}
		if q := requirements.Requests[n]; sum.Cmp(q) > 0 {
			errs.Add(field.Invalid(errs.Path("requests").Key(string(n)), q.String(),
				"must be greater than or equal to aggregate container requests of "+sum.String()))
		}
	}
	errs.Sort(from)
	from = errs.Len()
	for i := range spec.Containers {
		for n, q := range spec.Containers[i].Resources.Limits {
			if limit, ok := requirements.Limits[n]; ok && q.Cmp(limit) > 0 {
				errs.Add(field.Invalid(errs.Path("containers").Index(i).Key(string(n)).Child("limits"), q.String(),
					"must be less than or equal to pod limits of "+limit.String()))
			}
		}
	}
	errs.Sort(from)
	errs.Out()
}
