// SPDX-License-Identifier: Apache-2.0

package expand

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/controllers/controllertest"
	"keelson/lib/waittest"
)

// bound returns a claim of a size that asks for another, and its volume.
func bound(
	name, has, asks string, source corev1.PersistentVolumeSource,
) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	size := func(s string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(s)}
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: "pv-" + name,
			Resources:  corev1.VolumeResourceRequirements{Requests: size(asks)},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: size(has)},
	}
	claim.UID = types.UID("uid-" + name)
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:               size("1Gi"),
			PersistentVolumeSource: source,
			ClaimRef:               &corev1.ObjectReference{Namespace: "dev", Name: name, UID: claim.UID},
		},
	}
	return claim, volume
}

// TestGrownLocalVolumes: the new size of a file system that a kubelet has grown is written to the PersistentVolume of a
// local volume, and to no other. A claim that requests more waits for an external resizer.
func TestGrownLocalVolumes(t *testing.T) {
	local := corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/dev/sdx"}}
	other := corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}}
	grown, grownVolume := bound("grown", "2Gi", "2Gi", local)
	hostPath, hostPathVolume := bound("hostpath", "2Gi", "2Gi", other)
	waits, waitsVolume := bound("waits", "1Gi", "2Gi", local)
	cluster := controllertest.New(grown, grownVolume, hostPath, hostPathVolume, waits, waitsVolume)
	cluster.Start(t, "expand-controller", New)
	capacity := func(name string) string {
		v, err := cluster.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return v.Spec.Capacity.Storage().String()
	}
	waittest.Until(t, "the local volume has the size of its claim", func() bool {
		return capacity("pv-grown") == "2Gi"
	})
	var events []string
	waittest.Until(t, "an event about the claim that waits", func() bool {
		events = append(events, cluster.EventsSeen()...)
		return slices.Contains(events, "Normal ExternalExpanding waiting for an external controller to expand this PVC")
	})
	for _, name := range []string{"pv-hostpath", "pv-waits"} {
		if got := capacity(name); got != "1Gi" {
			t.Errorf("%s has %s, want 1Gi", name, got)
		}
	}
}
