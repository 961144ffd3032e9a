// SPDX-License-Identifier: Apache-2.0

package pod

import (
	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/podinfo"
	"keelson/kubelet/runtimestate"
	"keelson/kubelet/translate"
)

// resizable reports whether a running container's cgroup differs from what its specification now asks for.
func (in *Input) resizable(c *corev1.Container, cur *runtimestate.Container) bool {
	applied, ok := in.Resized[cur.ID]
	if !ok {
		applied = cur.Annotations[runtimestate.AnnotationResources]
	}
	return applied != "" && applied != podinfo.ResourcesHash(in.Pod, c)
}

// Refusal is why a pod is not resized, as its condition PodResizePending says it.
type Refusal struct{ Reason, Message string }

// wantsResize reports whether the pod as a whole or a running container has other resources than it should.
func (in *Input) wantsResize() bool {
	return in.containerWantsResize() || in.podWantsResize()
}

// podWantsResize reports whether a pod with resources of its own has others than it should.
func (in *Input) podWantsResize() bool {
	return in.Observed.Current() != nil && podinfo.HasOwnResources(in.Pod) &&
		(in.Limits == nil || *in.Limits != translate.PodLimits(in.Pod))
}

// resizePod gives the pod's cgroup its new limits, when the containers have theirs: they may have had more before.
func (d *decision) resizePod() {
	if d.Refused == nil && !d.containerWantsResize() && d.podWantsResize() {
		d.do(Action{Op: OpResizePod})
	}
}

func (in *Input) containerWantsResize() bool {
	for c := range podinfo.All(in.Pod) {
		if cur := in.Observed.Latest(c.Name); cur.Running() && in.resizable(c, cur) {
			return true
		}
	}
	return false
}

// mustRestart reports whether what changes of a container's resources has the policy RestartContainer.
func (in *Input) mustRestart(c *corev1.Container, cur *runtimestate.Container) bool {
	want := translate.Resources(in.Pod, c, translate.Machine{})
	have := cur.Resources
	for _, p := range c.ResizePolicy {
		if p.RestartPolicy != corev1.RestartContainer {
			continue
		}
		switch {
		case have == nil:
			return true
		case p.ResourceName == corev1.ResourceMemory && want.GetMemoryLimitInBytes() != have.GetMemoryLimitInBytes():
			return true
		case p.ResourceName == corev1.ResourceCPU && (want.GetCpuShares() != have.GetCpuShares() ||
			want.GetCpuQuota() != have.GetCpuQuota()):
			return true
		}
	}
	return false
}
