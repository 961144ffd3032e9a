// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	podkind "keelson/api/core/pod"
	"keelson/api/kind"
	"keelson/apiserver/pipeline"
)

// recordChange describes in the request's mark what a write of pods/status changed, for the timeline.
func recordChange(rq *pipeline.Request, sub string, obj, old kind.Object) {
	pod, ok := obj.(*corev1.Pod)
	before, ok2 := old.(*corev1.Pod)
	if !ok || !ok2 || sub != "status" {
		return
	}
	var descriptions []string
	if pod.Status.Phase != before.Status.Phase {
		descriptions = append(descriptions, fmt.Sprintf("phase %s -> %s", before.Status.Phase, pod.Status.Phase))
		if why := statusReason(&pod.Status); why != "" {
			descriptions[0] += " (" + why + ")"
		}
	}
	if node := pod.Status.NominatedNodeName; node != "" && node != before.Status.NominatedNodeName {
		descriptions = append(descriptions, "nominated to "+node+", which is prepared for it")
	}
	if text := readiness(pod, before); text != "" {
		descriptions = append(descriptions, text)
	}
	if why := disruptionReason(&pod.Status); why != "" && why != disruptionReason(&before.Status) {
		descriptions = append(descriptions, "is to leave: "+why)
	}
	rq.Mark.Change = strings.Join(append(descriptions, newWaitingReasons(&pod.Status, &before.Status)...), "; ")
}

// statusReason returns the reason and message in a pod's status. They are shortened, because clients may write any
// length.
func statusReason(s *corev1.PodStatus) string {
	const most = 256
	why := s.Reason
	if why != "" && s.Message != "" {
		why += ": " + s.Message
	}
	if len(why) > most {
		why = strings.ToValidUTF8(why[:most], "") + "..."
	}
	return why
}

// newWaitingReasons returns new reasons why a pod waits: the scheduler's message, or the waiting reasons of a few
// containers.
func newWaitingReasons(now, before *corev1.PodStatus) []string {
	var descriptions []string
	if c := unschedulableMessage(now); c != "" && c != unschedulableMessage(before) {
		descriptions = append(descriptions, "not scheduled: "+c)
	}
	const most = 3
	usual := []string{"", "ContainerCreating", "PodInitializing"}
	was := waitingReasons(before)
	for name, reason := range waitingReasons(now) {
		if reason != was[name] && !slices.Contains(usual, reason) && len(reason) <= maxReasonLength {
			descriptions = append(descriptions, name+" waits: "+reason)
		}
	}
	slices.Sort(descriptions)
	return descriptions[:min(len(descriptions), most)]
}

// readiness describes a change of the pod's readiness; empty if there is none or the phase changed too.
func readiness(now, before *corev1.Pod) string {
	is := podkind.Condition(now, corev1.PodReady)
	was := podkind.Condition(before, corev1.PodReady)
	switch {
	case is == nil || was == nil || is.Status == was.Status || now.Status.Phase != before.Status.Phase:
		return ""
	case is.Status == corev1.ConditionTrue:
		return "is Ready"
	case was.Status != corev1.ConditionTrue:
		return ""
	case is.Reason == "" || len(is.Reason) > maxReasonLength:
		return "is not Ready any more"
	}
	return "is not Ready any more: " + is.Reason
}

// maxReasonLength is the maximum length of a reason from a status in the timeline, because clients may write any
// length.
const maxReasonLength = 64

// disruptionReason is the reason of a pod's disruption; empty: none.
func disruptionReason(s *corev1.PodStatus) string {
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return c.Reason
		}
	}
	return ""
}

func unschedulableMessage(s *corev1.PodStatus) string {
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Reason
		}
	}
	return ""
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
