// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	schedcorev1 "k8s.io/component-helpers/scheduling/corev1"
)

// Disk is the usage of a directory tree.
type Disk struct{ Bytes, Inodes int64 }

// ContainerUsage is the usage of one container. nil: not measured.
type ContainerUsage struct {
	Name   string
	Memory *int64 // working set, bytes
	Rootfs *Disk  // writable layer
	Logs   *Disk
}

// Usage is the usage of a pod. nil or missing: not measured.
type Usage struct {
	Memory     *int64
	Processes  *int64
	Containers []ContainerUsage
	Volumes    map[string]Disk // local ones: emptyDir and the like
}

// Usages has the usage of pods by UID.
type Usages map[string]Usage

// Rank sorts pods for eviction: first pods without a measured usage, then pods whose usage exceeds their request, then
// by lower priority, then by the usage above the request. For process ids only priority and the number of processes
// count. split: images and writable layers have a file system of their own.
func Rank(signal Signal, split bool, pods []*corev1.Pod, u Usages) {
	name := signals[signal].resource
	measure := func(p *corev1.Pod) (used, request int64, known bool) {
		of, ok := u[string(p.UID)]
		if !ok {
			return 0, 0, false
		}
		used, known = of.usedFor(signal, split, p)
		requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
		if q, asked := requests[name]; asked {
			request = q.Value()
		}
		return used, request, known
	}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		usedA, askedA, knownA := measure(a)
		usedB, askedB, knownB := measure(b)
		byPriority := cmp.Compare(schedcorev1.PodPriority(a), schedcorev1.PodPriority(b))
		if signal == PIDAvailable {
			return cmp.Or(byPriority, trueFirst(!knownA, !knownB), cmp.Compare(usedB, usedA))
		}
		if !knownA || !knownB {
			return cmp.Or(trueFirst(!knownA, !knownB), byPriority)
		}
		return cmp.Or(trueFirst(usedA > askedA, usedB > askedB), byPriority, cmp.Compare(usedB-askedB, usedA-askedA))
	})
}

// trueFirst compares booleans: true before false.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// usedFor returns the pod's usage of the signal's resource.
func (u Usage) usedFor(signal Signal, split bool, pod *corev1.Pod) (int64, bool) {
	switch signal {
	case MemoryAvailable:
		return deref(u.Memory)
	case PIDAvailable:
		return deref(u.Processes)
	case NodeFsAvailable, NodeFsInodesFree, ImageFsAvailable, ImageFsInodesFree:
	}
	image := signal == ImageFsAvailable || signal == ImageFsInodesFree
	var sum Disk
	for _, c := range u.Containers {
		if c.Rootfs != nil && (!split || image) {
			sum = sum.plus(*c.Rootfs)
		}
		if c.Logs != nil && (!split || !image) {
			sum = sum.plus(*c.Logs)
		}
	}
	if !split || !image {
		for i := range pod.Spec.Volumes {
			if LocalEphemeral(&pod.Spec.Volumes[i]) {
				sum = sum.plus(u.Volumes[pod.Spec.Volumes[i].Name])
			}
		}
	}
	if signals[signal].resource == inodes {
		return sum.Inodes, true
	}
	return sum.Bytes, true
}

func deref(n *int64) (int64, bool) {
	if n == nil {
		return 0, false
	}
	return *n, true
}

func (d Disk) plus(o Disk) Disk { return Disk{Bytes: d.Bytes + o.Bytes, Inodes: d.Inodes + o.Inodes} }

// LocalEphemeral reports whether a volume uses the node's local storage for the lifetime of its pod.
func LocalEphemeral(v *corev1.Volume) bool {
	return v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumDefault || v.ConfigMap != nil
}

// Annotations of events about evictions.
const (
	keyContainers = "offending_containers"
	keyUsage      = "offending_containers_usage"
	keyStarved    = "starved_resource"
	keyPod        = "offending_pod"
	keyPodUsage   = "offending_pod_usage"
)

// Message returns the eviction message and the event's annotations.
func Message(t Threshold, met []Threshold, f Observations, pod *corev1.Pod, u Usages) (string, map[string]string) {
	name := signals[t.Signal].resource
	var out strings.Builder
	fmt.Fprintf(&out, "The node was low on resource: %v. ", name)
	for _, s := range met {
		if seen, ok := f[s.Signal]; ok && signals[s.Signal].resource == name {
			fmt.Fprintf(&out, "Threshold quantity: %v, available: %v. ", s.Value.Resolve(seen.Capacity), seen.Available)
			break
		}
	}
	notes := map[string]string{}
	of, ok := u[string(pod.UID)]
	if !ok {
		return out.String(), notes
	}
	if used, known := deref(of.Memory); known && name == corev1.ResourceMemory && pod.Spec.Resources != nil {
		if q, asked := pod.Spec.Resources.Requests[name]; asked {
			usage := resource.NewQuantity(used, resource.BinarySI).String()
			fmt.Fprintf(&out, "Pod %s was using %s, request is %s, has larger consumption of %v. ", pod.Name, usage,
				q.String(), name)
			notes[keyPod] = pod.Name
			notes[keyPodUsage] = usage
		}
	}
	var names, usages []string
	for _, cu := range of.Containers {
		i := 0
		container := (*corev1.Container)(nil)
		for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			if i = slices.IndexFunc(list, func(c corev1.Container) bool { return c.Name == cu.Name }); i >= 0 {
				container = &list[i]
				break
			}
		}
		used, known := cu.used(name)
		if container == nil || !known {
			continue
		}
		usage := resource.NewQuantity(used, resource.BinarySI)
		request := container.Resources.Requests[name]
		if usage.Cmp(request) > 0 {
			fmt.Fprintf(&out, "Container %s was using %s, request is %s, has larger consumption of %v. ",
				container.Name, usage,
				request.String(), name)
			names = append(names, container.Name)
			usages = append(usages, usage.String())
		}
	}
	notes[keyContainers] = strings.Join(names, ",")
	notes[keyUsage] = strings.Join(usages, ",")
	notes[keyStarved] = string(name)
	return out.String(), notes
}

// used returns the container's usage of a resource, for messages.
func (c ContainerUsage) used(name corev1.ResourceName) (int64, bool) {
	switch name {
	case corev1.ResourceMemory:
		return deref(c.Memory)
	case corev1.ResourceEphemeralStorage:
		if c.Rootfs != nil && c.Logs != nil {
			return c.Rootfs.Bytes + c.Logs.Bytes, true
		}
	}
	return 0, false
}
