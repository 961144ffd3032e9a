// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/fastequal"
	"keelson/api/gates"
)

// validateUpdate lets a user change little more than images, deadlines, gates and tolerations.
func validateUpdate(pod, old *corev1.Pod) field.ErrorList {
	checker := newChecker(pod)
	checker.Pod(pod)
	checker.In("metadata")
	checker.In("annotations")
	checker.annotationChanges(pod.Annotations, old.Annotations)
	checker.Out()
	checker.Out()
	checker.In("spec")
	defer checker.Out()
	if !checker.imageChanges("containers", pod.Spec.Containers, old.Spec.Containers) ||
		!checker.imageChanges("initContainers", pod.Spec.InitContainers, old.Spec.InitContainers) ||
		!checker.deadlineChange(pod.Spec.ActiveDeadlineSeconds, old.Spec.ActiveDeadlineSeconds) {
		return checker.Errors()
	}
	checker.tolerationChanges(pod.Spec.Tolerations, old.Spec.Tolerations)
	checker.gateChanges(pod.Spec.SchedulingGates, old.Spec.SchedulingGates)
	if !fastequal.Semantically(&pod.Spec, &old.Spec) {
		checker.nothingElse(pod, old)
	}
	return checker.Errors()
}

// annotationChanges guards the annotations that are part of how a pod came to be; the list stands at them.
func (c *checker) annotationChanges(now, old map[string]string) {
	from := c.Len()
	guard := func(k, did string) {
		if k != corev1.MirrorPodAnnotationKey && !strings.HasPrefix(k, podspec.AppArmorPrefix) {
			return
		}
		what := "AppArmor annotations"
		if k == corev1.MirrorPodAnnotationKey {
			what = "mirror pod annotation"
		}
		c.Key(k)
		c.Forbidden("", "may not "+did+" "+what)
		c.Out()
	}
	for k, v := range old {
		if w, ok := now[k]; !ok || w != v {
			guard(k, "remove or update")
		}
	}
	for k := range now {
		if _, ok := old[k]; !ok {
			guard(k, "add")
		}
	}
	c.Sort(from)
}

// imageChanges is false when the lists cannot be compared at all.
func (c *checker) imageChanges(child string, now, old []corev1.Container) bool {
	if len(now) != len(old) {
		c.Forbidden(child, "pod updates may not add or remove containers")
		return false
	}
	// That images are there and without white space has been checked.
	return true
}

// deadlineChange lets a deadline be set or brought forward. It is false when the change makes no sense at all.
func (c *checker) deadlineChange(now, old *int64) bool {
	const child = "activeDeadlineSeconds"
	switch {
	case now == nil && old != nil:
		c.Invalid(child, now, "must not update from a positive integer to nil value")
	case now == nil:
	case *now < 0 || *now > math.MaxInt32:
		c.Invalid(child, *now, validation.InclusiveRangeError(0, math.MaxInt32))
		return false
	case old != nil && *old < *now:
		c.Invalid(child, *now, "must be less than or equal to previous value")
		return false
	}
	return true
}

func (c *checker) tolerationChanges(now, old []corev1.Toleration) {
	has := make(map[corev1.Toleration]bool, len(now))
	for _, t := range now {
		t.TolerationSeconds = nil
		has[t] = true
	}
	for _, t := range old {
		t.TolerationSeconds = nil
		if !has[t] {
			c.Forbidden("tolerations", "existing toleration can not be modified except its tolerationSeconds")
			return
		}
	}
}

func (c *checker) gateChanges(now, old []corev1.PodSchedulingGate) {
	before := make(map[corev1.PodSchedulingGate]bool, len(old))
	for _, g := range old {
		before[g] = true
	}
	c.In("schedulingGates")
	for i, g := range now {
		if !before[g] {
			c.Index(i)
			c.Forbidden("name", fmt.Sprintf("only deletion is allowed, but found new scheduling gate '%s'", g.Name))
			c.Out()
		}
	}
	c.Out()
}

// updatable are the fields that an update may change, in the words of the refusal.
var updatable = strings.Join([]string{
	"`spec.containers[*].image`", "`spec.initContainers[*].image`", "`spec.activeDeadlineSeconds`",
	"`spec.tolerations` (only additions to existing tolerations)",
	"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
}, ",")

// nothingElse restores the fields that may change and requires the rest to be unchanged.
func (c *checker) nothingElse(p, old *corev1.Pod) {
	now := p.Spec.DeepCopy()
	for i := range now.Containers {
		now.Containers[i].Image = old.Spec.Containers[i].Image
	}
	for i := range now.InitContainers {
		now.InitContainers[i].Image = old.Spec.InitContainers[i].Image
	}
	now.ActiveDeadlineSeconds = old.Spec.ActiveDeadlineSeconds
	now.SchedulingGates = old.Spec.SchedulingGates
	now.Tolerations = old.Spec.Tolerations
	if was, is := old.Spec.TerminationGracePeriodSeconds, now.TerminationGracePeriodSeconds; was != nil && *was < 0 &&
		is != nil && *is == 1 {
		now.TerminationGracePeriodSeconds = was
	}
	if len(old.Spec.SchedulingGates) > 0 {
		c.gatedChanges(now, &old.Spec)
	}
	if !equality.Semantic.DeepEqual(*now, old.Spec) {
		c.Forbidden("", fmt.Sprintf("pod updates may not change fields other than %s\n%v", updatable,
			cmp.Diff(old.Spec, *now)))
	}
}

// gatedChanges lets a pod that waits for gates become pickier about its node (KEP-3838), and puts that back in now.
func (c *checker) gatedChanges(now, old *corev1.PodSpec) {
	if !equality.Semantic.DeepEqual(now.NodeSelector, old.NodeSelector) {
		for k, v := range old.NodeSelector {
			if w, ok := now.NodeSelector[k]; !ok || w != v {
				c.Invalid("nodeSelector", now.NodeSelector,
					"only additions to spec.nodeSelector are allowed (no mutations or deletions)")
				break
			}
		}
		now.NodeSelector = old.NodeSelector
	}
	var is, was *corev1.NodeAffinity
	if now.Affinity != nil {
		is = now.Affinity.NodeAffinity
	}
	if old.Affinity != nil {
		was = old.Affinity.NodeAffinity
	}
	if equality.Semantic.DeepEqual(is, was) {
		return
	}
	c.nodeAffinityChanges(is, was)
	switch {
	case now.Affinity == nil:
		now.Affinity = &corev1.Affinity{NodeAffinity: was}
	case old.Affinity == nil && now.Affinity.PodAffinity == nil && now.Affinity.PodAntiAffinity == nil:
		now.Affinity = nil
	default:
		now.Affinity.NodeAffinity = was
	}
}

func (c *checker) nodeAffinityChanges(now, old *corev1.NodeAffinity) {
	if old == nil || old.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return
	}
	was := old.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	var is []corev1.NodeSelectorTerm
	if now != nil && now.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		is = now.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	const child = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
	if len(was) > 0 && len(was) != len(is) {
		c.Invalid(child, is, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")
		return
	}
	c.In(child)
	for i := range was {
		if !onlyAdds(&is[i], &was[i]) {
			c.Index(i)
			c.Invalid("", is[i], "only additions are allowed (no mutations or deletions)")
			c.Out()
		}
	}
	c.Out()
}

// onlyAdds reports whether now has the requirements of old first. An empty term matches nothing and has to stay empty.
func onlyAdds(now, old *corev1.NodeSelectorTerm) bool {
	if len(old.MatchExpressions)+len(old.MatchFields) == 0 {
		return len(now.MatchExpressions)+len(now.MatchFields) == 0
	}
	starts := func(now, old []corev1.NodeSelectorRequirement) bool {
		return len(now) >= len(old) && (len(old) == 0 || equality.Semantic.DeepEqual(now[:len(old)], old))
	}
	return starts(now.MatchExpressions, old.MatchExpressions) && starts(now.MatchFields, old.MatchFields)
}

// prepareEphemeral keeps everything but the ephemeral containers.
func prepareEphemeral(p, old *corev1.Pod) {
	added := p.Spec.EphemeralContainers
	keepRest(p, old)
	p.Spec.EphemeralContainers = added
	podspec.DropDisabled(&p.Spec, &old.Spec, gates.On{})
	bumpGeneration(p, old)
}

// validateEphemeralUpdate lets ephemeral containers be added and nothing else.
func validateEphemeralUpdate(pod, old *corev1.Pod) field.ErrorList {
	if _, ok := old.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods do not support ephemeral containers")}
	}
	checker := newChecker(pod)
	checker.Pod(pod)
	checker.In("spec")
	for i := range old.Spec.EphemeralContainers {
		was := &old.Spec.EphemeralContainers[i]
		j := slices.IndexFunc(pod.Spec.EphemeralContainers, func(ec corev1.EphemeralContainer) bool {
			return ec.Name == was.Name
		})
		if j < 0 {
			checker.Forbidden("ephemeralContainers",
				fmt.Sprintf("existing ephemeral containers %q may not be removed\n",
					was.Name))
		} else if is := pod.Spec.EphemeralContainers[j]; !equality.Semantic.DeepEqual(*was, is) {
			checker.Forbidden("ephemeralContainers",
				fmt.Sprintf("existing ephemeral containers %q may not be changed\n%v",
					was.Name, cmp.Diff(*was, is)))
		}
	}
	checker.Out()
	return checker.Errors()
}
