// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	podkind "keelson/api/core/pod"
	"keelson/controllers/framework"
)

// burst is the maximum number of pods created or deleted in one pass.
const burst = 500

// snapshot is the input of a decision. Nothing in it is modified.
type snapshot struct {
	set *appsv1.ReplicaSet
	// pods are the pods that the set controls and selects, in any state.
	pods []*corev1.Pod
	// related returns the active pods of all sets with the same controller; it is only called when pods must be
	// deleted.
	related func() []*corev1.Pod
	// expectationsSatisfied is false while creations or deletions are expected: then nothing may be created or deleted.
	expectationsSatisfied bool
	// countsTerminating: the kind's status has a number of terminating pods.
	countsTerminating bool
	now               time.Time
}

// plan is the result of a pass.
type plan struct {
	active      []*corev1.Pod
	terminating int
	create      int
	remove      []*corev1.Pod
}

// decide counts the set's pods and returns how many to create or which to delete.
func decide(snap snapshot) plan {
	var steps plan
	for _, pod := range snap.pods {
		switch {
		case podkind.Active(pod):
			steps.active = append(steps.active, pod)
		case !podkind.Terminal(pod):
			steps.terminating++
		}
	}
	if !snap.expectationsSatisfied || snap.set.DeletionTimestamp != nil {
		return steps
	}
	switch diff := len(steps.active) - desiredReplicas(snap.set); {
	case diff < 0:
		steps.create = min(-diff, burst)
	case diff > 0:
		n := min(diff, burst)
		if n < len(steps.active) {
			steps.remove = podsToDelete(steps.active, snap.related(), n, snap.now)
		} else {
			steps.remove = steps.active
		}
	}
	return steps
}

// desiredReplicas is spec.replicas, which the API server has defaulted.
func desiredReplicas(set *appsv1.ReplicaSet) int {
	if set.Spec.Replicas == nil {
		return 1
	}
	return int(*set.Spec.Replicas)
}

// status is the set's status from the plan's pods; failure is the error of the creations or deletions, or nil. next is
// when a ready pod becomes available; 0: none will.
func status(snap snapshot, steps plan, failure error) (st appsv1.ReplicaSetStatus, next time.Duration) {
	snap.set.Status.DeepCopyInto(&st)
	st.ObservedGeneration = snap.set.Generation
	st.Replicas = int32(len(steps.active))
	st.FullyLabeledReplicas = 0
	st.ReadyReplicas = 0
	st.AvailableReplicas = 0
	if snap.countsTerminating {
		terminating := int32(steps.terminating)
		st.TerminatingReplicas = &terminating
	}
	template := labels.SelectorFromSet(snap.set.Spec.Template.Labels)
	minReady := time.Duration(snap.set.Spec.MinReadySeconds) * time.Second
	for _, pod := range steps.active {
		if template.Matches(labels.Set(pod.Labels)) {
			st.FullyLabeledReplicas++
		}
		if !podkind.Ready(pod) {
			continue
		}
		st.ReadyReplicas++
		ok, wait := podkind.Available(pod, minReady, snap.now)
		if ok {
			st.AvailableReplicas++
		} else if wait > 0 && (next == 0 || wait < next) {
			next = wait
		}
	}
	st.Conditions = failureCondition(st.Conditions, snap, steps, failure)
	return st, next
}

func failureCondition(
	conds []appsv1.ReplicaSetCondition, snap snapshot, p plan, failure error,
) []appsv1.ReplicaSetCondition {
	had := framework.ConditionOf(conds, appsv1.ReplicaSetReplicaFailure) != nil
	switch {
	case failure == nil && had && snap.expectationsSatisfied:
		return framework.WithoutCondition(conds, appsv1.ReplicaSetReplicaFailure)
	case failure == nil || had:
		return conds
	}
	reason := "FailedCreate"
	if len(p.active) > desiredReplicas(snap.set) {
		reason = "FailedDelete"
	}
	return framework.WithCondition(conds, appsv1.ReplicaSetCondition{
		Type:               appsv1.ReplicaSetReplicaFailure,
		Status:             corev1.ConditionTrue,
		Reason:             reason,
		Message:            failure.Error(),
		LastTransitionTime: metav1.NewTime(snap.now),
	})
}
