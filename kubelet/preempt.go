// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"keelson/kubelet/pod"
	"keelson/kubelet/podinfo"
)

// What the status and the events of a pod say that had to leave for one that the node needs.
const (
	preempting         = "Preempting"
	preemptedMessage   = "Preempted in order to admit critical pod"
	preemptedCondition = "Pod was preempted by Kubelet to accommodate a critical pod."
)

// lack is a resource of which a pod wants more than is left.
type lack struct {
	name                  corev1.ResourceName
	wants, used, capacity int64
}

// lacking is what a node has not enough of for p beside others. Resources that nobody has counted for the node are not looked at.
func lacking(p *corev1.Pod, n *corev1.Node, allocatable corev1.ResourceList, others []*corev1.Pod) []lack {
	want := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	used := map[corev1.ResourceName]int64{}
	for _, o := range others {
		for name, q := range resourcehelper.PodRequests(o, resourcehelper.PodResourcesOptions{}) {
			if !podinfo.ServedByClaim(o, name) {
				used[name] += amount(name, &q)
			}
		}
	}
	var out []lack
	if have, ok := allocatable[corev1.ResourcePods]; ok && int64(len(others))+1 > have.Value() {
		out = append(out, lack{corev1.ResourcePods, 1, int64(len(others)), have.Value()})
	}
	first := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}
	var rest []corev1.ResourceName // extended resources and huge pages, which somebody wrote into the node's status
	for name := range want {
		if !slices.Contains(first, name) {
			rest = append(rest, name)
		}
	}
	slices.Sort(rest)
	for _, name := range append(first, rest...) {
		q, ok := want[name]
		have, known := allocatable[name]
		if !known && n != nil {
			have, known = n.Status.Allocatable[name]
		}
		if !ok || !known || q.IsZero() || podinfo.ServedByClaim(p, name) {
			continue
		}
		if r, c := amount(name, &q), amount(name, &have); r > c-used[name] {
			out = append(out, lack{name, r, used[name], c})
		}
	}
	return out
}

// victims are the pods that leave so that p fits: none that matters as much as p, and of the others as few and as cheap ones as possible.
// nil: not even without all of them it would fit.
func victims(p *corev1.Pod, n *corev1.Node, allocatable corev1.ResourceList, others []*corev1.Pod) []*corev1.Pod {
	var stay, leave []*corev1.Pod
	for _, o := range others {
		if podinfo.Critical(o) && (p.Spec.Priority == nil || o.Spec.Priority == nil || *o.Spec.Priority >= *p.Spec.Priority) {
			stay = append(stay, o)
		} else {
			leave = append(leave, o)
		}
	}
	if len(leave) == 0 || len(lacking(p, n, allocatable, stay)) > 0 {
		return nil
	}
	// The dearest is asked first whether it may stay after all.
	slices.SortStableFunc(leave, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(worth(b), worth(a)), cmp.Compare(priority(b), priority(a)), cmp.Compare(a.UID, b.UID))
	})
	var out []*corev1.Pod
	for _, o := range leave {
		if len(lacking(p, n, allocatable, append(stay, o))) == 0 {
			stay = append(stay, o)
		} else {
			out = append(out, o)
		}
	}
	return out
}

func worth(p *corev1.Pod) int {
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

// preemptLocked ends pods so that p, which the node needs, has room; each channel is closed when one of them is gone. Without a way to make
// room it says so.
func (k *Kubelet) preemptLocked(p *corev1.Pod, others []*corev1.Pod) (reason, message string, room []<-chan struct{}) {
	n, allocatable := k.node.Node(), k.allocatable()
	var leaving []<-chan struct{}
	for _, v := range victims(p, n, allocatable, others) {
		e := k.workers[string(v.UID)]
		if e == nil {
			continue
		}
		over := e.worker.Evict(pod.End{Phase: corev1.PodFailed, Reason: preempting, Message: preemptedMessage, Condition: &corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: preemptedCondition,
		}})
		if over == nil {
			if over = e.worker.Leaving(); over != nil { // for another
				leaving = append(leaving, over)
			}
			continue
		}
		leaving = append(leaving, over)
		k.cfg.Log.Info("pod preempted", "pod", podinfo.FullName(v), "for", podinfo.FullName(p))
		k.events.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: v.Namespace, Name: v.Name, UID: v.UID},
			corev1.EventTypeWarning, preempting, preemptedMessage)
	}
	if len(leaving) == 0 {
		var need strings.Builder
		for _, l := range lacking(p, n, allocatable, others) {
			fmt.Fprintf(&need, "(res: %s, q: %d), ", l.name, l.wants+l.used-l.capacity)
		}
		reason, message = refuse("UnexpectedAdmissionError", "Unexpected error while attempting to recover from admission failure: preemption: "+
			"error finding a set of pods to preempt: no set of running pods found to reclaim resources: [%s]", need.String())
		return reason, message, nil
	}
	return "", "", leaving
}
