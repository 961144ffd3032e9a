// SPDX-License-Identifier: Apache-2.0

package status

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helper "k8s.io/component-helpers/resource"

	"keelson/kubelet/podinfo"
	"keelson/kubelet/runtimestate"
)

// setResources sets the allocated resources and, while the container runs, the actual resources of its cgroup.
func (in Input) setResources(container *corev1.Container, cur *runtimestate.Container, cs *corev1.ContainerStatus) {
	cs.AllocatedResources = nil
	cs.Resources = nil
	if in.ResizePending != nil {
		_, k := podinfo.Find(in.Pod, container.Name)
		if prior := in.oldStatus(container.Name, k); prior != nil {
			cs.AllocatedResources = prior.AllocatedResources
			cs.Resources = prior.Resources
			return
		}
	}
	if len(container.Resources.Requests) > 0 {
		cs.AllocatedResources = container.Resources.Requests.DeepCopy()
	}
	if cur == nil || !cur.Running() {
		if len(container.Resources.Requests)+len(container.Resources.Limits) > 0 {
			cs.Resources = container.Resources.DeepCopy()
			cs.Resources.Claims = nil
		}
		return
	}
	res := container.Resources.DeepCopy()
	res.Claims = nil
	if r := cur.Resources; r != nil {
		if _, ok := res.Limits[corev1.ResourceMemory]; ok && r.GetMemoryLimitInBytes() > 0 {
			res.Limits[corev1.ResourceMemory] = *resource.NewQuantity(r.GetMemoryLimitInBytes(), resource.BinarySI)
		}
		if _, ok := res.Limits[corev1.ResourceCPU]; ok && r.GetCpuQuota() > 0 && r.GetCpuPeriod() > 0 {
			milli := r.GetCpuQuota() * 1000 / r.GetCpuPeriod()
			if want := res.Limits.Cpu().MilliValue(); want <= minMilliCPULimit && milli <= minMilliCPULimit {
				milli = want
			}
			res.Limits[corev1.ResourceCPU] = *resource.NewMilliQuantity(milli, resource.DecimalSI)
		}
	}
	cs.Resources = res
}

// setPodResources sets the resources of a pod that has some as a whole: those that it is admitted with, and those that
// its cgroup has, which follow when it was resized.
func (in Input) setPodResources(status *corev1.PodStatus) {
	if !podinfo.HasOwnResources(in.Pod) {
		status.AllocatedResources = nil
		status.Resources = nil
		return
	}
	if in.ResizePending != nil && status.Resources != nil {
		return
	}
	status.AllocatedResources = PodRequests(in.Pod)
	if in.PodResizing && status.Resources != nil {
		return
	}
	status.Resources = &corev1.ResourceRequirements{
		Requests: PodRequests(in.Pod),
		Limits:   in.Pod.Spec.Resources.Limits.DeepCopy(),
	}
}

// PodRequests returns the requests of the pod as a whole, for the resources that pods can request as a whole: its own
// requests, else the sum of its containers'. Overhead is not included.
func PodRequests(pod *corev1.Pod) corev1.ResourceList {
	requests := helper.PodRequests(pod, helper.PodResourcesOptions{ExcludeOverhead: true})
	maps.DeleteFunc(requests, func(name corev1.ResourceName, _ resource.Quantity) bool {
		return !helper.IsSupportedPodLevelResource(name)
	})
	return requests
}

// minMilliCPULimit is the minimum limit in the kernel, a quota of 1 ms: smaller limits have the same effect.
const minMilliCPULimit = 10

// setResizeConditions sets the conditions of a resize. Unlike the others, these conditions exist only while they are
// true.
func setResizeConditions(in Input, status *corev1.PodStatus) {
	put := func(t corev1.PodConditionType, reason *Reason) {
		i := slices.IndexFunc(status.Conditions, func(c corev1.PodCondition) bool { return c.Type == t })
		if reason == nil {
			if i >= 0 {
				status.Conditions = slices.Delete(status.Conditions, i, i+1)
			}
			return
		}
		podCondition := corev1.PodCondition{
			Type:               t,
			Status:             corev1.ConditionTrue,
			Reason:             reason.Reason,
			Message:            reason.Message,
			ObservedGeneration: in.Pod.Generation,
			LastTransitionTime: metav1.NewTime(in.Now.Truncate(1e9)),
		}
		if i < 0 {
			status.Conditions = append(status.Conditions, podCondition)
			return
		}
		if status.Conditions[i].Reason == podCondition.Reason {
			podCondition.LastTransitionTime = status.Conditions[i].LastTransitionTime
		}
		status.Conditions[i] = podCondition
	}
	put(corev1.PodResizePending, in.ResizePending)
	var progress *Reason
	if in.Resizing {
		progress = &Reason{}
		if in.ResizeError != "" {
			progress = &Reason{Reason: corev1.PodReasonError, Message: in.ResizeError}
		}
	}
	put(corev1.PodResizeInProgress, progress)
}
