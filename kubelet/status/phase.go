// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podkind "keelson/api/core/pod"
	"keelson/kubelet/podinfo"
)

type containerCounts struct{ waiting, running, stopped, succeeded int }

// phase computes the pod's phase. terminal: no container runs or will run.
func phase(pod *corev1.Pod, status *corev1.PodStatus, terminal bool) corev1.PodPhase {
	pendingInit := 0
	failedInit := false
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		cs := &status.InitContainerStatuses[i]
		switch {
		case podinfo.Sidecar(c):
			if cs.Started == nil || !*cs.Started {
				pendingInit++
			}
		case cs.State.Terminated != nil && cs.State.Terminated.ExitCode == 0:
		case cs.State.Terminated != nil && !podinfo.RestartAfter(pod, c, podinfo.Init, cs.State.Terminated.ExitCode):
			failedInit = true
		default:
			pendingInit++
		}
	}
	if failedInit {
		return corev1.PodFailed
	}
	t := count(status.ContainerStatuses)
	if terminal {
		return terminalPhase(t, len(pod.Spec.Containers))
	}
	begun := t.running+t.stopped > 0
	switch {
	case pendingInit > 0 && !begun, t.waiting > 0:
		return corev1.PodPending
	case t.running > 0:
		return corev1.PodRunning
	case t.stopped > 0:
		return corev1.PodRunning // they start again, or sidecars still run
	}
	return corev1.PodPending
}

func terminalPhase(t containerCounts, n int) corev1.PodPhase {
	if t.succeeded == n {
		return corev1.PodSucceeded
	}
	return corev1.PodFailed
}

func count(list []corev1.ContainerStatus) containerCounts {
	var counts containerCounts
	for i := range list {
		st := list[i].State
		switch {
		case st.Running != nil:
			counts.running++
		case st.Terminated != nil:
			counts.stopped++
			if st.Terminated.ExitCode == 0 {
				counts.succeeded++
			}
		case list[i].LastTerminationState.Terminated != nil:
			counts.stopped++
		default:
			counts.waiting++
		}
	}
	return counts
}

// kubeletConditions are the conditions that the kubelet writes; others belong to other components.
var kubeletConditions = []corev1.PodConditionType{
	corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady,
	corev1.PodScheduled, corev1.AllContainersRestarting,
}

func setConditions(in Input, status *corev1.PodStatus) {
	ready := containersReady(in.Pod, status)
	set := map[corev1.PodConditionType]corev1.PodCondition{
		corev1.PodReadyToStartContainers: sandboxReady(in),
		corev1.PodInitialized:            initialized(in.Pod, status),
		corev1.ContainersReady:           ready,
		corev1.PodReady:                  podReady(in.Pod, status, ready),
		corev1.PodScheduled:              {Status: corev1.ConditionTrue},
		corev1.AllContainersRestarting:   allRestarting(in, status.Phase),
	}
	for _, t := range kubeletConditions {
		podCondition := set[t]
		if podCondition.Status == "" {
			continue
		}
		podCondition.Type = t
		podCondition.ObservedGeneration = in.Pod.Generation
		podCondition.LastTransitionTime = metav1.NewTime(in.Now.Truncate(1e9))
		i := slices.IndexFunc(status.Conditions, func(o corev1.PodCondition) bool { return o.Type == t })
		if i < 0 {
			status.Conditions = append(status.Conditions, podCondition)
			continue
		}
		if o := status.Conditions[i]; o.Status == podCondition.Status {
			podCondition.LastTransitionTime = o.LastTransitionTime
		}
		status.Conditions[i] = podCondition
	}
}

// setEndCondition adds the condition of a pod that the kubelet ends.
func setEndCondition(in Input, status *corev1.PodStatus) {
	if in.End.Condition == nil {
		return
	}
	podCondition := *in.End.Condition
	podCondition.ObservedGeneration = in.Pod.Generation
	podCondition.LastTransitionTime = metav1.NewTime(in.Now.Truncate(1e9))
	i := slices.IndexFunc(status.Conditions, func(o corev1.PodCondition) bool { return o.Type == podCondition.Type })
	if i < 0 {
		status.Conditions = append(status.Conditions, podCondition)
		return
	}
	if o := status.Conditions[i]; o.Status == podCondition.Status {
		podCondition.LastTransitionTime = o.LastTransitionTime
	}
	status.Conditions[i] = podCondition
}

func sandboxReady(in Input) corev1.PodCondition {
	if box := in.Observed.Current(); box != nil && (in.Pod.Spec.HostNetwork || len(box.IPs) > 0) {
		return corev1.PodCondition{Status: corev1.ConditionTrue}
	}
	// whether a sandbox that has ended is still there makes no difference: it would cost a write of the status
	why := "pod sandbox is not ready"
	if in.Observed.Current() != nil {
		why = "pod sandbox has no IP address"
	}
	return corev1.PodCondition{Status: corev1.ConditionFalse, Reason: "PodSandboxNotReady", Message: why}
}

// allRestarting is the condition of a pod whose rules may restart all its containers; other pods have none.
func allRestarting(in Input, phase corev1.PodPhase) corev1.PodCondition {
	switch {
	case !podinfo.MayRestartAll(in.Pod):
		return corev1.PodCondition{}
	case phase == corev1.PodSucceeded:
		return corev1.PodCondition{Status: corev1.ConditionFalse, Reason: "PodCompleted"}
	case phase == corev1.PodFailed:
		return corev1.PodCondition{Status: corev1.ConditionFalse, Reason: "PodFailed"}
	case !in.Restarting:
		return corev1.PodCondition{Status: corev1.ConditionFalse}
	}
	return corev1.PodCondition{
		Status:  corev1.ConditionTrue,
		Reason:  "RestartAllContainersStarted",
		Message: "container exited with restart policy rule",
	}
}

func initialized(pod *corev1.Pod, status *corev1.PodStatus) corev1.PodCondition {
	if was := podkind.Condition(pod, corev1.PodInitialized); was != nil && was.Status == corev1.ConditionTrue &&
		podinfo.MayRestartAll(pod) {
		return corev1.PodCondition{Status: corev1.ConditionTrue} // also while all containers start again
	}
	var missing []string
	for i := range pod.Spec.InitContainers {
		cs := &status.InitContainerStatuses[i]
		done := cs.Ready || cs.State.Terminated != nil && cs.State.Terminated.ExitCode == 0
		if podinfo.Sidecar(&pod.Spec.InitContainers[i]) {
			done = cs.Started != nil && *cs.Started
		}
		if !done {
			missing = append(missing, cs.Name)
		}
	}
	t := count(status.ContainerStatuses)
	switch {
	case len(missing) == 0:
		return corev1.PodCondition{Status: corev1.ConditionTrue}
	case t.running+t.stopped > 0 && onlySidecars(pod, missing):
		return corev1.PodCondition{Status: corev1.ConditionTrue}
	case status.Phase == corev1.PodSucceeded:
		return corev1.PodCondition{Status: corev1.ConditionTrue, Reason: "PodCompleted"}
	}
	return corev1.PodCondition{
		Status:  corev1.ConditionFalse,
		Reason:  "ContainersNotInitialized",
		Message: fmt.Sprintf("containers with incomplete status: %s", missing),
	}
}

func onlySidecars(p *corev1.Pod, names []string) bool {
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if slices.Contains(names, c.Name) && !podinfo.Sidecar(c) {
			return false
		}
	}
	return true
}

func containersReady(p *corev1.Pod, status *corev1.PodStatus) corev1.PodCondition {
	switch status.Phase {
	case corev1.PodSucceeded:
		return corev1.PodCondition{Status: corev1.ConditionFalse, Reason: "PodCompleted"}
	case corev1.PodFailed:
		return corev1.PodCondition{Status: corev1.ConditionFalse, Reason: "PodFailed"}
	case corev1.PodPending, corev1.PodRunning, corev1.PodUnknown:
	}
	var unready []string
	for i := range p.Spec.InitContainers {
		if cs := &status.InitContainerStatuses[i]; podinfo.Sidecar(&p.Spec.InitContainers[i]) && !cs.Ready {
			unready = append(unready, cs.Name)
		}
	}
	for i := range status.ContainerStatuses {
		if cs := &status.ContainerStatuses[i]; !cs.Ready {
			unready = append(unready, cs.Name)
		}
	}
	if len(unready) == 0 {
		return corev1.PodCondition{Status: corev1.ConditionTrue}
	}
	return corev1.PodCondition{
		Status:  corev1.ConditionFalse,
		Reason:  "ContainersNotReady",
		Message: fmt.Sprintf("containers with unready status: %s", unready),
	}
}

func podReady(p *corev1.Pod, status *corev1.PodStatus, containers corev1.PodCondition) corev1.PodCondition {
	if containers.Status != corev1.ConditionTrue {
		return containers
	}
	var missing string
	for _, g := range p.Spec.ReadinessGates {
		i := slices.IndexFunc(status.Conditions, func(c corev1.PodCondition) bool { return c.Type == g.ConditionType })
		msg := ""
		switch {
		case i < 0:
			msg = fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", g.ConditionType)
		case status.Conditions[i].Status != corev1.ConditionTrue:
			msg = fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", g.ConditionType,
				status.Conditions[i].Status)
		default:
			continue
		}
		if missing != "" {
			missing += ", "
		}
		missing += msg
	}
	if missing != "" {
		return corev1.PodCondition{Status: corev1.ConditionFalse, Reason: "ReadinessGatesNotReady", Message: missing}
	}
	return corev1.PodCondition{Status: corev1.ConditionTrue}
}
