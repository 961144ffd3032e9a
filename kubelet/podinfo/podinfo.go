// SPDX-License-Identifier: Apache-2.0

// Package podinfo answers small questions about a pod's specification that several rooms of the kubelet ask: which of
// its containers are sidecars, how long it may take to stop, which quality of service it gets, where it came from. Pure
// functions.
package podinfo

import (
	"fmt"
	"iter"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Annotations of static pods and of the mirror pods that show them in the API.
const (
	AnnotationHash   = "kubernetes.io/config.hash"
	AnnotationMirror = "kubernetes.io/config.mirror"
	AnnotationSource = "kubernetes.io/config.source"
	AnnotationSeen   = "kubernetes.io/config.seen"
)

// Static reports whether the pod came from a file on this node.
func Static(p *corev1.Pod) bool { return p.Annotations[AnnotationSource] == "file" && !Mirror(p) }

// Mirror reports whether the pod is the API's image of a static pod.
func Mirror(p *corev1.Pod) bool {
	_, ok := p.Annotations[AnnotationMirror]
	return ok
}

// systemCritical is the least priority of pods without which a node does not work: system-cluster-critical.
const systemCritical = 2_000_000_000

// Critical reports whether the node needs the pod: such a pod is taken under pressure, and never evicted.
func Critical(p *corev1.Pod) bool {
	return Static(p) || Mirror(p) || p.Spec.Priority != nil && *p.Spec.Priority >= systemCritical
}

// FullName returns name_namespace(uid), as Kubernetes' messages have it.
func FullName(p *corev1.Pod) string { return fmt.Sprintf("%s_%s(%s)", p.Name, p.Namespace, p.UID) }

// Sidecar reports whether an init container keeps running next to the main ones.
func Sidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// Kind says which list of the pod a container stands in.
type Kind int

// The kinds, in the order in which they may start.
const (
	Init    Kind = iota // runs to its end before the next
	SideCar             // an init container that is restarted forever
	Main
	Ephemeral
)

// Field is the kind's list in the pod's specification.
func (k Kind) Field() string {
	switch k {
	case Init, SideCar:
		return "initContainers"
	case Ephemeral:
		return "ephemeralContainers"
	case Main:
	}
	return "containers"
}

// All yields every container of the pod with its kind, in starting order. Ephemeral ones come as plain containers.
func All(pod *corev1.Pod) iter.Seq2[*corev1.Container, Kind] {
	return func(yield func(*corev1.Container, Kind) bool) {
		for i := range pod.Spec.InitContainers {
			c := &pod.Spec.InitContainers[i]
			k := Init
			if Sidecar(c) {
				k = SideCar
			}
			if !yield(c, k) {
				return
			}
		}
		for i := range pod.Spec.Containers {
			if !yield(&pod.Spec.Containers[i], Main) {
				return
			}
		}
		for i := range pod.Spec.EphemeralContainers {
			c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
			if !yield(&c, Ephemeral) {
				return
			}
		}
	}
}

// Find is the container of this name, nil when the pod has none.
func Find(p *corev1.Pod, name string) (*corev1.Container, Kind) {
	for c, k := range All(p) {
		if c.Name == name {
			return c, k
		}
	}
	return nil, Main
}

// GracePeriodSeconds returns how many seconds the pod may take to stop: the grace period of the deletion, else that of
// the specification, at least 1.
func GracePeriodSeconds(p *corev1.Pod) int64 {
	g := int64(30)
	if p.Spec.TerminationGracePeriodSeconds != nil {
		g = *p.Spec.TerminationGracePeriodSeconds
	}
	if p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil {
		g = *p.DeletionGracePeriodSeconds
	}
	return max(g, 1)
}

// RestartAfter reports whether a container that ended with this code starts again. Its own rules decide first, then its
// own policy, then the pod's.
func RestartAfter(p *corev1.Pod, container *corev1.Container, kind Kind, code int32) bool {
	if kind == Ephemeral {
		return false
	}
	if ruleFor(container, code) != nil {
		return true // both actions start it again
	}
	policy := p.Spec.RestartPolicy
	if container.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*container.RestartPolicy)
	} else if kind == Init && policy == corev1.RestartPolicyAlways {
		policy = corev1.RestartPolicyOnFailure
	}
	switch policy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	case corev1.RestartPolicyAlways:
	}
	return kind != Init || code != 0
}

// RestartsAll reports whether all containers of the pod start again when this one ends with this code: the first of its
// rules with the code decides (KEP-5532).
func RestartsAll(container *corev1.Container, code int32) bool {
	rule := ruleFor(container, code)
	return rule != nil && rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers
}

// MayRestartAll reports whether a rule of some container restarts all containers of the pod.
func MayRestartAll(p *corev1.Pod) bool {
	for container := range All(p) {
		for i := range container.RestartPolicyRules {
			if container.RestartPolicyRules[i].Action == corev1.ContainerRestartRuleActionRestartAllContainers {
				return true
			}
		}
	}
	return false
}

// ruleFor returns the first of the container's restart rules that has an exit code; nil: none.
func ruleFor(container *corev1.Container, code int32) *corev1.ContainerRestartRule {
	for i := range container.RestartPolicyRules {
		if rule := &container.RestartPolicyRules[i]; rule.ExitCodes != nil && matches(rule.ExitCodes, code) {
			return rule
		}
	}
	return nil
}

func matches(r *corev1.ContainerRestartRuleOnExitCodes, code int32) bool {
	in := false
	for _, v := range r.Values {
		in = in || v == code
	}
	return in == (r.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn)
}

// QOS is the pod's quality of service class, from cpu and memory of all its containers.
func QOS(p *corev1.Pod) corev1.PodQOSClass {
	if p.Status.QOSClass != "" {
		return p.Status.QOSClass
	}
	if HasOwnResources(p) {
		return qosOf([]corev1.ResourceRequirements{*p.Spec.Resources})
	}
	var all []corev1.ResourceRequirements
	for c, k := range All(p) {
		if k != Ephemeral {
			all = append(all, c.Resources)
		}
	}
	return qosOf(all)
}

func qosOf(all []corev1.ResourceRequirements) corev1.PodQOSClass {
	some := false
	guaranteed := true
	for _, r := range all {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			req := r.Requests[name]
			lim := r.Limits[name]
			if !req.IsZero() || !lim.IsZero() {
				some = true
			}
			if lim.IsZero() || !valueOr(req, lim).Equal(lim) {
				guaranteed = false
			}
		}
	}
	switch {
	case !some:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

func valueOr(q, other resource.Quantity) *resource.Quantity {
	if q.IsZero() {
		return &other
	}
	return &q
}
