// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/core/podspec"
	"keelson/api/kind"
)

var columns = []metav1.TableColumnDefinition{
	kind.NameColumn,
	{Name: "Ready", Type: "string", Description: "The aggregate readiness state of this pod for accepting traffic."},
	{Name: "Status", Type: "string", Description: "The aggregate status of the containers in this pod."},
	{
		Name: "Restarts",
		Type: "string",
		Description: "The number of times the containers in this pod have been restarted and when the last container " +
			"in this pod has restarted.",
	},
	kind.AgeColumn,
	kind.Wide("IP", corev1.PodStatus{}.SwaggerDoc()["podIP"]),
	kind.Wide("Node", corev1.PodSpec{}.SwaggerDoc()["nodeName"]),
	kind.Wide("Nominated Node", corev1.PodStatus{}.SwaggerDoc()["nominatedNodeName"]),
	kind.Wide("Readiness Gates", corev1.PodSpec{}.SwaggerDoc()["readinessGates"]),
}

func row(pod *corev1.Pod) []any {
	s := summarize(pod)
	restarts := strconv.Itoa(s.restarts)
	if s.restarts != 0 && !s.lastRestart.IsZero() {
		restarts = fmt.Sprintf("%d (%s ago)", s.restarts, kind.Age(s.lastRestart))
	}
	ip := ""
	if len(pod.Status.PodIPs) > 0 {
		ip = pod.Status.PodIPs[0].IP
	}
	return []any{
		pod.Name, fmt.Sprintf("%d/%d", s.ready, s.total), s.reason, restarts, kind.Age(pod.CreationTimestamp),
		kind.OrNone(ip), kind.OrNone(pod.Spec.NodeName), kind.OrNone(pod.Status.NominatedNodeName), readinessGates(pod),
	}
}

// done marks finished pods, which kubectl --show-all=false once left out.
func done(pod *corev1.Pod) []metav1.TableRowCondition {
	text := ""
	switch pod.Status.Phase {
	case corev1.PodSucceeded:
		text = "The pod has completed successfully."
	case corev1.PodFailed:
		text = "The pod failed."
	default:
		return nil
	}
	return []metav1.TableRowCondition{{
		Type:    metav1.RowCompleted,
		Status:  metav1.ConditionTrue,
		Reason:  string(pod.Status.Phase),
		Message: text,
	}}
}

func readinessGates(p *corev1.Pod) string {
	if len(p.Spec.ReadinessGates) == 0 {
		return "<none>"
	}
	open := 0
	for _, g := range p.Spec.ReadinessGates {
		if c := Condition(p, g.ConditionType); c != nil && c.Status == corev1.ConditionTrue {
			open++
		}
	}
	return fmt.Sprintf("%d/%d", open, len(p.Spec.ReadinessGates))
}

// summary is a pod in one line.
type summary struct {
	ready, total int
	reason       string
	restarts     int
	lastRestart  metav1.Time
}

// Reason is the pod's STATUS as kubectl prints it: "Running", "CrashLoopBackOff", "Init:0/2", "Terminating"...
func Reason(p *corev1.Pod) string { return summarize(p).reason }

func summarize(pod *corev1.Pod) summary {
	s := summary{total: len(pod.Spec.Containers), reason: string(pod.Status.Phase)}
	if pod.Status.Reason != "" {
		s.reason = pod.Status.Reason
	}
	if c := Condition(pod, corev1.PodScheduled); c != nil && c.Reason == corev1.PodReasonSchedulingGated {
		s.reason = corev1.PodReasonSchedulingGated
	}
	for i := range pod.Spec.InitContainers {
		if podspec.IsSidecar(&pod.Spec.InitContainers[i]) {
			s.total++
		}
	}
	sidecars, initializing := s.initContainers(pod)
	if !initializing || IsTrue(pod, corev1.PodInitialized) {
		s.restarts = sidecars.restarts
		s.lastRestart = sidecars.lastRestart
		s.containers(pod)
	}
	finished := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
	switch {
	case pod.DeletionTimestamp == nil:
	case pod.Status.Reason == "NodeLost":
		s.reason = "Unknown"
	case !finished:
		s.reason = "Terminating"
	}
	return s
}

// count adds a container's restarts.
func (s *summary) count(c *corev1.ContainerStatus) {
	s.restarts += int(c.RestartCount)
	if t := c.LastTerminationState.Terminated; t != nil && s.lastRestart.Before(&t.FinishedAt) {
		s.lastRestart = t.FinishedAt
	}
}

// initContainers describes the first init container that is not done; the sidecars' restarts are counted apart.
func (s *summary) initContainers(pod *corev1.Pod) (sidecars summary, initializing bool) {
	for i := range pod.Status.InitContainerStatuses {
		status := &pod.Status.InitContainerStatuses[i]
		s.count(status)
		sidecar := false
		for j := range pod.Spec.InitContainers {
			if pod.Spec.InitContainers[j].Name == status.Name {
				sidecar = podspec.IsSidecar(&pod.Spec.InitContainers[j])
			}
		}
		if sidecar {
			sidecars.count(status)
		}
		terminated := status.State.Terminated
		waiting := status.State.Waiting
		switch {
		case terminated != nil && terminated.ExitCode == 0:
			continue
		case sidecar && status.Started != nil && *status.Started:
			if status.Ready {
				s.ready++
			}
			continue
		case terminated != nil:
			s.reason = "Init:" + exitReason(terminated)
		case waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing":
			s.reason = "Init:" + waiting.Reason
		default:
			s.reason = fmt.Sprintf("Init:%d/%d", i, len(pod.Spec.InitContainers))
		}
		return sidecars, true
	}
	return sidecars, false
}

// containers lets the first container that has something to say describe the pod.
func (s *summary) containers(pod *corev1.Pod) {
	running := false
	for i := len(pod.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := &pod.Status.ContainerStatuses[i]
		s.count(c)
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.reason = c.State.Waiting.Reason
		case c.State.Terminated != nil:
			s.reason = exitReason(c.State.Terminated)
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	if s.reason == "Completed" && running {
		s.reason = "NotReady"
		if IsTrue(pod, corev1.PodReady) {
			s.reason = "Running"
		}
	}
}

func exitReason(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	default:
		return fmt.Sprintf("ExitCode:%d", t.ExitCode)
	}
}
