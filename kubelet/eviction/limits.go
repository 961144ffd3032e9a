// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"fmt"
	"iter"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"keelson/kubelet/podinfo"
)

// HasLimits reports whether the pod has a limit on its local storage. Without pressure, only such pods are measured.
func HasLimits(p *corev1.Pod) bool {
	for i := range p.Spec.Volumes {
		if e := p.Spec.Volumes[i].EmptyDir; e != nil && e.SizeLimit != nil && e.SizeLimit.Sign() > 0 {
			return true
		}
	}
	return HasStorageLimit(p)
}

// HasStorageLimit reports whether a container of the pod has an ephemeral-storage limit, for which writable layers and
// logs count too.
func HasStorageLimit(p *corev1.Pod) bool {
	_, ok := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})[corev1.ResourceEphemeralStorage]
	return ok
}

// The signals of pods that exceed a limit of their own, as in the metric kubelet_evictions.
const (
	emptyDirLimit  Signal = "emptydirfs.limit"
	podLimit       Signal = "ephemeralpodfs.limit"
	containerLimit Signal = "ephemeralcontainerfs.limit"
)

// OverLimit returns the limit that the pod exceeds and a message about it; empty: none. split: images and writable
// layers have a file system of their own, so that container limits do not count writable layers.
func OverLimit(pod *corev1.Pod, usage Usage, split bool) (signal Signal, message string) {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		used, known := usage.Volumes[v.Name]
		if v.EmptyDir == nil || v.EmptyDir.SizeLimit == nil || v.EmptyDir.SizeLimit.Sign() <= 0 || !known {
			continue
		}
		if exceeds(used.Bytes, *v.EmptyDir.SizeLimit) {
			return emptyDirLimit, fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name,
				v.EmptyDir.SizeLimit.String())
		}
	}
	if limit, ok := resourcehelper.PodLimits(pod,
		resourcehelper.PodResourcesOptions{})[corev1.ResourceEphemeralStorage]; ok {
		if exceeds(usage.total(pod), limit) {
			return podLimit, fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ",
				limit.String())
		}
	}
	for container := range longRunning(pod) {
		limit, ok := container.Resources.Limits[corev1.ResourceEphemeralStorage]
		if !ok || limit.IsZero() {
			continue
		}
		for _, cu := range usage.Containers {
			var used Disk
			if cu.Logs != nil {
				used = used.plus(*cu.Logs)
			}
			if cu.Rootfs != nil && !split {
				used = used.plus(*cu.Rootfs)
			}
			if cu.Name == container.Name && exceeds(used.Bytes, limit) {
				return containerLimit, fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ",
					container.Name,
					limit.String())
			}
		}
	}
	return "", ""
}

// longRunning are the containers and sidecars of a pod.
func longRunning(pod *corev1.Pod) iter.Seq[*corev1.Container] {
	return func(yield func(*corev1.Container) bool) {
		for i := range pod.Spec.Containers {
			if !yield(&pod.Spec.Containers[i]) {
				return
			}
		}
		for i := range pod.Spec.InitContainers {
			if podinfo.Sidecar(&pod.Spec.InitContainers[i]) && !yield(&pod.Spec.InitContainers[i]) {
				return
			}
		}
	}
}

func exceeds(used int64, limit resource.Quantity) bool {
	return resource.NewQuantity(used, resource.BinarySI).Cmp(limit) > 0
}

// total returns the pod's usage of local storage in bytes.
func (u Usage) total(pod *corev1.Pod) int64 {
	var sum Disk
	for _, c := range u.Containers {
		for _, d := range []*Disk{c.Rootfs, c.Logs} {
			if d != nil {
				sum = sum.plus(*d)
			}
		}
	}
	for i := range pod.Spec.Volumes {
		if LocalEphemeral(&pod.Spec.Volumes[i]) {
			sum = sum.plus(u.Volumes[pod.Spec.Volumes[i].Name])
		}
	}
	return sum.Bytes
}
