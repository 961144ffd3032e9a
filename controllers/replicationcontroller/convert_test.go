// SPDX-License-Identifier: Apache-2.0

package replicationcontroller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestConvertThereAndBack(t *testing.T) {
	two := int32(2)
	rc := &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{
			Name:            "rc",
			Namespace:       "default",
			UID:             "u",
			ResourceVersion: "7",
		},
		Spec: corev1.ReplicationControllerSpec{
			Replicas:        &two,
			MinReadySeconds: 3,
			Selector:        map[string]string{"a": "b"},
			Template: &corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
			},
		},
		Status: corev1.ReplicationControllerStatus{
			Replicas:             2,
			FullyLabeledReplicas: 2,
			ReadyReplicas:        1,
			AvailableReplicas:    1,
			ObservedGeneration:   4,
			Conditions: []corev1.ReplicationControllerCondition{
				{
					Type:   corev1.ReplicationControllerReplicaFailure,
					Status: corev1.ConditionTrue,
					Reason: "FailedCreate",
				},
			},
		},
	}
	set := toSet(rc)
	if set.Kind != "ReplicationController" {
		t.Errorf("kind: got %q", set.Kind)
	}
	if diff := cmp.Diff(rc, fromSet(set, set.Status)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
