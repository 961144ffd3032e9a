// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	podkind "keelson/api/core/pod"
	"keelson/kubelet/pod/decide"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/probe"
	"keelson/kubelet/runtimestate"
	"keelson/kubelet/status"
	"keelson/kubelet/translate"
)

// recall takes over what an earlier run of the kubelet knew of the running containers: their status in the API holds
// until something new is known. A static pod's status is that of its mirror, which arrives later.
func (l *loop) recall(v view) {
	if l.s.recalled || l.static && v.mirror == nil {
		return
	}
	l.s.recalled = true
	l.s.resizes.recall(v.pod)
	for container := range podinfo.All(v.pod) {
		cur := l.observed.Load().Latest(container.Name)
		was := decide.StatusOf(&v.pod.Status, container.Name)
		if !cur.Running() || was == nil || !strings.HasSuffix(was.ContainerID, "://"+cur.ID) {
			continue
		}
		if was.Started != nil && *was.Started {
			l.env.Probes.Recall(l.uid, probe.Key{ContainerID: cur.ID, Kind: probe.Startup})
		}
		if was.Ready {
			l.env.Probes.Recall(l.uid, probe.Key{ContainerID: cur.ID, Kind: probe.Readiness})
		}
		if resizedBefore(v.pod, container, cur, was) {
			l.s.containers.run(cur.ID).resized = podinfo.ResourcesHash(v.pod, container)
		}
	}
	if l.s.resizes.limits == nil && wholeResizedBefore(v.pod) {
		limits := translate.PodLimits(v.pod)
		l.s.resizes.limits = &limits
	}
}

// resizedBefore reports whether a running container has the resources of its specification already: they are admitted,
// and its cgroup has them.
func resizedBefore(
	pod *corev1.Pod, container *corev1.Container, cur *runtimestate.Container, was *corev1.ContainerStatus,
) bool {
	have := cur.Resources
	if have == nil || !equality.Semantic.DeepEqual(was.AllocatedResources, container.Resources.Requests) ||
		podkind.Condition(pod, corev1.PodResizePending) != nil {
		return false
	}
	want := translate.Resources(pod, container, translate.Machine{})
	return want.GetMemoryLimitInBytes() == have.GetMemoryLimitInBytes() && want.GetCpuQuota() == have.GetCpuQuota() &&
		want.GetCpuShares() == have.GetCpuShares()
}

// wholeResizedBefore reports whether the status of a pod with resources of its own says that the pod has them.
func wholeResizedBefore(pod *corev1.Pod) bool {
	was := pod.Status.Resources
	return podinfo.HasOwnResources(pod) && was != nil && podkind.Condition(pod, corev1.PodResizePending) == nil &&
		equality.Semantic.DeepEqual(was.Limits, pod.Spec.Resources.Limits) &&
		equality.Semantic.DeepEqual(was.Requests, status.PodRequests(pod))
}

// recallBackOff takes over the restart back-off of each container, which its newest run was created with.
func (l *loop) recallBackOff() {
	seen := l.observed.Load()
	for i := range seen.Containers {
		c := &seen.Containers[i]
		if seen.Latest(c.Name) != c {
			continue
		}
		delay, err := time.ParseDuration(c.Annotations[runtimestate.AnnotationBackOff])
		if err == nil && delay > 0 {
			l.s.containers.name(c.Name).crash = decide.Crash{Delay: min(delay, decide.CrashMax), Updated: c.Created}
		}
	}
}
