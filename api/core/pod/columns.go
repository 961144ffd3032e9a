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

func row(p *corev1.Pod) []any {
	s := summarize(p)
	restarts := strconv.Itoa(s.restarts)
	if s.restarts != 0 && !s.lastRestart.IsZero() {
		restarts = fmt.Sprintf("%d (%s ago)", s.restarts, kind.Age(s.lastRestart))
	}
	ip := ""
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	return []any{
		p.Name, fmt.Sprintf("%d/%d", s.ready, s.total), s.reason, restarts, kind.Age(p.CreationTimestamp),
		kind.OrNone(ip), kind.OrNone(p.Spec.NodeName), kind.OrNone(p.Status.NominatedNodeName), readinessGates(p),
	}
}

// done marks finished pods, which kubectl --show-all=false once left out.
func done(p *corev1.Pod) []metav1.TableRowCondition {
	text := ""
	switch p.Status.Phase {
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
		Reason:  string(p.Status.Phase),
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

func summarize(p *corev1.Pod) summary {
	s := summary{total: len(p.Spec.Containers), reason: string(p.Status.Phase)}
	if p.Status.Reason != "" {
		s.reason = p.Status.Reason
	}
	if c := Condition(p, corev1.PodScheduled); c != nil && c.Reason == corev1.PodReasonSchedulingGated {
		s.reason = corev1.PodReasonSchedulingGated
	}
	for i := range p.Spec.InitContainers {
		if podspec.IsSidecar(&p.Spec.InitContainers[i]) {
			s.total++
		}
	}
	sidecars, initializing := s.initContainers(p)
	if !initializing || IsTrue(p, corev1.PodInitialized) {
		s.restarts = sidecars.restarts
		s.lastRestart = sidecars.lastRestart
		s.containers(p)
	}
	finished := p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
	switch {
	case p.DeletionTimestamp == nil:
	case p.Status.Reason == "NodeLost":
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
func (s *summary) initContainers(p *corev1.Pod) (sidecars summary, initializing bool) {
	for i := range p.Status.InitContainerStatuses {
		c := &p.Status.InitContainerStatuses[i]
		s.count(c)
		sidecar := false
		for j := range p.Spec.InitContainers {
			if p.Spec.InitContainers[j].Name == c.Name {
				sidecar = podspec.IsSidecar(&p.Spec.InitContainers[j])
			}
		}
		if sidecar {
			sidecars.count(c)
		}
		t := c.State.Terminated
		w := c.State.Waiting
		switch {
		case t != nil && t.ExitCode == 0:
			continue
		case sidecar && c.Started != nil && *c.Started:
			if c.Ready {
				s.ready++
			}
			continue
		case t != nil:
			s.reason = "Init:" + exitReason(t)
		case w != nil && w.Reason != "" && w.Reason != "PodInitializing":
			s.reason = "Init:" + w.Reason
		default:
			s.reason = fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		}
		return sidecars, true
	}
	return sidecars, false
}

// containers lets the first container that has something to say describe the pod.
func (s *summary) containers(p *corev1.Pod) {
	running := false
	for i := len(p.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := &p.Status.ContainerStatuses[i]
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
		if IsTrue(p, corev1.PodReady) {
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
