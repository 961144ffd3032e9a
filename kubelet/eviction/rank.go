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

// Disk is what a tree takes of a file system.
type Disk struct{ Bytes, Inodes int64 }

// ContainerUsage is what one container uses. What was not measured is nil.
type ContainerUsage struct {
	Name   string
	Memory *int64 // working set, bytes
	Rootfs *Disk  // writable layer
	Logs   *Disk
}

// Usage is what a pod uses. What was not measured is nil, or missing.
type Usage struct {
	Memory     *int64
	Processes  *int64
	Containers []ContainerUsage
	Volumes    map[string]Disk // local ones: emptyDir and the like
}

// Usages are by uid of the pod.
type Usages map[string]Usage

// Rank sorts pods for a starved signal: the first is ended first. A pod of which nothing is known comes before those that are known;
// then one that uses more than it requests, one of lower priority, and one that uses more beyond its request. For process ids only
// priority and number count. split tells that images and writable layers have a file system of their own.
func Rank(s Signal, split bool, pods []*corev1.Pod, u Usages) {
	name := signals[s].resource
	measure := func(p *corev1.Pod) (used, request int64, known bool) {
		of, ok := u[string(p.UID)]
		if !ok {
			return 0, 0, false
		}
		used, known = of.of(s, split, p)
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
		if s == PIDAvailable {
			return cmp.Or(byPriority, first(!knownA, !knownB), cmp.Compare(usedB, usedA))
		}
		if !knownA || !knownB {
			return cmp.Or(first(!knownA, !knownB), byPriority)
		}
		return cmp.Or(first(usedA > askedA, usedB > askedB), byPriority, cmp.Compare(usedB-askedB, usedA-askedA))
	})
}

// first puts true before false.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// of is how much a pod uses of what the signal is about.
func (u Usage) of(s Signal, split bool, p *corev1.Pod) (int64, bool) {
	switch s {
	case MemoryAvailable:
		return deref(u.Memory)
	case PIDAvailable:
		return deref(u.Processes)
	case NodeFsAvailable, NodeFsInodesFree, ImageFsAvailable, ImageFsInodesFree:
	}
	image := s == ImageFsAvailable || s == ImageFsInodesFree
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
		for i := range p.Spec.Volumes {
			if LocalEphemeral(&p.Spec.Volumes[i]) {
				sum = sum.plus(u.Volumes[p.Spec.Volumes[i].Name])
			}
		}
	}
	if signals[s].resource == inodes {
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

// LocalEphemeral reports whether a volume takes space of the node's disk for as long as its pod lives.
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

// Message says why a starved node ended the pod, and gives the event's annotations.
func Message(t Threshold, starved []Threshold, f Figures, p *corev1.Pod, u Usages) (string, map[string]string) {
	name := signals[t.Signal].resource
	var b strings.Builder
	fmt.Fprintf(&b, "The node was low on resource: %v. ", name)
	for _, s := range starved {
		if seen, ok := f[s.Signal]; ok && signals[s.Signal].resource == name {
			fmt.Fprintf(&b, "Threshold quantity: %v, available: %v. ", s.Value.Of(seen.Capacity), seen.Available)
			break
		}
	}
	notes := map[string]string{}
	of, ok := u[string(p.UID)]
	if !ok {
		return b.String(), notes
	}
	if used, known := deref(of.Memory); known && name == corev1.ResourceMemory && p.Spec.Resources != nil {
		if q, asked := p.Spec.Resources.Requests[name]; asked {
			usage := resource.NewQuantity(used, resource.BinarySI).String()
			fmt.Fprintf(&b, "Pod %s was using %s, request is %s, has larger consumption of %v. ", p.Name, usage, q.String(), name)
			notes[keyPod], notes[keyPodUsage] = p.Name, usage
		}
	}
	var names, usages []string
	for _, cu := range of.Containers {
		i, c := 0, (*corev1.Container)(nil)
		for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
			if i = slices.IndexFunc(list, func(c corev1.Container) bool { return c.Name == cu.Name }); i >= 0 {
				c = &list[i]
				break
			}
		}
		used, known := cu.of(name)
		if c == nil || !known {
			continue
		}
		usage, request := resource.NewQuantity(used, resource.BinarySI), c.Resources.Requests[name]
		if usage.Cmp(request) > 0 {
			fmt.Fprintf(&b, "Container %s was using %s, request is %s, has larger consumption of %v. ", c.Name, usage, request.String(), name)
			names, usages = append(names, c.Name), append(usages, usage.String())
		}
	}
	notes[keyContainers], notes[keyUsage], notes[keyStarved] = strings.Join(names, ","), strings.Join(usages, ","), string(name)
	return b.String(), notes
}

// of is what messages say a container uses of a resource.
func (c ContainerUsage) of(name corev1.ResourceName) (int64, bool) {
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
