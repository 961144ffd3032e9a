// SPDX-License-Identifier: Apache-2.0

package writes

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	podkind "keelson/api/core/pod"
	"keelson/api/kind"
	"keelson/apiserver/pipeline"
	"keelson/event"
)

// Limits of what a status change carries, because clients may write any length.
const (
	maxReasonLength  = 64  // longer reasons of conditions and containers are left out
	maxStatusText    = 256 // of a status' reason and message together
	mostWaitingShown = 3
)

// recordChange records in the request's mark what a write of pods/status changed, for the timeline.
func recordChange(rq *pipeline.Request, sub string, obj, old kind.Object) {
	pod, ok := obj.(*corev1.Pod)
	before, ok2 := old.(*corev1.Pod)
	if ok && ok2 && sub == "status" {
		rq.Mark.Status = statusChange(pod, before)
	}
}

// statusChange returns what changed from one status to the next; nil: nothing that people follow.
func statusChange(now, before *corev1.Pod) *event.StatusChange {
	var c event.StatusChange
	if now.Status.Phase != before.Status.Phase {
		c.From = string(before.Status.Phase)
		c.To = string(now.Status.Phase)
		c.Reason, c.Message = statusReason(&now.Status)
	} else {
		c.Ready, c.NotReady = readiness(now, before)
	}
	if now.Status.NominatedNodeName != before.Status.NominatedNodeName {
		c.Nominated = now.Status.NominatedNodeName
	}
	if why := conditionReason(now, corev1.DisruptionTarget, corev1.ConditionTrue); why != conditionReason(before,
		corev1.DisruptionTarget, corev1.ConditionTrue) {
		c.Disruption = why
	}
	if why := conditionReason(now, corev1.PodScheduled, corev1.ConditionFalse); why != conditionReason(before,
		corev1.PodScheduled, corev1.ConditionFalse) {
		c.Unscheduled = why
	}
	c.Waiting = newWaiting(&now.Status, &before.Status)
	if reflect.ValueOf(c).IsZero() {
		return nil
	}
	return &c
}

// statusReason returns the reason and message in a pod's status, shortened. A message without a reason is left out.
func statusReason(s *corev1.PodStatus) (reason, message string) {
	short := func(text string, most int) string {
		if len(text) > most {
			return strings.ToValidUTF8(text[:max(0, most)], "") + "..."
		}
		return text
	}
	if s.Reason == "" {
		return "", ""
	}
	return short(s.Reason, maxStatusText), short(s.Message, maxStatusText-len(s.Reason)-len(": "))
}

// readiness returns the new status of the condition Ready, and why it is not true any more; empty: it is as before.
func readiness(now, before *corev1.Pod) (status, reason string) {
	is := podkind.Condition(now, corev1.PodReady)
	was := podkind.Condition(before, corev1.PodReady)
	switch {
	case is == nil || was == nil || is.Status == was.Status:
		return "", ""
	case is.Status == corev1.ConditionTrue:
		return string(corev1.ConditionTrue), ""
	case was.Status != corev1.ConditionTrue:
		return "", ""
	case len(is.Reason) > maxReasonLength:
		return string(corev1.ConditionFalse), ""
	}
	return string(corev1.ConditionFalse), is.Reason
}

// conditionReason is the reason of a condition that has a status; empty: it has not.
func conditionReason(p *corev1.Pod, kind corev1.PodConditionType, status corev1.ConditionStatus) string {
	if c := podkind.Condition(p, kind); c != nil && c.Status == status {
		return c.Reason
	}
	return ""
}

// newWaiting returns a few containers with a new reason to wait that is out of the ordinary, by name.
func newWaiting(now, before *corev1.PodStatus) []event.Waiting {
	usual := []string{"", "ContainerCreating", "PodInitializing"}
	was := waitingReasons(before)
	var out []event.Waiting
	for name, reason := range waitingReasons(now) {
		if reason != was[name] && !slices.Contains(usual, reason) && len(reason) <= maxReasonLength {
			out = append(out, event.Waiting{Container: name, Reason: reason})
		}
	}
	slices.SortFunc(out, func(a, b event.Waiting) int { return cmp.Compare(a.Container, b.Container) })
	return out[:min(len(out), mostWaitingShown)]
}

// waitingReasons maps containers to their waiting reasons.
func waitingReasons(s *corev1.PodStatus) map[string]string {
	out := map[string]string{}
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for i := range list {
			if w := list[i].State.Waiting; w != nil {
				out[list[i].Name] = w.Reason
			}
		}
	}
	return out
}
