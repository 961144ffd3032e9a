// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func list(cpu string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
}

// TestFillAndViolations: what is filled in is within the bounds of the range that it comes from; what a pod gives
// itself may not be.
func TestFillAndViolations(t *testing.T) {
	lr := &corev1.LimitRange{Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
		{
			Type:           corev1.LimitTypeContainer,
			DefaultRequest: list("1"),
			Default:        list("2"),
			Max:            list("2"),
		},
		{
			Type: corev1.LimitTypePersistentVolumeClaim,
			Min:  corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		},
	}}}
	for _, tt := range []struct {
		gives corev1.ResourceRequirements
		fills bool
		want  string // request and limit, then what is wrong
	}{
		{corev1.ResourceRequirements{}, true, "1 2 []"},
		{corev1.ResourceRequirements{Limits: list("1500m")}, false, "1500m 1500m []"},
		{corev1.ResourceRequirements{Requests: list("500m")}, true, "500m 2 []"},
		{
			corev1.ResourceRequirements{Limits: list("3")},
			false,
			"3 3 [maximum cpu usage per Container is 2, but limit is 3]",
		},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: tt.gives}}}}
		fills := Fill(pod, lr)
		r := pod.Spec.Containers[0].Resources
		if got := fmt.Sprint(r.Requests.Cpu(), " ", r.Limits.Cpu(), " ", Violations(pod, lr)); fills != tt.fills ||
			got != tt.want {
			t.Errorf("%v: filled %v, %s; want %v, %s", tt.gives, fills, got, tt.fills, tt.want)
		}
	}
	if errs := Violations(&corev1.PersistentVolumeClaim{}, lr); len(errs) != 1 {
		t.Errorf("a claim that gives no size: %v", errs)
	}
	if errs := Violations(&corev1.Service{}, lr); errs != nil {
		t.Errorf("a service: %v", errs)
	}
}
