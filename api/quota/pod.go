// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/api/resources"
)

var podMeter = &Meter{
	Tracks:   podTracks,
	Usage:    podUsage,
	InScope:  podInScope,
	Missing:  podMissing,
	OnUpdate: true,
}

const countPods corev1.ResourceName = "count/pods"

// compute maps what containers ask for to the names that quotas limit it by.
var compute = []struct {
	name             corev1.ResourceName
	requests, limits corev1.ResourceName
}{
	{corev1.ResourceCPU, corev1.ResourceRequestsCPU, corev1.ResourceLimitsCPU},
	{corev1.ResourceMemory, corev1.ResourceRequestsMemory, corev1.ResourceLimitsMemory},
	{corev1.ResourceEphemeralStorage, corev1.ResourceRequestsEphemeralStorage, corev1.ResourceLimitsEphemeralStorage},
}

func podTracks(name corev1.ResourceName) bool {
	if name == countPods || name == corev1.ResourcePods {
		return true
	}
	for _, c := range compute {
		if name == c.name || name == c.requests || name == c.limits {
			return true
		}
	}
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) ||
		strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix) || limitsExtended(name)
}

// limitsExtended reports whether a name limits an extended resource, also one that a DeviceClass serves.
func limitsExtended(name corev1.ResourceName) bool {
	rest, ok := strings.CutPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
	return ok && (!resources.IsNative(name) || resources.IsDeviceClass(corev1.ResourceName(rest)))
}

// podUsage: count/pods holds every stored pod; all else holds pods that are neither finished nor past their time to
// end.
func podUsage(obj runtime.Object, now time.Time) corev1.ResourceList {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	if !charged(pod, now) {
		return corev1.ResourceList{countPods: one()}
	}
	out := amounts(resources.Requests(pod), resources.Limits(pod))
	out[countPods] = one()
	out[corev1.ResourcePods] = one()
	return out
}

// charged reports whether a pod still counts for more than being there.
func charged(pod *corev1.Pod, now time.Time) bool {
	if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil {
		end := pod.DeletionTimestamp.Add(time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second)
		if now.After(end) {
			return false
		}
	}
	return pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded
}

// Expires is when a pod that is being deleted stops being charged although it may still be there; the zero time: never
// by itself.
func Expires(pod *corev1.Pod) time.Time {
	if pod.DeletionTimestamp == nil || pod.DeletionGracePeriodSeconds == nil {
		return time.Time{}
	}
	return pod.DeletionTimestamp.Add(time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second)
}

// amounts names requests and limits as quotas do.
func amounts(requests, limits corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, c := range compute {
		if v, ok := requests[c.name]; ok {
			out[c.name] = v.DeepCopy()
			out[c.requests] = v.DeepCopy()
		}
		if v, ok := limits[c.name]; ok {
			out[c.limits] = v.DeepCopy()
		}
	}
	for name, v := range requests {
		huge := resources.IsHugePages(name)
		if huge {
			out[name] = v.DeepCopy()
		}
		if huge || resources.IsExtended(name) || resources.IsDeviceClass(name) {
			out[corev1.DefaultResourceRequestsPrefix+name] = v.DeepCopy()
		}
	}
	return out
}

// explicit are the resources that every container must name once a quota limits them. It is so by history, and stays
// so.
var explicit = []corev1.ResourceName{
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory,
}

func podMissing(tracked []corev1.ResourceName, obj runtime.Object) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("expect a pod, got %T", obj)
	}
	lacking := map[corev1.ResourceName][]string{}
	var names []corev1.ResourceName
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			has := amounts(list[i].Resources.Requests, list[i].Resources.Limits)
			for _, n := range tracked {
				if _, ok := has[n]; ok || !slices.Contains(explicit, n) {
					continue
				}
				if lacking[n] == nil {
					names = append(names, n)
				}
				lacking[n] = append(lacking[n], list[i].Name)
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	parts := make([]string, len(names))
	for i, n := range names {
		slices.Sort(lacking[n])
		parts[i] = fmt.Sprintf("%s for: %s", n, strings.Join(lacking[n], ","))
	}
	return errors.New("must specify " + strings.Join(parts, "; "))
}

func podInScope(sel corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (bool, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return false, fmt.Errorf("expect a pod, got %T", obj)
	}
	terminating := pod.Spec.ActiveDeadlineSeconds != nil && *pod.Spec.ActiveDeadlineSeconds >= 0
	switch sel.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return terminating, nil
	case corev1.ResourceQuotaScopeNotTerminating:
		return !terminating, nil
	case corev1.ResourceQuotaScopeBestEffort:
		return resources.QOS(pod) == corev1.PodQOSBestEffort, nil
	case corev1.ResourceQuotaScopeNotBestEffort:
		return resources.QOS(pod) != corev1.PodQOSBestEffort, nil
	case corev1.ResourceQuotaScopePriorityClass:
		return selects(sel, pod.Spec.PriorityClassName)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return crossesNamespaces(pod.Spec.Affinity), nil
	case corev1.ResourceQuotaScopeVolumeAttributesClass:
	}
	return false, nil
}

// crossesNamespaces reports whether a pod's affinity looks at pods of other namespaces.
func crossesNamespaces(affinity *corev1.Affinity) bool {
	if affinity == nil {
		return false
	}
	crosses := func(t *corev1.PodAffinityTerm) bool { return len(t.Namespaces) > 0 || t.NamespaceSelector != nil }
	some := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) bool {
		return slices.ContainsFunc(required, func(t corev1.PodAffinityTerm) bool { return crosses(&t) }) ||
			slices.ContainsFunc(preferred, func(t corev1.WeightedPodAffinityTerm) bool {
				return crosses(&t.PodAffinityTerm)
			})
	}
	if p := affinity.PodAffinity; p != nil && some(p.RequiredDuringSchedulingIgnoredDuringExecution,
		p.PreferredDuringSchedulingIgnoredDuringExecution) {
		return true
	}
	p := affinity.PodAntiAffinity
	return p != nil && some(p.RequiredDuringSchedulingIgnoredDuringExecution,
		p.PreferredDuringSchedulingIgnoredDuringExecution)
}
