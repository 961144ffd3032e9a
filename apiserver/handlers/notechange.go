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

// noteChange tells the request's mark what a write of pods/status changed, in the words in which the timeline tells it.
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

// because is why a pod is in its phase, in its status' own words, cut where they are long: clients write them.
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

// waits says what a pod waits for now and did not before: the scheduler, or a container for a reason of its own. Few are named.
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

// readiness says that a pod is ready, or is not any more; empty where that did not change, or its phase did too.
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

// longestReason is the longest word of a status that a story repeats: clients write it.
const longestReason = 64

// disrupted is the reason for which somebody ends a pod; empty: nobody does.
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

// waiting are the reasons for which containers wait, by their names.
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
