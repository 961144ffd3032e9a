// SPDX-License-Identifier: Apache-2.0

package ephemeral

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/controllers/controllertest"
)

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: name},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
			Name: "scratch",
			VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
				VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
					ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
					Spec: corev1.PersistentVolumeClaimSpec{
						AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					},
				},
			}},
		}, {Name: "plain", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}},
	}
}

func TestClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(pod("a"), pod("b"),
			&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "b-scratch"}})
		cluster.Start(t, "ephemeral-volume-controller", New)
		synctest.Wait()
		time.Sleep(time.Second)
		api := cluster.CoreV1().PersistentVolumeClaims("dev")
		p, err := cluster.CoreV1().Pods("dev").Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := api.Get(t.Context(), "a-scratch", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !metav1.IsControlledBy(got, p) || got.Labels["app"] != "web" || len(got.Spec.AccessModes) != 1 {
			t.Errorf("the claim is %+v", got)
		}
		if said := strings.Join(cluster.EventsSeen(), "\n"); !strings.Contains(said,
			"Warning FailedBinding ephemeral volume scratch: PVC dev/b-scratch was not created for pod dev/b") {
			t.Errorf("another's claim is in the way: events\n%s", said)
		}
		// What is deleted under a pod is made again, and what was in the way is replaced.
		for _, name := range []string{"a-scratch", "b-scratch"} {
			if err := api.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		for _, name := range []string{"a-scratch", "b-scratch"} {
			if got, err := api.Get(t.Context(), name, metav1.GetOptions{}); err != nil ||
				metav1.GetControllerOf(got) == nil {
				t.Errorf("%s: %v %v", name, got, err)
			}
		}
		if _, err := api.Get(t.Context(), "a-plain", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("an emptyDir got a claim: %v", err)
		}
	})
}
