// SPDX-License-Identifier: Apache-2.0

package podgroupprotection

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/scheduling"
	"keelson/controllers/controllertest"
)

const mine = "example.com/mine"

func group(name string, deleted bool) *schedulingv1beta1.PodGroup {
	g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{
		Namespace:  "dev",
		Name:       name,
		Finalizers: []string{mine, scheduling.PodGroupProtection},
	}}
	if deleted {
		now := metav1.Now()
		g.DeletionTimestamp = &now
	}
	return g
}

func member(name, of string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: name},
		Status:     corev1.PodStatus{Phase: phase},
		Spec:       corev1.PodSpec{SchedulingGroup: &corev1.PodSchedulingGroup{PodGroupName: &of}},
	}
}

func TestProtection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(
			group("used", true), group("ends", true), group("done", true), group("empty", true), group("kept", false),
			member("a", "used", corev1.PodRunning), member("b", "ends", corev1.PodPending), member("c", "done",
				corev1.PodSucceeded), member("d", "kept", corev1.PodFailed),
		)
		cluster.Start(t, "podgroup-protection-controller", New)
		check := func(when, name string, want bool) {
			t.Helper()
			got, err := cluster.SchedulingV1beta1().PodGroups("dev").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || slices.Contains(got.Finalizers, scheduling.PodGroupProtection) != want ||
				!slices.Contains(got.Finalizers, mine) {
				t.Errorf("%s: %s has finalizers %v, %v; want protection %v", when, name, got.Finalizers, err, want)
			}
		}
		time.Sleep(time.Second)
		for name, want := range map[string]bool{
			"used":  true,
			"ends":  true,
			"done":  false,
			"empty": false,
			"kept":  true,
		} {
			check("at first", name, want)
		}
		if err := cluster.CoreV1().Pods("dev").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := cluster.CoreV1().Pods("dev").UpdateStatus(t.Context(), member("b", "ends", corev1.PodFailed),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		check("after its pod", "used", false)
		check("after its pod has failed", "ends", false)
	})
}
