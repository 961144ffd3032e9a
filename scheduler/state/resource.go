// SPDX-License-Identifier: Apache-2.0

package state

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"
)

// The requests that scores assume for a container without requests, so that many such pods do not pile up on one node.
const (
	DefaultMilliCPU = 100
	DefaultMemory   = 200 * 1024 * 1024
)

// maxAmount is the largest amount of any resource. A pod that requests it fits nowhere, because nodes are capped just
// below it. Sums of 8,000 such pods do not overflow.
const maxAmount = 1 << 50

// milli and units return q's amount, capped at maxAmount. A quantity may exceed an int64.
func milli(q *quantity.Quantity) int64 {
	if q.CmpInt64(maxAmount/1000) >= 0 {
		return maxAmount
	}
	return max(q.MilliValue(), 0)
}

func units(q *quantity.Quantity) int64 {
	if q.CmpInt64(maxAmount) >= 0 {
		return maxAmount
	}
	return max(q.Value(), 0)
}

// Resource is a vector of amounts: CPU in thousandths of a core, memory and ephemeral storage in bytes,
// pods as a count (allocatable only), and every other resource by name. Scalar may be nil.
type Resource struct {
	MilliCPU         int64
	Memory           int64
	EphemeralStorage int64
	Pods             int64
	Scalar           map[corev1.ResourceName]int64
}

// NewResource converts a resource list. It skips names that are not countable, such as "example".
func NewResource(list corev1.ResourceList) Resource {
	var r Resource
	for name, q := range list {
		switch name {
		case corev1.ResourceCPU:
			r.MilliCPU = milli(&q)
		case corev1.ResourceMemory:
			r.Memory = units(&q)
		case corev1.ResourceEphemeralStorage:
			r.EphemeralStorage = units(&q)
		case corev1.ResourcePods:
			r.Pods = units(&q)
		default:
			if countable(name) {
				if r.Scalar == nil {
					r.Scalar = map[corev1.ResourceName]int64{}
				}
				r.Scalar[name] = units(&q)
			}
		}
	}
	return r
}

// allocatable converts status.allocatable of a node, capped below maxAmount.
func allocatable(list corev1.ResourceList) Resource {
	r := NewResource(list)
	for _, n := range []*int64{&r.MilliCPU, &r.Memory, &r.EphemeralStorage} {
		*n = min(*n, maxAmount-1)
	}
	for name, n := range r.Scalar {
		r.Scalar[name] = min(n, maxAmount-1)
	}
	return r
}

// countable reports whether name is an extended resource, huge pages, an attachable volume count or a kubernetes.io
// resource.
func countable(name corev1.ResourceName) bool {
	return strings.Contains(string(name), "/") || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) ||
		strings.HasPrefix(string(name), corev1.ResourceAttachableVolumesPrefix)
}

// add adds sign times o. The map is copied first, because snapshots may share it.
func (r *Resource) add(o *Resource, sign int64) {
	r.MilliCPU += sign * o.MilliCPU
	r.Memory += sign * o.Memory
	r.EphemeralStorage += sign * o.EphemeralStorage
	if len(o.Scalar) == 0 {
		return
	}
	next := make(map[corev1.ResourceName]int64, len(r.Scalar)+len(o.Scalar))
	maps.Copy(next, r.Scalar)
	for name, n := range o.Scalar {
		next[name] += sign * n
	}
	r.Scalar = next
}

// Without returns a copy without the scalar resources that drop names.
func (r *Resource) Without(drop func(corev1.ResourceName) bool) *Resource {
	kept := *r
	kept.Scalar = maps.Clone(r.Scalar)
	maps.DeleteFunc(kept.Scalar, func(name corev1.ResourceName, _ int64) bool { return drop(name) })
	return &kept
}

// Get returns the amount of one resource.
func (r *Resource) Get(name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceCPU:
		return r.MilliCPU
	case corev1.ResourceMemory:
		return r.Memory
	case corev1.ResourceEphemeralStorage:
		return r.EphemeralStorage
	case corev1.ResourcePods:
		return r.Pods
	default:
		return r.Scalar[name]
	}
}

// requests returns a pod's requests, and its CPU and memory with the defaults above for containers without a request.
func requests(pod *corev1.Pod) (r Resource, cpu, mem int64) {
	if r, cpu, mem, ok := plainRequests(pod); ok {
		return r, cpu, mem
	}
	opts := resource.PodResourcesOptions{UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true}
	list := resource.PodRequests(pod, opts)
	r = NewResource(list)
	opts.NonMissingContainerRequests = missingDefaults(list, resource.IsPodLevelRequestsSet(pod))
	list = resource.PodRequests(pod, opts)
	return r, milli(list.Cpu()), units(list.Memory())
}

// missingDefaults returns the defaults that apply: none for a resource with a pod-level request.
func missingDefaults(list corev1.ResourceList, podLevel bool) corev1.ResourceList {
	out := corev1.ResourceList{}
	if _, given := list[corev1.ResourceCPU]; !podLevel || !given {
		out[corev1.ResourceCPU] = *defaultCPU
	}
	if _, given := list[corev1.ResourceMemory]; !podLevel || !given {
		out[corev1.ResourceMemory] = *defaultMemory
	}
	return out
}

// plainRequests is the fast path for pods with only containers that request CPU and memory, and without a resize.
func plainRequests(pod *corev1.Pod) (r Resource, cpu, mem int64, ok bool) {
	s := &pod.Spec
	if len(s.InitContainers) > 0 || s.Overhead != nil || s.Resources != nil || len(pod.Status.ContainerStatuses) > 0 {
		return r, 0, 0, false
	}
	for i := range s.Containers {
		requests := s.Containers[i].Resources.Requests
		for name := range requests {
			if name != corev1.ResourceCPU && name != corev1.ResourceMemory {
				return r, 0, 0, false
			}
		}
		c, hasCPU := requests[corev1.ResourceCPU]
		m, hasMem := requests[corev1.ResourceMemory]
		ofCPU := milli(&c)
		ofMem := units(&m)
		r.MilliCPU += ofCPU
		r.Memory += ofMem
		if !hasCPU {
			ofCPU = DefaultMilliCPU
		}
		if !hasMem {
			ofMem = DefaultMemory
		}
		cpu += ofCPU
		mem += ofMem
		if max(r.MilliCPU, r.Memory) >= maxAmount {
			return r, 0, 0, false
		}
	}
	return r, cpu, mem, true
}
