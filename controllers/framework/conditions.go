// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AnyCondition is a condition type of any kind. A new one needs a line here and one in fieldsOf.
type AnyCondition interface {
	appsv1.DaemonSetCondition | appsv1.DeploymentCondition | appsv1.ReplicaSetCondition | appsv1.StatefulSetCondition |
		autoscalingv2.HorizontalPodAutoscalerCondition | batchv1.JobCondition |
		corev1.NamespaceCondition | corev1.NodeCondition | corev1.PersistentVolumeClaimCondition | corev1.PodCondition |
		corev1.ReplicationControllerCondition | metav1.Condition
}

// conditionFields are the fields that all conditions have; since is the condition's lastTransitionTime.
type conditionFields struct {
	kind, status string
	since        *metav1.Time
}

// fieldsOf reads the fields through a pointer to an AnyCondition.
func fieldsOf(c any) conditionFields {
	switch c := c.(type) {
	case *appsv1.DaemonSetCondition:
		return conditionFields{string(c.Type), string(c.Status), &c.LastTransitionTime}
	case *appsv1.DeploymentCondition:
		return conditionFields{string(c.Type), string(c.Status), &c.LastTransitionTime}
	case *appsv1.ReplicaSetCondition:
		return conditionFields{string(c.Type), string(c.Status), &c.LastTransitionTime}
	case *appsv1.StatefulSetCondition:
		return conditionFields{string(c.Type), string(c.Status), &c.LastTransitionTime}
	case *autoscalingv2.HorizontalPodAutoscalerCondition:
		return conditionFields{string(c.Type), string(c.Status), &c.LastTransitionTime}
	case *batchv1.JobCondition:
		return conditionFields{string(c.Type), string(c.Status), &c.LastTransitionTime}
	case *corev1.NamespaceCondition:
		return conditionFields{string(c.Type), string(c.Status), &c.LastTransitionTime}
	case *corev1.NodeCondition:
		return conditionFields{string(c.Type), string(c.Status), &c.LastTransitionTime}
	case *corev1.PersistentVolumeClaimCondition:
		return conditionFields{string(c.Type), string(c.Status), &c.LastTransitionTime}
	case *corev1.PodCondition:
		return conditionFields{string(c.Type), string(c.Status), &c.LastTransitionTime}
	case *corev1.ReplicationControllerCondition:
		return conditionFields{string(c.Type), string(c.Status), &c.LastTransitionTime}
	case *metav1.Condition:
		return conditionFields{c.Type, string(c.Status), &c.LastTransitionTime}
	}
	panic("framework: a condition that factsOf does not know") // the type constraint lets none through
}

// ConditionOf returns the condition of a type, nil if there is none. It is part of conds: do not modify it.
func ConditionOf[C AnyCondition, T ~string](conds []C, t T) *C {
	for i := range conds {
		if fieldsOf(&conds[i]).kind == string(t) {
			return &conds[i]
		}
	}
	return nil
}

// WithCondition returns conds with c in place of the condition of that type, or at the end. If the status is unchanged,
// lastTransitionTime is too. conds is not modified; if c changes nothing, conds itself is returned.
func WithCondition[C AnyCondition](conds []C, c C) []C {
	facts := fieldsOf(&c)
	i := slices.IndexFunc(conds, func(o C) bool { return fieldsOf(&o).kind == facts.kind })
	if i < 0 {
		return append(slices.Clip(conds), c)
	}
	if old := fieldsOf(&conds[i]); old.status == facts.status {
		*facts.since = *old.since
	}
	if equality.Semantic.DeepEqual(conds[i], c) {
		return conds
	}
	conds = slices.Clone(conds)
	conds[i] = c
	return conds
}

// WithoutCondition returns conds without the condition of a type. conds is not modified.
func WithoutCondition[C AnyCondition, T ~string](conds []C, t T) []C {
	is := func(c C) bool { return fieldsOf(&c).kind == string(t) }
	if !slices.ContainsFunc(conds, is) {
		return conds
	}
	return slices.DeleteFunc(slices.Clone(conds), is)
}
