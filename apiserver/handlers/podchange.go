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

// noteChange describes in the request's mark what a write of pods/status changed, for the timeline.
func noteChange(rq *pipeline.Request, sub string, obj, old kind.Object) {
	pod, ok := obj.(*corev1.Pod)
	before, ok2 := old.(*corev1.Pod)
	if !ok || !ok2 || sub != "status" {
		return
	}
	var said []string
	if pod.Status.Phase != before.Status.Phase {
		said = append(said, fmt.Sprintf("phase %s -> %s", before.Status.Phase, pod.Status.Phase))
		if why := because(&pod.Status); why != "" {
			said[0] += " (" + why + ")"
		}
	}
	if node := pod.Status.NominatedNodeName; node != "" && node != before.Status.NominatedNodeName {
		said = append(said, "nominated to "+node+", where others leave for it")
	}
	if text := readiness(pod, before); text != "" {
		said = append(said, text)
	}
	if why := disrupted(&pod.Status); why != "" && why != disrupted(&before.Status) {
		said = append(said, "is to leave: "+why)
	}
	rq.Mark.Change = strings.Join(append(said, waits(&pod.Status, &before.Status)...), "; ")
}

// because returns the reason and message in a pod's status. They are shortened, because clients may write any length.
func because(s *corev1.PodStatus) string {
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

// waits returns new reasons why a pod waits: the scheduler's message, or the waiting reasons of a few containers.
func waits(now, before *corev1.PodStatus) []string {
	var said []string
	if c := unscheduled(now); c != "" && c != unscheduled(before) {
		said = append(said, "not scheduled: "+c)
	}
	const most = 3
	usual := []string{"", "ContainerCreating", "PodInitializing"}
	was := waiting(before)
	for name, reason := range waiting(now) {
		if reason != was[name] && !slices.Contains(usual, reason) && len(reason) <= longestReason {
			said = append(said, name+" waits: "+reason)
		}
	}
	slices.Sort(said)
	return said[:min(len(said), most)]
}

// readiness describes a change of the pod's readiness; empty if there is none or the phase changed too.
func readiness(now, before *corev1.Pod) string {
	is, was := podkind.Condition(now, corev1.PodReady), podkind.Condition(before, corev1.PodReady)
	switch {
	case is == nil || was == nil || is.Status == was.Status || now.Status.Phase != before.Status.Phase:
		return ""
	case is.Status == corev1.ConditionTrue:
		return "is Ready"
	case was.Status != corev1.ConditionTrue:
		return ""
	case is.Reason == "" || len(is.Reason) > longestReason:
		return "is not Ready any more"
	}
	return "is not Ready any more: " + is.Reason
}

// longestReason is the maximum length of a reason from a status in the timeline, because clients may write any length.
const longestReason = 64

// disrupted is the reason of a pod's disruption; empty: none.
func disrupted(s *corev1.PodStatus) string {
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return c.Reason
		}
	}
	return ""
}

func unscheduled(s *corev1.PodStatus) string {
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Reason
		}
	}
	return ""
}

// waiting maps containers to their waiting reasons.
func waiting(s *corev1.PodStatus) map[string]string {
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
