// SPDX-License-Identifier: Apache-2.0

package localvolume

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/storage/volume"

	"keelson/api/apitest"
	"keelson/api/core/localvolume"
	"keelson/controllers/controllertest"
)

func node(name string) *corev1.Node {
	n := apitest.Node(name, apitest.NodeLabels(localvolume.NodeHas, "true", corev1.LabelHostname, name+".example.com"))
	n.Annotations = map[string]string{localvolume.NodeAnnotation: "/data/volumes"}
	n.Status.Capacity = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("10Gi")}
	return n
}

func testClaim(edit ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	class := ClassName
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "dev",
			Name:      "data",
			UID:       "u",
			Annotations: map[string]string{
				volume.AnnStorageProvisioner: localvolume.Provisioner,
				volume.AnnSelectedNode:       "n",
			},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}
	for _, e := range edit {
		e(claim)
	}
	return claim
}

func TestVolumeFor(t *testing.T) {
	class := classFor(ClassName, true)
	v, err := volumeFor(testClaim(), class, node("n"))
	if err != nil {
		t.Fatal(err)
	}
	if !localvolume.On(v, "n") || v.Name != "pvc-u" || v.Spec.Local.Path != "/data/volumes/pvc-u" ||
		v.Finalizers[0] != localvolume.Finalizer {
		t.Errorf("volume %+v", v)
	}
	if volume.CheckNodeAffinity(v, node("n").Labels) != nil || volume.CheckNodeAffinity(v, node("m").Labels) == nil {
		t.Errorf("affinity %v", v.Spec.NodeAffinity)
	}
	block := corev1.PersistentVolumeBlock
	for what, edit := range map[string]func(*corev1.PersistentVolumeClaim){
		"too large": func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("11Gi")
		},
		"shared":   func(c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes[0] = corev1.ReadWriteMany },
		"selector": func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} },
		"block":    func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block },
		"source":   func(c *corev1.PersistentVolumeClaim) { c.Spec.DataSource = &corev1.TypedLocalObjectReference{} },
	} {
		if v, err := volumeFor(testClaim(edit), class, node("n")); err == nil {
			t.Errorf("%s: got %+v", what, v)
		}
	}
	bare := node("n")
	bare.Labels = nil
	if _, err := volumeFor(testClaim(), class, bare); err == nil {
		t.Error("a node without local volumes got one")
	}
}

func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(node("n"), testClaim())
		cluster.Start(t, "local-volume-provisioner", New)
		settle := func() {
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		settle()
		class, err := cluster.StorageV1().StorageClasses().Get(t.Context(), ClassName, metav1.GetOptions{})
		if err != nil || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer ||
			class.Annotations["storageclass.kubernetes.io/is-default-class"] != "true" {
			t.Fatalf("class %+v %v", class, err)
		}
		// The claim was there before the class.
		claims := cluster.CoreV1().PersistentVolumeClaims("dev")
		volumes := cluster.CoreV1().PersistentVolumes()
		pv, err := volumes.Get(t.Context(), "pvc-u", metav1.GetOptions{})
		if err != nil {
			t.Fatalf("%v; events %s", err, strings.Join(cluster.EventsSeen(), "\n"))
		}
		// It grows with its claim.
		pv.Status.Phase = corev1.VolumeBound
		if _, err := volumes.UpdateStatus(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		claim, _ := claims.Get(t.Context(), "data", metav1.GetOptions{})
		claim.Spec.VolumeName = pv.Name
		claim.Status.Phase = corev1.ClaimBound
		claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("3Gi")
		if _, err := claims.Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		claim, _ = claims.Get(t.Context(), "data", metav1.GetOptions{})
		pv, _ = volumes.Get(t.Context(), "pvc-u", metav1.GetOptions{})
		if claim.Status.Capacity.Storage().String() != "3Gi" || pv.Spec.Capacity.Storage().String() != "3Gi" {
			t.Errorf("the claim has %s, the volume %s", claim.Status.Capacity.Storage(), pv.Spec.Capacity.Storage())
		}
		// Released, but the claim is there: the controller that set the phase had an old cache.
		pv.Status.Phase = corev1.VolumeReleased
		if _, err := volumes.UpdateStatus(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		if _, err := volumes.Get(t.Context(), "pvc-u", metav1.GetOptions{}); err != nil {
			t.Fatalf("the volume of a claim that is there: %v", err)
		}
		if err := claims.Delete(t.Context(), "data", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		pv, _ = volumes.Get(t.Context(), "pvc-u", metav1.GetOptions{})
		pv.Labels["changed"] = "yes"
		if _, err := volumes.Update(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		if _, err := volumes.Get(t.Context(), "pvc-u", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the claim is gone, the volume is there: %v", err)
		}
		for _, a := range cluster.Fake.Actions() {
			if d, ok := a.(clienttesting.DeleteActionImpl); ok && d.GetResource().Resource == "persistentvolumes" {
				if p := d.DeleteOptions.Preconditions; p == nil || p.UID == nil || p.ResourceVersion == nil {
					t.Errorf("deleted with %+v, want only what was read", p)
				}
			}
		}
	})
}

// TestNodeGone: no kubelet is left to remove the directory.
func TestNodeGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pv, err := volumeFor(testClaim(), classFor(ClassName, true), node("gone"))
		if err != nil {
			t.Fatal(err)
		}
		now := metav1.Now()
		pv.DeletionTimestamp = &now
		pv.Status.Phase = corev1.VolumeReleased
		pv.Finalizers = append(pv.Finalizers, "example.com/other")
		c := controllertest.New(pv)
		c.Start(t, "local-volume-provisioner", New)
		time.Sleep(time.Minute)
		synctest.Wait()
		got, err := c.CoreV1().PersistentVolumes().Get(t.Context(), pv.Name, metav1.GetOptions{})
		if err != nil || len(got.Finalizers) != 1 {
			t.Errorf("finalizers %v, %v", got.Finalizers, err)
		}
	})
}
