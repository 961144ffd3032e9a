// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"keelson/cluster"
)

const localClass = "local"

// setupLateVolumes creates local volumes on each node and a WaitForFirstConsumer claim per pod. The controller that
// binds claims runs with the scheduler.
func setupLateVolumes(ctx context.Context, r *testbed, l *workload) error {
	late := storagev1.VolumeBindingWaitForFirstConsumer
	if _, err := r.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: localClass},
		Provisioner:       volume.NotSupportedProvisioner,
		VolumeBindingMode: &late,
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	each := (l.before+l.pods)/l.nodes + 1 // one more, so that the last pods have a choice
	if err := parallel(ctx, each*l.nodes, func(ctx context.Context, i int) error {
		v, err := r.CoreV1().PersistentVolumes().Create(ctx, localVolume(i, l.nodes), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		v = v.DeepCopy()
		v.Status.Phase = corev1.VolumeAvailable // else the controller would set it during the measurement
		_, err = r.CoreV1().PersistentVolumes().UpdateStatus(ctx, v, metav1.UpdateOptions{})
		return err
	}); err != nil {
		return err
	}
	for prefix, n := range map[string]int{"first": l.before, measuredPods: l.pods} {
		if err := parallel(ctx, n, func(ctx context.Context, i int) error {
			_, err := r.CoreV1().PersistentVolumeClaims(metav1.NamespaceDefault).Create(ctx,
				lateClaim(fmt.Sprintf("%s-%d", prefix, i)), metav1.CreateOptions{})
			return err
		}); err != nil {
			return err
		}
	}
	return r.startPart(ctx, r.mem.Controllers(
		cluster.ControllerOptions{Controllers: []string{"persistentvolume-binder-controller"}}, r.mem.Direct))
}

func storageOf(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

func localVolume(i, nodes int) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("local-%d", i)},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:                      storageOf("1Gi"),
			StorageClassName:              localClass,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				Local: &corev1.LocalVolumeSource{Path: fmt.Sprintf("/mnt/disks/%d", i/nodes)},
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{
				Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{
						{
							Key:      corev1.LabelHostname,
							Operator: corev1.NodeSelectorOpIn,
							Values:   []string{nodeName(i % nodes)},
						},
					},
				}}},
			},
		},
	}
}

func lateClaim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: new(localClass),
			Resources:        corev1.VolumeResourceRequirements{Requests: storageOf("1Gi")},
		},
	}
}
