// SPDX-License-Identifier: Apache-2.0

package replicationcontroller

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// toSet converts rc to a ReplicaSet. The result shares rc's maps and slices: never modify it.
func toSet(rc *corev1.ReplicationController) *appsv1.ReplicaSet {
	set := &appsv1.ReplicaSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: gvk.Version, Kind: gvk.Kind},
		ObjectMeta: rc.ObjectMeta,
		Spec: appsv1.ReplicaSetSpec{
			Replicas:        rc.Spec.Replicas,
			MinReadySeconds: rc.Spec.MinReadySeconds,
			Selector:        &metav1.LabelSelector{MatchLabels: rc.Spec.Selector},
		},
		Status: appsv1.ReplicaSetStatus{
			Replicas:             rc.Status.Replicas,
			FullyLabeledReplicas: rc.Status.FullyLabeledReplicas,
			ReadyReplicas:        rc.Status.ReadyReplicas,
			AvailableReplicas:    rc.Status.AvailableReplicas,
			ObservedGeneration:   rc.Status.ObservedGeneration,
		},
	}
	if rc.Spec.Template != nil {
		set.Spec.Template = *rc.Spec.Template
	}
	for _, c := range rc.Status.Conditions {
		set.Status.Conditions = append(set.Status.Conditions, appsv1.ReplicaSetCondition{
			Type:               appsv1.ReplicaSetConditionType(c.Type),
			Status:             c.Status,
			LastTransitionTime: c.LastTransitionTime,
			Reason:             c.Reason,
			Message:            c.Message,
		})
	}
	return set
}

// fromSet converts set back to its ReplicationController, with status st. It has no terminating count.
func fromSet(set *appsv1.ReplicaSet, st appsv1.ReplicaSetStatus) *corev1.ReplicationController {
	rc := &corev1.ReplicationController{
		ObjectMeta: set.ObjectMeta,
		Spec: corev1.ReplicationControllerSpec{
			Replicas:        set.Spec.Replicas,
			MinReadySeconds: set.Spec.MinReadySeconds,
			Selector:        set.Spec.Selector.MatchLabels,
			Template:        &set.Spec.Template,
		},
		Status: corev1.ReplicationControllerStatus{
			Replicas:             st.Replicas,
			FullyLabeledReplicas: st.FullyLabeledReplicas,
			ReadyReplicas:        st.ReadyReplicas,
			AvailableReplicas:    st.AvailableReplicas,
			ObservedGeneration:   st.ObservedGeneration,
		},
	}
	for _, c := range st.Conditions {
		rc.Status.Conditions = append(rc.Status.Conditions, corev1.ReplicationControllerCondition{
			Type:               corev1.ReplicationControllerConditionType(c.Type),
			Status:             c.Status,
			LastTransitionTime: c.LastTransitionTime,
			Reason:             c.Reason,
			Message:            c.Message,
		})
	}
	return rc
}
