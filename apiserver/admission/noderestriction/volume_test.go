// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/core/localvolume"
	"keelson/apiserver/admission"
)

func TestOwnVolume(t *testing.T) {
	volume := func(edit ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		now := metav1.Now()
		pv := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{
				Name:              "v",
				Labels:            map[string]string{localvolume.NodeLabel: "node-1"},
				DeletionTimestamp: &now,
				Annotations:       map[string]string{"pv.kubernetes.io/provisioned-by": localvolume.Provisioner},
				Finalizers:        []string{localvolume.Finalizer, "kubernetes.io/pv-protection"},
			},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
				Local: &corev1.LocalVolumeSource{Path: "/v"},
			}},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeReleased},
		}
		for _, e := range edit {
			e(pv)
		}
		return pv
	}
	free := func(v *corev1.PersistentVolume) { v.Finalizers = v.Finalizers[1:] }
	for _, c := range []struct {
		what     string
		old, new *corev1.PersistentVolume
		node     string
		ok       bool
	}{
		{"lets go", volume(), volume(free), "node-1", true},
		{"another's", volume(), volume(free), "node-2", false},
		{
			"takes the other finalizer", volume(), volume(func(v *corev1.PersistentVolume) { v.Finalizers = nil }),
			"node-1", false,
		},
		{
			"moves it", volume(), volume(free, func(v *corev1.PersistentVolume) { v.Spec.Local.Path = "/etc" }),
			"node-1", false,
		},
		{"relabels it", volume(), volume(free, func(v *corev1.PersistentVolume) { v.Labels = nil }), "node-1", false},
		{
			"one that stays", volume(func(v *corev1.PersistentVolume) { v.DeletionTimestamp = nil }),
			volume(free, func(v *corev1.PersistentVolume) { v.DeletionTimestamp = nil }), "node-1", false,
		},
		{
			"one that is bound", volume(func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound }),
			volume(free, func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound }), "node-1", false,
		},
	} {
		c.new.DeletionTimestamp = c.old.DeletionTimestamp
		c.new.Kind = "PersistentVolume" // as decoded from a patch
		err := ownVolume(&admission.Request{Operation: admission.Update, Object: c.new, OldObject: c.old}, c.node)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	if err := ownVolume(&admission.Request{Operation: admission.Create, Object: volume()}, "node-1"); err == nil {
		t.Error("a node made a volume")
	}
}
