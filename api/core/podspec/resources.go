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
)

// requirements checks limits, requests and claims; name checks a resource's name.
func (c *Checker) requirements(r *corev1.ResourceRequirements, name func(*Checker, corev1.ResourceName) bool) {
	computed := false
	huge := false
	note := func(n corev1.ResourceName) {
		computed = computed || n == corev1.ResourceCPU || n == corev1.ResourceMemory
		huge = huge || resources.IsHugePages(n)
	}
	c.In("limits")
	from := c.Len()
	for n, q := range r.Limits {
		note(n)
		c.quantity(n, q, name)
	}
	c.Sort(from)
	c.Out()
	c.In("requests")
	from = c.Len()
	for n, q := range r.Requests {
		note(n)
		c.quantity(n, q, name)
	}
	c.Sort(from)
	c.Out()
	c.withinLimits(r)
	if huge && !computed {
		c.Forbidden("", "HugePages require cpu or memory")
	}
	if len(r.Claims) > 0 {
		c.claims(r.Claims)
	}
}

// ValidateLimits checks a list of resources as the limits of a container at path.
func ValidateLimits(list corev1.ResourceList, path *field.Path) field.ErrorList {
	c := &Checker{List: check.At(path)}
	c.requirements(&corev1.ResourceRequirements{Limits: list}, (*Checker).containerResourceName)
	return c.Errors()
}

// quantity checks one entry of a resource list; the list stands at the resource list.
func (c *Checker) quantity(n corev1.ResourceName, q resource.Quantity, name func(*Checker, corev1.ResourceName) bool) {
	c.Key(string(n))
	name(c, n)
	Quantity(c.List, n, q)
	if resources.IsHugePages(n) && !pageMultiple(n, q) {
		c.Invalid("", q.String(), fmt.Sprintf("%s is not positive integer multiple of %s", q.String(), n))
	}
	c.Out()
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

// pageMultiple tells whether q is a number of pages of the size that n names; a size that is none passes.
func pageMultiple(n corev1.ResourceName, q resource.Quantity) bool {
	size, err := resource.ParseQuantity(strings.TrimPrefix(string(n), corev1.ResourceHugePagesPrefix))
	if err != nil || size.Sign() <= 0 {
		return false
	}
	pages := size.Value()
	return pages > 0 && q.Value()%pages == 0
}

// withinLimits wants each request at most its limit, and equal to it where the resource cannot be shared out twice.
func (c *Checker) withinLimits(r *corev1.ResourceRequirements) {
	from := c.Len()
	for n, q := range r.Requests {
		limit, limited := r.Limits[n]
		switch {
		case limited && q.Cmp(limit) != 0 && !resources.MayOvercommit(n):
			c.Invalid("requests", q.String(), fmt.Sprintf("must be equal to %s limit of %s", n, limit.String()))
		case limited && q.Cmp(limit) > 0:
			c.Invalid("requests", q.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", n,
				limit.String()))
		case !limited && !resources.MayOvercommit(n):
			c.Required("limits", "Limit must be set for non overcommitable resources")
		}
	}
	c.SortByDetail(from)
}

// containerResourceName is ContainerResourceName.
func (c *Checker) containerResourceName(n corev1.ResourceName) bool {
	return ContainerResourceName(c.List, n)
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

// podResourceName wants a resource that can be given to the pod as a whole.
func (c *Checker) podResourceName(n corev1.ResourceName) bool {
	before := c.Len()
	ResourceName(c.List, n)
	if c.Len() == before && !helper.IsSupportedPodLevelResource(n) {
		check.NotSupported(c.List, "", n, corev1.ResourceCPU, corev1.ResourceName(corev1.ResourceHugePagesPrefix),
			corev1.ResourceMemory)
	}
	return c.Len() == before
}

// ResourceName wants a standard name or a fully qualified one.
func ResourceName(l *check.List, n corev1.ResourceName) {
	before := l.Len()
	l.Qualified("", string(n))
	if l.Len() == before && !strings.Contains(string(n), "/") && !resources.IsStandard(n) {
		l.Invalid("", n, "must be a standard resource type or fully qualified")
	}
}

// claims wants references to the pod's resource claims, of which none covers another.
func (c *Checker) claims(claims []corev1.ResourceClaim) {
	seen := map[string]bool{}
	c.In("claims")
	for i := range claims {
		claim := &claims[i]
		c.Index(i)
		if claim.Name == "" {
			c.Required("", "")
			c.Out()
			continue
		}
		key := claim.Name
		if seen[key] {
			c.Duplicate("", key)
		} else {
			if claim.Request != "" {
				c.Label("request", claim.Request)
				key += "/" + claim.Request
			}
			if seen[key] {
				c.Duplicate("", key)
			} else if claim.Request == "" {
				for other := range seen {
					if strings.HasPrefix(other, claim.Name+"/") {
						c.Duplicate("", claim.Name)
					}
				}
			}
			seen[key] = true
		}
		c.claimExists(claim.Name)
		c.Out()
	}
	c.Out()
}

func (c *Checker) claimExists(name string) {
	var names []string
	for i := range c.spec.ResourceClaims {
		if n := c.spec.ResourceClaims[i].Name; n == name {
			return
		} else if n != "" {
			names = append(names, n)
		}
	}
	err := field.NotFound(c.Path(""), name)
	err.Detail = "must be one of the names in pod.spec.resourceClaims"
	if len(names) == 0 {
		err.Detail += " which is empty"
	} else {
		slices.Sort(names)
		err.Detail += ": " + strings.Join(slices.Compact(names), ", ")
	}
	c.Add(err)
}

// podResources checks resources of the pod as a whole (KEP-2837): they must cover what the containers ask for.
func (c *Checker) podResources() {
	requirements := c.spec.Resources
	if requirements == nil {
		return
	}
	c.In("resources")
	if requirements.Claims != nil {
		c.Forbidden("claims", "claims may not be set for Resources at pod-level")
	}
	c.requirements(requirements, (*Checker).podResourceName)
	pod := corev1.Pod{Spec: *c.spec}
	from := c.Len()
	for n, sum := range helper.AggregateContainerRequests(&pod, helper.PodResourcesOptions{}) {
		if !helper.IsSupportedPodLevelResource(n) {
			continue
		}
		if q := requirements.Requests[n]; sum.Cmp(q) > 0 {
			c.Add(field.Invalid(c.Path("requests").Key(string(n)), q.String(),
				"must be greater than or equal to aggregate container requests of "+sum.String()))
		}
	}
	c.Sort(from)
	from = c.Len()
	for i := range c.spec.Containers {
		for n, q := range c.spec.Containers[i].Resources.Limits {
			if limit, ok := requirements.Limits[n]; ok && q.Cmp(limit) > 0 {
				c.Add(field.Invalid(c.Path("containers").Index(i).Key(string(n)).Child("limits"), q.String(),
					"must be less than or equal to pod limits of "+limit.String()))
			}
		}
	}
	c.Sort(from)
	c.Out()
}
