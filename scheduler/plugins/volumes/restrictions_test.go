// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/apitest"
	"keelson/scheduler/state"
)

// TestDiskInWords: the pod that holds a disk is named.
func TestDiskInWords(t *testing.T) {
	with := func(name string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
				VolumeSource: corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{
					PDName: "data",
				}},
			}}},
		}
	}
	n := state.NewNodeInfo(apitest.Node("n"), state.NewPodInfo(with("holder")))
	pod := state.NewPodInfo(with("p"))
	if got, _, _ := (restrictionsFilter{disks: restrictedDisks(pod.Pod)}).Explain(pod, n,
		nil); got != "disk data used by ns/holder" {
		t.Errorf("got %q, want the holder", got)
	}
}
