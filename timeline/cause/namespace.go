// SPDX-License-Identifier: Apache-2.0

package cause

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Remaining is an object in a namespace that is being deleted.
type Remaining struct {
	Resource, Name string
	Finalizers     []string
}

// Namespace explains what blocks the deletion of a namespace. left are the objects in it that could be listed.
func Namespace(namespace *corev1.Namespace, left []Remaining) *Answer {
	answer := of("namespace", namespace)
	answer.State = string(namespace.Status.Phase)
	if namespace.DeletionTimestamp == nil && namespace.Status.Phase != corev1.NamespaceTerminating {
		answer.because("it is in use; it is not being deleted")
		return answer
	}
	for _, c := range namespace.Status.Conditions {
		if c.Status == corev1.ConditionTrue && strings.Contains(string(c.Type), "Failure") {
			answer.because("%s", answer.quote(string(c.Type)+" "+c.Reason, c.Message))
			if c.Type == corev1.NamespaceDeletionDiscoveryFailure {
				answer.do("repair or delete the APIService that does not answer (`kubectl get apiservices`)")
			}
		}
	}
	held := map[string][]string{}
	var order, leaving, pods []string
	for _, r := range left {
		name := r.Resource + "/" + r.Name
		switch {
		case len(r.Finalizers) > 0:
		case r.Resource == "pods": // the others wait for them
			pods = append(pods, r.Name)
		default:
			leaving = append(leaving, name)
		}
		for _, f := range r.Finalizers {
			if held[f] == nil {
				order = append(order, f)
			}
			held[f] = append(held[f], name)
		}
	}
	slices.Sort(order)
	for _, f := range order {
		answer.because("the finalizer %s holds %s", f, some(held[f]))
	}
	if len(pods) > 0 {
		answer.because("its pods have not ended yet: %s", some(pods))
		answer.do("`keelson why -n %s pod/%s` says what a pod waits for", namespace.Name, pods[0])
	}
	if len(leaving) > 0 {
		answer.because("without a finalizer, on their way out: %s", some(leaving))
	}
	if len(order) > 0 {
		answer.do("see why the controllers of these finalizers do not take them away; where one is gone for good, " +
			"remove " +
			"its finalizer from metadata.finalizers by hand")
	}
	if len(left) == 0 {
		conditions(answer, namespace)
	}
	for _, f := range namespace.Spec.Finalizers {
		if f != corev1.FinalizerKubernetes {
			answer.because("its spec.finalizers has %s, which its owner takes away by namespaces/finalize", f)
		}
	}
	if len(namespace.Finalizers) > 0 {
		answer.because("the namespace itself has the finalizers %s", some(namespace.Finalizers))
	}
	if len(answer.Why) == 0 {
		answer.because("nothing that can be listed is left in it: its controller is about to end it, or does not run")
	}
	return answer
}

// conditions adds the conditions of the namespace controller, for when nothing could be listed.
func conditions(a *Answer, n *corev1.Namespace) {
	for _, c := range n.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == corev1.NamespaceContentRemaining ||
			c.Type == corev1.NamespaceFinalizersRemaining) {
			a.because("its controller found: %s", a.quote("", c.Message))
		}
	}
}
