// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	podkind "keelson/api/core/pod"
	"keelson/kubelet/pod"
	"keelson/kubelet/pod/decide"
	"keelson/kubelet/podinfo"
)

// resizes are the resizes of the node's pods. admission.mu guards it.
type resizes struct {
	waiting map[string]time.Time // since when a resize waits for room, by the pod's uid
	counted map[string]int64     // the pod's generation whose resize is counted in the metrics, by uid
}

func newResizes() resizes {
	return resizes{waiting: map[string]time.Time{}, counted: map[string]int64{}}
}

// forget drops what is known of a pod that has gone.
func (r *resizes) forget(uid string) {
	delete(r.waiting, uid)
	delete(r.counted, uid)
}

// waitingResize is a pod that waits for room to be resized.
type waitingResize struct {
	pod   *corev1.Pod
	since time.Time
}

// beforeResize orders resizes that wait: by priority, then by class of service, then by time.
func beforeResize(a, b waitingResize) int {
	guaranteed := func(w waitingResize) int {
		if podinfo.QOS(w.pod) == corev1.PodQOSGuaranteed {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(priority(b.pod), priority(a.pod)), cmp.Compare(guaranteed(a), guaranteed(b)),
		a.since.Compare(b.since))
}

// Resize returns why a running pod cannot be resized now. Otherwise it reserves the new resources. If several
// pods request more, they get it in the order of resizes.
func (a *admission) Resize(p *corev1.Pod) *decide.Refusal {
	a.mu.Lock()
	defer a.mu.Unlock()
	uid := string(p.UID)
	first := a.countResizeLocked(p)
	asks := waitingResize{pod: p, since: time.Now()}
	since, waited := a.resizes.waiting[uid]
	if waited {
		asks.since = since
	}
	if asksForMore(a.admitted[uid], p) {
		a.resizeWaitingLocked(func(other waitingResize) bool {
			return other.pod.UID != p.UID && beforeResize(other, asks) < 0
		})
	}
	delete(a.resizes.waiting, uid)
	refusal := checkResize(p, a.node.Allocatable(), a.activePodsLocked(p))
	switch {
	case refusal == nil:
		a.admitted[uid] = p
		if waited {
			a.metrics.ResizeAccepted("periodic_retry")
		}
	case refusal.Reason == corev1.PodReasonDeferred:
		a.resizes.waiting[uid] = asks.since
	case first:
		a.metrics.ResizeInfeasible("insufficient_node_allocatable")
	}
	return refusal
}

// resizeWaitingLocked gives what is free to the pods that wait for it and that may, in their order, and wakes them.
func (a *admission) resizeWaitingLocked(may func(waitingResize) bool) {
	var waiting []waitingResize
	for uid, since := range a.resizes.waiting {
		worker := a.workers.find(uid)
		if worker == nil || worker.IsGone() {
			delete(a.resizes.waiting, uid)
			continue
		}
		p := worker.Pod()
		if podkind.TerminalPhase(p.Status.Phase) || !asksForMore(a.admitted[uid], p) {
			delete(a.resizes.waiting, uid) // it wants no more
			continue
		}
		if w := (waitingResize{p, since}); may(w) {
			waiting = append(waiting, w)
		}
	}
	slices.SortFunc(waiting, beforeResize)
	for _, w := range waiting {
		if checkResize(w.pod, a.node.Allocatable(), a.activePodsLocked(w.pod)) != nil {
			continue
		}
		uid := string(w.pod.UID)
		a.admitted[uid] = w.pod
		delete(a.resizes.waiting, uid)
		a.metrics.ResizeAccepted("pods_removed")
		a.workers.notify(uid, pod.Nothing)
	}
}

// countResizeLocked counts what a resize changes, when it is first asked for. It reports whether it is.
func (a *admission) countResizeLocked(p *corev1.Pod) bool {
	uid := string(p.UID)
	have := a.admitted[uid]
	if have == nil || a.resizes.counted[uid] == p.Generation {
		return false
	}
	a.resizes.counted[uid] = p.Generation
	for want := range podinfo.All(p) {
		had, _ := podinfo.Find(have, want.Name)
		if had != nil {
			a.metrics.ResizeRequested("requests", had.Resources.Requests, want.Resources.Requests)
			a.metrics.ResizeRequested("limits", had.Resources.Limits, want.Resources.Limits)
		}
	}
	return true
}

// asksForMore reports whether a pod requests more than it was given. A pod that was given nothing does.
func asksForMore(have, want *corev1.Pod) bool {
	if have == nil {
		return true
	}
	before := resourcehelper.PodRequests(have, resourcehelper.PodResourcesOptions{})
	now := resourcehelper.PodRequests(want, resourcehelper.PodResourcesOptions{})
	return now.Cpu().Cmp(*before.Cpu()) > 0 || now.Memory().Cmp(*before.Memory()) > 0
}

// checkResize returns why a resize is not possible: never (Infeasible), or as long as the other pods use the resources
// (Deferred).
func checkResize(p *corev1.Pod, allocatable corev1.ResourceList, others []*corev1.Pod) *decide.Refusal {
	want := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		q := want[name]
		have := allocatable[name]
		if asks, all := amount(name, &q), amount(name, &have); asks > all {
			return &decide.Refusal{
				Reason: corev1.PodReasonInfeasible,
				Message: fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d", name, asks,
					all),
			}
		}
	}
	if _, msg := checkFit(p, nil, allocatable, others); msg != "" {
		return &decide.Refusal{Reason: corev1.PodReasonDeferred, Message: strings.TrimPrefix(msg, "Pod was rejected: ")}
	}
	return nil
}
