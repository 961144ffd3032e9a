// SPDX-License-Identifier: Apache-2.0

package text

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/timeline/story"
)

// terminating sets why a pod that is being deleted is still there, and moves who deletes it there: it has not ended.
func terminating(w *story.Why, around *Around) {
	if around.Pod.DeletionTimestamp == nil {
		return
	}
	w.Leaves(around.Now)
	grace := int64(0)
	if s := around.Pod.DeletionGracePeriodSeconds; s != nil {
		grace = *s
	}
	by := "being deleted"
	if w.Ended != "" && around.Pod.Status.Reason == "" {
		by = w.Ended
		w.Ended = ""
	}
	asked := around.Pod.DeletionTimestamp.Add(-time.Duration(grace) * time.Second)
	w.Terminating = append([]string{fmt.Sprintf("since %s, with a grace period of %d s: %s",
		asked.Local().Format(time.TimeOnly), grace, clean(by))}, around.terminating()...)
}

// terminating says what a deleted pod waits for: its containers, its node, its finalizers.
func (a *Around) terminating() []string {
	pod := a.Pod
	r := &reasons{a: a}
	running := a.running()
	node := a.nodeCondition()
	switch {
	case pod.Spec.NodeName == "":
	case a.NodeGone:
		r.add("there is no node %s, so no kubelet ends it; the pod garbage collector does", pod.Spec.NodeName)
	case node != nil && node.Status == corev1.ConditionUnknown:
		r.add("its node %s is silent since %s: no kubelet says that its containers have ended", pod.Spec.NodeName,
			node.LastTransitionTime.Local().Format(time.TimeOnly))
	case len(running) > 0:
		for _, c := range running {
			r.ending(c)
		}
	case len(pod.Finalizers) == 0:
		r.add("its containers have ended; its kubelet removes its network and volumes, and then the pod")
	default:
		r.add("its containers have ended")
	}
	if warning := r.newest(func(w *Warning) bool {
		return w.Reason == "FailedKillPod" || w.Reason == "FailedPreStopHook"
	}); warning != nil && len(running) > 0 {
		r.add("%s: %s", warning.Reason, warning.text())
	}
	for _, f := range pod.Finalizers {
		r.add("the finalizer %s holds it until its controller removes it", f)
	}
	return r.out
}

// running are the containers whose end the kubelet has not reported.
func (a *Around) running() []*corev1.Container {
	pod := a.Pod
	var out []*corev1.Container
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if s := statusOf(pod.Status.InitContainerStatuses, c.Name); s != nil && s.State.Running != nil {
			out = append(out, c)
		}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if s := statusOf(pod.Status.ContainerStatuses, c.Name); s != nil && s.State.Running != nil {
			out = append(out, c)
		}
	}
	return out
}

// ending describes a container that still runs in a deleted pod: its hook, and how long it may take.
func (r *reasons) ending(c *corev1.Container) {
	left := r.a.Pod.DeletionTimestamp.Sub(r.a.Now)
	hook := ""
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		hook = fmt.Sprintf(": its preStop hook (%s) comes first, then its signal to end", hookOf(c.Lifecycle.PreStop))
	}
	if left <= 0 {
		r.add("container %s runs, though its grace period ended %s ago%s", c.Name, about(-left), hook)
		return
	}
	r.add("container %s runs, and may for %s more, until %s%s", c.Name, about(left),
		r.a.Pod.DeletionTimestamp.Local().Format(time.TimeOnly), hook)
}

// hookOf describes what a hook does.
func hookOf(h *corev1.LifecycleHandler) string {
	switch {
	case h.Exec != nil:
		return "exec " + short(strings.Join(h.Exec.Command, " "))
	case h.HTTPGet != nil:
		return fmt.Sprintf("http :%s%s", h.HTTPGet.Port.String(), h.HTTPGet.Path)
	case h.Sleep != nil:
		return fmt.Sprintf("sleep %d s", h.Sleep.Seconds)
	}
	return "none"
}
