// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"strings"

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

// WantsResize reports whether the pod as a whole or a running container has other resources than it should.
func (in *Input) WantsResize() bool {
	return in.containerWantsResize() || in.PodWantsResize()
}

// PodWantsResize reports whether a pod with resources of its own has others than it should.
func (in *Input) PodWantsResize() bool {
	return in.Observed.Current() != nil && podinfo.HasOwnResources(in.Pod) &&
		(in.Limits == nil || *in.Limits != translate.PodLimits(in.Pod))
}

// resizePod gives the pod's cgroup its new limits, when the containers have theirs: they may have had more before.
func (d *decision) resizePod() {
	if d.Refused == nil && !d.containerWantsResize() && d.PodWantsResize() {
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

// ResizeError is why a resize could not be done when it was last tried; empty: it was not, or none was tried.
func (in *Input) ResizeError() string {
	for key, failed := range in.Failed {
		if op, _, _ := strings.Cut(key, "/"); op == string(OpResize) || op == string(OpResizePod) {
			return failed.Message
		}
	}
	return ""
}

// Restarting reports whether a container that should run does not.
func (in *Input) Restarting() bool {
	for c, kind := range podinfo.All(in.Pod) {
		if kind != podinfo.Main && kind != podinfo.SideCar {
			continue
		}
		cur := in.Observed.Latest(c.Name)
		if !cur.Running() && (!cur.Exited() || podinfo.RestartAfter(in.Pod, c, kind, cur.ExitCode)) {
			return true
		}
	}
	return false
}
