// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Group is the pod group that a pod belongs to, "": none.
func Group(p *corev1.Pod) string {
	if g := p.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
		return *g.PodGroupName
	}
	return ""
}

// Terminal reports whether the pod's containers have all ended for good.
func Terminal(p *corev1.Pod) bool { return TerminalPhase(p.Status.Phase) }

// TerminalPhase reports whether a phase is final.
func TerminalPhase(ph corev1.PodPhase) bool {
	return ph == corev1.PodSucceeded || ph == corev1.PodFailed
}

// Active pods are neither terminal nor being deleted.
func Active(p *corev1.Pod) bool { return !Terminal(p) && p.DeletionTimestamp == nil }

// Condition returns the pod's condition of a type, or nil. It is part of p: do not modify it.
func Condition(p *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// IsTrue reports whether the pod has a condition of a type with status True.
func IsTrue(p *corev1.Pod, t corev1.PodConditionType) bool {
	c := Condition(p, t)
	return c != nil && c.Status == corev1.ConditionTrue
}

// Ready reports the Ready condition.
func Ready(p *corev1.Pod) bool { return IsTrue(p, corev1.PodReady) }

// Available reports whether p has been ready for minReady; if it is ready but not yet available, wait says how long it
// still takes.
func Available(p *corev1.Pod, minReady time.Duration, now time.Time) (ok bool, wait time.Duration) {
	if !Ready(p) {
		return false, 0
	}
	if minReady == 0 {
		return true, 0
	}
	since := Condition(p, corev1.PodReady).LastTransitionTime
	if since.IsZero() {
		return false, 0
	}
	if left := since.Add(minReady).Sub(now); left > 0 {
		return false, left
	}
	return true, 0
}

// HostPort is a port of the node that a pod takes. IP "0.0.0.0" means all of the node's addresses.
type HostPort struct {
	IP       string
	Protocol corev1.Protocol
	Port     int32
}

const anyIP = "0.0.0.0"

// Conflicts reports whether both cannot be taken on one node.
func (p HostPort) Conflicts(o HostPort) bool {
	return p.Port == o.Port && p.Protocol == o.Protocol && (p.IP == anyIP || o.IP == anyIP || p.IP == o.IP)
}

// HostPorts lists the node ports of containers and of restartable init containers.
func HostPorts(pod *corev1.Pod) []HostPort {
	var ports []HostPort
	collect := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort <= 0 {
				continue
			}
			hp := HostPort{IP: p.HostIP, Protocol: p.Protocol, Port: p.HostPort}
			if hp.IP == "" || hp.IP == "::" {
				hp.IP = anyIP
			}
			if hp.Protocol == "" {
				hp.Protocol = corev1.ProtocolTCP
			}
			ports = append(ports, hp)
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil &&
			*c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			collect(c)
		}
	}
	for i := range pod.Spec.Containers {
		collect(&pod.Spec.Containers[i])
	}
	return ports
}
