// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	podkind "keelson/api/core/pod"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/probe"
	"keelson/kubelet/runtimestate"
	"keelson/kubelet/status"
	"keelson/kubelet/translate"
)

// recall takes over what an earlier run of the kubelet knew of the running containers: their status in the API holds
// until something new is known. A static pod's status is that of its mirror, which arrives later.
func (w *Worker) recall(v view) {
	if w.s.recalled || w.static && v.mirror == nil {
		return
	}
	w.s.recalled = true
	for container := range podinfo.All(v.pod) {
		cur := w.Observed().Latest(container.Name)
		was := statusOf(&v.pod.Status, container.Name)
		if !cur.Running() || was == nil || !strings.HasSuffix(was.ContainerID, "://"+cur.ID) {
			continue
		}
		if was.Started != nil && *was.Started {
			w.env.Probes.Recall(w.uid, probe.Key{ContainerID: cur.ID, Kind: probe.Startup})
		}
		if was.Ready {
			w.env.Probes.Recall(w.uid, probe.Key{ContainerID: cur.ID, Kind: probe.Readiness})
		}
		if resizedBefore(v.pod, container, cur, was) {
			w.s.containers.run(cur.ID).resized = podinfo.ResourcesHash(v.pod, container)
		}
	}
	if w.s.resizes.limits == nil && wholeResizedBefore(v.pod) {
		limits := translate.PodLimits(v.pod)
		w.s.resizes.limits = &limits
	}
}

// statusOf returns the status of a container of any kind; nil: there is none.
func statusOf(status *corev1.PodStatus, name string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{
		status.ContainerStatuses, status.InitContainerStatuses, status.EphemeralContainerStatuses,
	} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
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
	want := translate.Resources(pod, container, 0)
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
func (w *Worker) recallBackOff() {
	seen := w.Observed()
	for i := range seen.Containers {
		c := &seen.Containers[i]
		if seen.Latest(c.Name) != c {
			continue
		}
		delay, err := time.ParseDuration(c.Annotations[runtimestate.AnnotationBackOff])
		if err == nil && delay > 0 {
			w.s.containers.name(c.Name).crash = Crash{Delay: min(delay, crashMax), Updated: c.Created}
		}
	}
}

// stopping is how far the stop of a container has come. It is kept in the pod's directory: after a restart of the
// kubelet neither the pre-stop hook nor the grace period begins again.
type stopping struct {
	Began  time.Time `json:"began"`            // when the grace period began
	Grace  int64     `json:"grace,omitempty"`  // seconds; 0: kept by an earlier version
	Hooked bool      `json:"hooked,omitempty"` // the pre-stop hook has ended; in memory: it has begun
}

// left returns the rest of a grace period in seconds at a time.
func (s stopping) left(grace int64, now time.Time) int64 {
	gone := max(int64(now.Sub(s.Began)/time.Second), 0)
	return max(grace-gone, min(grace, minGrace))
}

// stopFile is the file of a container's stopping; empty: its id is no file name.
func (w *Worker) stopFile(id string) string {
	if id == "" || filepath.Base(id) != id || strings.HasPrefix(id, ".") {
		return ""
	}
	return filepath.Join(w.env.Volumes.PodDir(w.uid), "stops", id)
}

// recallStop returns what an earlier run of the kubelet kept of a container's stop; false: nothing.
func (w *Worker) recallStop(id string) (stopping, bool) {
	var s stopping
	file := w.stopFile(id)
	if file == "" {
		return s, false
	}
	b, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(b, &s) != nil {
		return stopping{}, false // there was none, or it was being written
	}
	return s, true
}

// keepStop writes a container's stopping. Without it the stop begins again after a restart.
func (w *Worker) keepStop(id string, s stopping) {
	file := w.stopFile(id)
	if file == "" {
		return
	}
	b, err := json.Marshal(s)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o750)
	}
	if err == nil {
		err = os.WriteFile(file, b, 0o600)
	}
	if err != nil {
		w.env.Log.Warn("keep how far a container's stop has come", "container", id, "err", err)
	}
}

// forgetStop removes a container's stopping.
func (w *Worker) forgetStop(id string) {
	if file := w.stopFile(id); file != "" {
		_ = os.Remove(file) // the pod's directory is removed at last
	}
}
