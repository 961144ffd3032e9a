// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"keelson/kubelet/pod/decide"
	"keelson/kubelet/podinfo"
)

// Reason and messages in the status and the events of a preempted pod.
const (
	preempting         = "Preempting"
	preemptedMessage   = "Preempted in order to admit critical pod"
	preemptedCondition = "Pod was preempted by Kubelet to accommodate a critical pod."
)

// insufficientResource is a resource of which a pod requests more than is available.
type insufficientResource struct {
	name                      corev1.ResourceName
	requested, used, capacity int64
}

// insufficientResources returns the resources of which p requests more than the other pods leave. Resources that the
// node does not report are not checked.
func insufficientResources(
	p *corev1.Pod, node *corev1.Node, allocatable corev1.ResourceList, others []*corev1.Pod,
) []insufficientResource {
	want := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	used := map[corev1.ResourceName]int64{}
	for _, o := range others {
		for name, q := range resourcehelper.PodRequests(o, resourcehelper.PodResourcesOptions{}) {
			if !podinfo.ServedByClaim(o, name) {
				used[name] += amount(name, &q)
			}
		}
	}
	var out []insufficientResource
	if have, ok := allocatable[corev1.ResourcePods]; ok && int64(len(others))+1 > have.Value() {
		out = append(out, insufficientResource{corev1.ResourcePods, 1, int64(len(others)), have.Value()})
	}
	first := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}
	var rest []corev1.ResourceName // extended resources and huge pages, which a client wrote into the node's status
	for name := range want {
		if !slices.Contains(first, name) {
			rest = append(rest, name)
		}
	}
	slices.Sort(rest)
	for _, name := range append(first, rest...) {
		q, ok := want[name]
		have, known := allocatable[name]
		if !known && node != nil {
			have, known = node.Status.Allocatable[name]
		}
		if !ok || !known || q.IsZero() || podinfo.ServedByClaim(p, name) {
			continue
		}
		if r, c := amount(name, &q), amount(name, &have); r > c-used[name] {
			out = append(out, insufficientResource{name, r, used[name], c})
		}
	}
	return out
}

// podsToPreempt returns the pods to preempt so that p fits: none of the same importance as p, and of the others as few
// and as unimportant ones as possible. nil: p does not fit even without all of them.
func podsToPreempt(
	p *corev1.Pod, node *corev1.Node, allocatable corev1.ResourceList, others []*corev1.Pod,
) []*corev1.Pod {
	var stay, leave []*corev1.Pod
	for _, o := range others {
		if podinfo.Critical(o) && (p.Spec.Priority == nil || o.Spec.Priority == nil ||
			*o.Spec.Priority >= *p.Spec.Priority) {
			stay = append(stay, o)
		} else {
			leave = append(leave, o)
		}
	}
	if len(leave) == 0 || len(insufficientResources(p, node, allocatable, stay)) > 0 {
		return nil
	}
	// The most important pods are kept first.
	slices.SortStableFunc(leave, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(qosRank(b), qosRank(a)), cmp.Compare(priority(b), priority(a)),
			cmp.Compare(a.UID, b.UID))
	})
	var out []*corev1.Pod
	for _, o := range leave {
		if len(insufficientResources(p, node, allocatable, append(stay, o))) == 0 {
			stay = append(stay, o)
		} else {
			out = append(out, o)
		}
	}
	return out
}

func qosRank(p *corev1.Pod) int {
	switch podinfo.QOS(p) {
	case corev1.PodQOSGuaranteed:
		return 2
	case corev1.PodQOSBurstable:
		return 1
	}
	return 0
}

func priority(p *corev1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

// preemptLocked preempts pods so that the critical pod p fits; each channel is closed when one of them has terminated.
// If no preemption helps it returns the reason.
func (a *admission) preemptLocked(p *corev1.Pod, others []*corev1.Pod) (reason, message string, room []<-chan struct{}) {
	node := a.node.Node()
	allocatable := a.node.Allocatable()
	var leaving []<-chan struct{}
	for _, v := range podsToPreempt(p, node, allocatable, others) {
		worker := a.workers.find(string(v.UID))
		if worker == nil {
			continue
		}
		over := worker.Evict(decide.End{
			Phase:   corev1.PodFailed,
			Reason:  preempting,
			Message: preemptedMessage,
			Condition: &corev1.PodCondition{
				Type:    corev1.DisruptionTarget,
				Status:  corev1.ConditionTrue,
				Reason:  corev1.PodReasonTerminationByKubelet,
				Message: preemptedCondition,
			},
		})
		if over == nil {
			if over = worker.Leaving(); over != nil { // for another
				leaving = append(leaving, over)
			}
			continue
		}
		leaving = append(leaving, over)
		a.log.Info("pod preempted", "pod", podinfo.FullName(v), "for", podinfo.FullName(p))
		a.events.Event(&corev1.ObjectReference{
			APIVersion: "v1",
			Kind:       "Pod",
			Namespace:  v.Namespace,
			Name:       v.Name,
			UID:        v.UID,
		},
			corev1.EventTypeWarning, preempting, preemptedMessage)
	}
	if len(leaving) == 0 {
		var need strings.Builder
		for _, l := range insufficientResources(p, node, allocatable, others) {
			fmt.Fprintf(&need, "(res: %s, q: %d), ", l.name, l.requested+l.used-l.capacity)
		}
		reason, message = reject("UnexpectedAdmissionError",
			"Unexpected error while attempting to recover from admission failure: preemption: "+
				"error finding a set of pods to preempt: no set of running pods found to reclaim resources: [%s]",
			need.String())
		return reason, message, nil
	}
	return "", "", leaving
}
