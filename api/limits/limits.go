// SPDX-License-Identifier: Apache-2.0

// Package limits applies LimitRanges: it fills in what pods leave out and says what
// they, and claims, ask that is out of bounds. The server's admission goes by it, and
// the scheduler's answers to "what if". It changes the pod that Fill is given, nothing else.
package limits

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/api/resources"
)

// annotation reports what was filled in.
const annotation = "kubernetes.io/limit-ranger"

// Fill sets the requests and limits that a range has for containers which give none, and reports whether it changed the
// pod.
func Fill(pod *corev1.Pod, lr *corev1.LimitRange) bool {
	limits := corev1.ResourceList{}
	requests := corev1.ResourceList{}
	for i := range lr.Spec.Limits {
		item := &lr.Spec.Limits[i]
		if item.Type != corev1.LimitTypeContainer {
			continue
		}
		maps.Copy(requests, item.DefaultRequest)
		maps.Copy(limits, item.Default)
	}
	if len(limits) == 0 && len(requests) == 0 {
		return false
	}
	var notes []string
	for i := range pod.Spec.Containers {
		notes = append(notes, fill(&pod.Spec.Containers[i], "container", limits, requests)...)
	}
	for i := range pod.Spec.InitContainers {
		notes = append(notes, fill(&pod.Spec.InitContainers[i], "init container", limits, requests)...)
	}
	if len(notes) > 0 {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations[annotation] = "LimitRanger plugin set: " + strings.Join(notes, "; ")
	}
	return len(notes) > 0
}

// fill sets what the container does not, and says what it set. A default request never comes with a container's own
// limit below it, because a request left out takes the limit's value.
func fill(container *corev1.Container, what string, limits, requests corev1.ResourceList) []string {
	set := func(into *corev1.ResourceList, from corev1.ResourceList) []string {
		var names []string
		for k, v := range from {
			if _, ok := (*into)[k]; ok {
				continue
			}
			if *into == nil {
				*into = corev1.ResourceList{}
			}
			(*into)[k] = v.DeepCopy()
			names = append(names, string(k))
		}
		sort.Strings(names)
		return names
	}
	// Defaults of requests apply to what had neither; limits given alone stand for the request too.
	for k, v := range container.Resources.Limits {
		if _, ok := container.Resources.Requests[k]; !ok {
			if container.Resources.Requests == nil {
				container.Resources.Requests = corev1.ResourceList{}
			}
			container.Resources.Requests[k] = v.DeepCopy()
		}
	}
	var notes []string
	if n := set(&container.Resources.Requests, requests); len(n) > 0 {
		notes = append(notes, strings.Join(n, ", ")+" request for "+what+" "+container.Name)
	}
	if n := set(&container.Resources.Limits, limits); len(n) > 0 {
		notes = append(notes, strings.Join(n, ", ")+" limit for "+what+" "+container.Name)
	}
	return notes
}

// Violations says what of a pod or a claim is out of a range's bounds; other objects have none.
func Violations(obj runtime.Object, lr *corev1.LimitRange) []error {
	switch o := obj.(type) {
	case *corev1.Pod:
		return podViolations(o, lr)
	case *corev1.PersistentVolumeClaim:
		return claimViolations(o, lr)
	default:
		return nil
	}
}

func claimViolations(c *corev1.PersistentVolumeClaim, lr *corev1.LimitRange) []error {
	var errs []error
	for i := range lr.Spec.Limits {
		if item := &lr.Spec.Limits[i]; item.Type == corev1.LimitTypePersistentVolumeClaim {
			errs = append(errs, bounds(item, c.Spec.Resources.Requests, corev1.ResourceList{}, false)...)
		}
	}
	return errs
}

func podViolations(pod *corev1.Pod, lr *corev1.LimitRange) []error {
	var errs []error
	for i := range lr.Spec.Limits {
		item := &lr.Spec.Limits[i]
		switch item.Type {
		case corev1.LimitTypeContainer:
			for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
				errs = append(errs, bounds(item, c.Resources.Requests, c.Resources.Limits, true)...)
			}
		case corev1.LimitTypePod:
			errs = append(errs, bounds(item, resources.Requests(pod), resources.Limits(pod), true)...)
		case corev1.LimitTypePersistentVolumeClaim:
		}
	}
	return errs
}

// bounds checks one limit range item. With limited false only requests count (claims have no limits).
func bounds(item *corev1.LimitRangeItem, requests, limits corev1.ResourceList, limited bool) []error {
	var errs []error
	add := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	for _, k := range sorted(item.Min) {
		add(atLeast(item.Type, k, item.Min[k], requests, limits))
	}
	for _, k := range sorted(item.Max) {
		if limited {
			add(atMost(item.Type, k, item.Max[k], requests, limits))
		} else {
			add(requestAtMost(item.Type, k, item.Max[k], requests))
		}
	}
	for _, k := range sorted(item.MaxLimitRequestRatio) {
		add(ratio(item.Type, k, item.MaxLimitRequestRatio[k], requests, limits))
	}
	return errs
}

func sorted(l corev1.ResourceList) []corev1.ResourceName {
	names := make([]corev1.ResourceName, 0, len(l))
	for k := range l {
		names = append(names, k)
	}
	slices.Sort(names)
	return names
}

func atLeast(
	kind corev1.LimitType, name corev1.ResourceName, minimum resource.Quantity, requests, limits corev1.ResourceList,
) error {
	req, hasReq := requests[name]
	lim, hasLim := limits[name]
	switch {
	case !hasReq:
		return fmt.Errorf("minimum %s usage per %s is %s.  No request is specified", name, kind, minimum.String())
	case req.Cmp(minimum) < 0:
		return fmt.Errorf("minimum %s usage per %s is %s, but request is %s", name, kind, minimum.String(),
			req.String())
	case hasLim && lim.Cmp(minimum) < 0:
		return fmt.Errorf("minimum %s usage per %s is %s, but limit is %s", name, kind, minimum.String(), lim.String())
	}
	return nil
}

func atMost(
	kind corev1.LimitType, name corev1.ResourceName, maximum resource.Quantity, requests, limits corev1.ResourceList,
) error {
	req, hasReq := requests[name]
	lim, hasLim := limits[name]
	switch {
	case !hasLim:
		return fmt.Errorf("maximum %s usage per %s is %s.  No limit is specified", name, kind, maximum.String())
	case lim.Cmp(maximum) > 0:
		return fmt.Errorf("maximum %s usage per %s is %s, but limit is %s", name, kind, maximum.String(), lim.String())
	case hasReq && req.Cmp(maximum) > 0:
		return fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, kind, maximum.String(),
			req.String())
	}
	return nil
}

func requestAtMost(
	kind corev1.LimitType, name corev1.ResourceName, maximum resource.Quantity, requests corev1.ResourceList,
) error {
	req, ok := requests[name]
	if !ok {
		return fmt.Errorf("maximum %s usage per %s is %s.  No request is specified", name, kind, maximum.String())
	}
	if req.Cmp(maximum) > 0 {
		return fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, kind, maximum.String(),
			req.String())
	}
	return nil
}

func ratio(
	kind corev1.LimitType, name corev1.ResourceName, maximum resource.Quantity, requests, limits corev1.ResourceList,
) error {
	req, hasReq := requests[name]
	lim, hasLim := limits[name]
	if !hasReq || req.IsZero() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no request is specified or request is 0",
			name, kind, maximum.String())
	}
	if !hasLim || lim.IsZero() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no limit is specified or limit is 0", name,
			kind, maximum.String())
	}
	got := float64(lim.MilliValue()) / float64(req.MilliValue())
	if math.IsInf(got, 0) || got > maximum.AsApproximateFloat64() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but provided ratio is %f", name, kind,
			maximum.String(), got)
	}
	return nil
}
