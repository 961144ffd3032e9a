// SPDX-License-Identifier: Apache-2.0

package clustertest_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/core/localvolume"
	"keelson/cluster/clustertest"
)

// TestPodOwnsClaim: a pod that owns its claim, as one of a StatefulSet does that was scaled away, goes when it is
// deleted in the foreground: it waits for the claim, and the claim does not wait for it.
func TestPodOwnsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := clustertest.Start(t, clustertest.Config{Controllers: []string{"*"}, Nodes: 1})
		ctx := t.Context()
		wait := storagev1.VolumeBindingWaitForFirstConsumer
		class := "local"
		if _, err := cluster.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
			ObjectMeta:        metav1.ObjectMeta{Name: class},
			Provisioner:       localvolume.Provisioner,
			VolumeBindingMode: &wait,
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		pods := cluster.CoreV1().Pods("default")
		claims := cluster.CoreV1().PersistentVolumeClaims("default")
		pod, err := pods.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "c", Image: "x"}},
				Volumes: []corev1.Volume{{
					Name: "v",
					VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "p"},
					},
				}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := claims.Create(ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{
				Name: "p",
				OwnerReferences: []metav1.OwnerReference{
					*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod")),
				},
			},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				StorageClassName: &class,
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				},
			},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if pod, err = pods.Get(ctx, "p", metav1.GetOptions{}); err != nil || pod.Status.Phase != corev1.PodRunning {
			t.Fatalf("got pod %+v, %v, want a running one", pod.Status, err)
		}
		foreground := metav1.DeletePropagationForeground
		if err := pods.Delete(ctx, "p", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if pod, err := pods.Get(ctx, "p", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the pod is there, with finalizers %v: %v", pod.Finalizers, err)
		}
		if claim, err := claims.Get(ctx, "p", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the claim is there, with finalizers %v: %v", claim.Finalizers, err)
		}
	})
}
