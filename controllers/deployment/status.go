// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/controllers/framework"
)

// Reasons of the conditions Progressing and Available, as kubectl rollout status reads them.
const (
	setUpdated         = "ReplicaSetUpdated"
	setCreateError     = "ReplicaSetCreateError"
	newSetCreated      = "NewReplicaSetCreated"
	foundNewSet        = "FoundNewReplicaSet"
	newSetAvailable    = "NewReplicaSetAvailable"
	timedOut           = "ProgressDeadlineExceeded"
	paused             = "DeploymentPaused"
	resumed            = "DeploymentResumed"
	minimumAvailable   = "MinimumReplicasAvailable"
	minimumUnavailable = "MinimumReplicasUnavailable"
)

// setCondition sets a condition. If status and reason are equal, it stays unchanged, because its times show when the
// rollout reached this reason.
func setCondition(conds []appsv1.DeploymentCondition, c appsv1.DeploymentCondition) []appsv1.DeploymentCondition {
	if old := framework.ConditionOf(conds, c.Type); old != nil && old.Status == c.Status && old.Reason == c.Reason {
		return conds
	}
	return framework.WithCondition(conds, c)
}

func newCondition(
	now time.Time, t appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason, message string,
) appsv1.DeploymentCondition {
	at := metav1.NewTime(now)
	return appsv1.DeploymentCondition{
		Type:               t,
		Status:             status,
		Reason:             reason,
		Message:            message,
		LastUpdateTime:     at,
		LastTransitionTime: at,
	}
}

func (p *plan) setCondition(
	s snapshot, t appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason, message string,
) {
	p.conditions = setCondition(p.conditions, newCondition(s.now, t, status, reason, message))
}

// setPausedCondition stops the progress deadline while a rollout is paused.
func (p *plan) setPausedCondition(s snapshot) {
	c := framework.ConditionOf(p.conditions, appsv1.DeploymentProgressing)
	if s.d.Spec.ProgressDeadlineSeconds == nil || c != nil && c.Reason == timedOut {
		return
	}
	switch noted := c != nil && c.Reason == paused; {
	case s.d.Spec.Paused && !noted:
		p.setCondition(s, appsv1.DeploymentProgressing, corev1.ConditionUnknown, paused, "Deployment is paused")
	case !s.d.Spec.Paused && noted:
		p.setCondition(s, appsv1.DeploymentProgressing, corev1.ConditionUnknown, resumed, "Deployment is resumed")
	}
}

func hasDeadline(d *appsv1.Deployment) bool {
	return d.Spec.ProgressDeadlineSeconds != nil && *d.Spec.ProgressDeadlineSeconds != maxInt32
}

func deadline(d *appsv1.Deployment) time.Duration {
	return time.Duration(*d.Spec.ProgressDeadlineSeconds) * time.Second
}

// isComplete reports whether all pods are new and available, and the status is of the latest spec.
func isComplete(d *appsv1.Deployment, st *appsv1.DeploymentStatus) bool {
	n := desiredReplicas(d)
	return st.UpdatedReplicas == n && st.Replicas == n && st.AvailableReplicas == n &&
		st.ObservedGeneration >= d.Generation
}

// isProgressing reports whether st shows progress compared with the Deployment's status.
func isProgressing(d *appsv1.Deployment, st *appsv1.DeploymentStatus) bool {
	was := &d.Status
	return st.UpdatedReplicas > was.UpdatedReplicas ||
		st.Replicas-st.UpdatedReplicas < was.Replicas-was.UpdatedReplicas ||
		st.ReadyReplicas > was.ReadyReplicas || st.AvailableReplicas > was.AvailableReplicas
}

// timedOutProgressing reports whether there was no progress for longer than the deadline.
func timedOutProgressing(d *appsv1.Deployment, c *appsv1.DeploymentCondition, now time.Time) bool {
	switch {
	case c == nil || c.Reason == newSetAvailable:
		return false
	case c.Reason == timedOut:
		return true
	}
	return c.LastUpdateTime.Add(deadline(d)).Before(now)
}

// status is the Deployment's status after the plan; current and sets are as stored now. next is when to check the
// progress again, 0: never.
func status(
	snap snapshot, steps plan, current *appsv1.ReplicaSet, sets []*appsv1.ReplicaSet,
) (st appsv1.DeploymentStatus, next time.Duration) {
	st = appsv1.DeploymentStatus{
		ObservedGeneration:  snap.d.Generation,
		Replicas:            actual(sets),
		AvailableReplicas:   available(sets),
		ReadyReplicas:       sum(sets, func(rs *appsv1.ReplicaSet) int32 { return rs.Status.ReadyReplicas }),
		TerminatingReplicas: terminating(sets),
		CollisionCount:      snap.d.Status.CollisionCount,
		Conditions:          slices.Clone(steps.conditions),
	}
	st.UnavailableReplicas = max(0, specified(sets)-st.AvailableReplicas)
	if current != nil {
		st.UpdatedReplicas = current.Status.Replicas
	}
	c := newCondition(snap.now, appsv1.DeploymentAvailable, corev1.ConditionFalse, minimumUnavailable,
		"Deployment does not have minimum availability.")
	if _, unavailable := limits(snap.d); st.AvailableReplicas >= desiredReplicas(snap.d)-unavailable {
		c.Status = corev1.ConditionTrue
		c.Reason = minimumAvailable
		c.Message = "Deployment has minimum availability."
	}
	st.Conditions = setCondition(st.Conditions, c)
	if !steps.rollout {
		return st, 0
	}
	if !hasDeadline(snap.d) {
		st.Conditions = framework.WithoutCondition(st.Conditions, appsv1.DeploymentProgressing)
	}
	setProgressing(snap, &st, current)
	if f := replicaFailureOf(current, sets); f != nil {
		st.Conditions = setCondition(st.Conditions, *f)
	} else {
		st.Conditions = framework.WithoutCondition(st.Conditions, appsv1.DeploymentReplicaFailure)
	}
	return st, nextCheck(snap, &st)
}

// terminating sums up the sets' counts; nil if one does not report it.
func terminating(sets []*appsv1.ReplicaSet) *int32 {
	n := int32(0)
	for _, rs := range sets {
		if rs.Status.TerminatingReplicas == nil {
			return nil
		}
		n += *rs.Status.TerminatingReplicas
	}
	return &n
}

// setProgressing sets the condition Progressing of an unfinished rollout.
func setProgressing(snap snapshot, st *appsv1.DeploymentStatus, current *appsv1.ReplicaSet) {
	condition := framework.ConditionOf(st.Conditions, appsv1.DeploymentProgressing)
	if !hasDeadline(snap.d) || st.Replicas == st.UpdatedReplicas &&
		condition != nil && condition.Reason == newSetAvailable {
		return
	}
	who := fmt.Sprintf("Deployment %q", snap.d.Name)
	if current != nil {
		who = fmt.Sprintf("ReplicaSet %q", current.Name)
	}
	switch {
	case isComplete(snap.d, st):
		st.Conditions = setCondition(st.Conditions, newCondition(snap.now, appsv1.DeploymentProgressing,
			corev1.ConditionTrue, newSetAvailable, who+" has successfully progressed."))
	case isProgressing(snap.d, st):
		// Every progress updates lastUpdateTime, from which the deadline counts, even if nothing else changes.
		st.Conditions = framework.WithCondition(st.Conditions,
			newCondition(snap.now, appsv1.DeploymentProgressing, corev1.ConditionTrue, setUpdated,
				who+" is progressing."))
	case timedOutProgressing(snap.d, condition, snap.now):
		st.Conditions = setCondition(st.Conditions, newCondition(snap.now, appsv1.DeploymentProgressing,
			corev1.ConditionFalse, timedOut, who+" has timed out progressing."))
	}
}

// replicaFailureOf is the ReplicaFailure condition of the current set, else of another.
func replicaFailureOf(current *appsv1.ReplicaSet, sets []*appsv1.ReplicaSet) *appsv1.DeploymentCondition {
	if current != nil {
		sets = append([]*appsv1.ReplicaSet{current}, sets...)
	}
	for _, rs := range sets {
		for _, c := range rs.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure {
				return &appsv1.DeploymentCondition{
					Type:               appsv1.DeploymentReplicaFailure,
					Status:             c.Status,
					Reason:             c.Reason,
					Message:            c.Message,
					LastTransitionTime: c.LastTransitionTime,
					LastUpdateTime:     c.LastTransitionTime,
				}
			}
		}
	}
	return nil
}

// nextCheck is when the progress deadline ends.
func nextCheck(s snapshot, st *appsv1.DeploymentStatus) time.Duration {
	c := framework.ConditionOf(st.Conditions, appsv1.DeploymentProgressing)
	if !hasDeadline(s.d) || c == nil || c.Reason == timedOut || c.Reason == newSetAvailable || isComplete(s.d, st) {
		return 0
	}
	// Stored times are rounded down to seconds.
	return max(0, c.LastUpdateTime.Add(deadline(s.d)).Sub(s.now)) + time.Second
}
