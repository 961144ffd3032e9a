// SPDX-License-Identifier: Apache-2.0

package pvprotection

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/controllers/controllertest"
	"keelson/controllers/internal/protect"
)

func volume(
	name string, phase corev1.PersistentVolumePhase, deleted bool, finalizers ...string,
) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:       name,
			Finalizers: finalizers,
		},
		Status: corev1.PersistentVolumeStatus{Phase: phase},
	}
	if deleted {
		now := metav1.Now()
		pv.DeletionTimestamp = &now
	}
	return pv
}

func TestProtection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const mine = "example.com/mine"
		cluster := controllertest.New(
			volume("bound", corev1.VolumeBound, true, mine, protect.Volume),
			volume("free", corev1.VolumeAvailable, true, mine, protect.Volume),
			volume("released", corev1.VolumeReleased, true, mine, protect.Volume),
			volume("kept", corev1.VolumeAvailable, false, mine, protect.Volume),
			volume("bare", corev1.VolumeAvailable, false, mine),
		)
		cluster.Start(t, "pv-protection-controller", New)
		check := func(when, name string, want bool) {
			t.Helper()
			got, err := cluster.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || slices.Contains(got.Finalizers, protect.Volume) != want ||
				!slices.Contains(got.Finalizers, mine) {
				t.Errorf("%s: %s has finalizers %v, %v; want protection %v", when, name, got.Finalizers, err, want)
			}
		}
		time.Sleep(time.Second)
		for name, want := range map[string]bool{
			"bound":    true,
			"free":     false,
			"released": false,
			"kept":     true,
			"bare":     true,
		} {
			check("at first", name, want)
		}
		v, err := cluster.CoreV1().PersistentVolumes().Get(t.Context(), "bound", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		v.Status.Phase = corev1.VolumeReleased
		if _, err := cluster.CoreV1().PersistentVolumes().UpdateStatus(t.Context(), v,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		check("after its claim", "bound", false)
	})
}
