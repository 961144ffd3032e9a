// SPDX-License-Identifier: Apache-2.0

package vacprotection

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/controllers/controllertest"
	"keelson/controllers/internal/protect"
)

func class(name string, deleted bool, finalizers ...string) *storagev1.VolumeAttributesClass {
	c := &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers}}
	if deleted {
		now := metav1.Now()
		c.DeletionTimestamp = &now
	}
	return c
}

func TestProtection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const mine = "example.com/mine"
		gold := "gold"
		silver := "silver"
		cluster := controllertest.New(
			class(gold, true, mine, protect.Class), class(silver, true, mine, protect.Class), class("next", true, mine,
				protect.Class),
			class("free", true, mine, protect.Class), class("kept", false, mine, protect.Class), class("bare", false,
				mine),
			&corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{Name: "v"},
				Spec: corev1.PersistentVolumeSpec{
					VolumeAttributesClassName: &gold,
				},
			},
			&corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "c"},
				Spec:       corev1.PersistentVolumeClaimSpec{VolumeAttributesClassName: &silver},
				Status: corev1.PersistentVolumeClaimStatus{
					CurrentVolumeAttributesClassName: &silver,
					ModifyVolumeStatus: &corev1.ModifyVolumeStatus{
						TargetVolumeAttributesClassName: "next",
					},
				},
			},
		)
		cluster.Start(t, "volumeattributesclass-protection-controller", New)
		check := func(when, name string, want bool) {
			t.Helper()
			got, err := cluster.StorageV1().VolumeAttributesClasses().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || slices.Contains(got.Finalizers, protect.Class) != want ||
				!slices.Contains(got.Finalizers, mine) {
				t.Errorf("%s: %s has finalizers %v, %v; want protection %v", when, name, got.Finalizers, err, want)
			}
		}
		time.Sleep(time.Second)
		for name, want := range map[string]bool{
			gold:   true,
			silver: true,
			"next": true,
			"free": false,
			"kept": true,
			"bare": true,
		} {
			check("at first", name, want)
		}
		if err := cluster.CoreV1().PersistentVolumes().Delete(t.Context(), "v", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		claim, err := cluster.CoreV1().PersistentVolumeClaims("dev").Get(t.Context(), "c", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		claim.Status.ModifyVolumeStatus = nil
		if _, err := cluster.CoreV1().PersistentVolumeClaims("dev").UpdateStatus(t.Context(), claim,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		check("after its volume", gold, false)
		check("after the change", "next", false)
		check("still in force", silver, true)
	})
}
