// SPDX-License-Identifier: Apache-2.0

package persistentvolume

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-helpers/storage/volume"

	"keelson/controllers/controllertest"
)

func claimOf(t *testing.T, c *controllertest.Cluster, name string) *corev1.PersistentVolumeClaim {
	t.Helper()
	got, err := c.CoreV1().PersistentVolumeClaims("dev").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func volumeOf(t *testing.T, c *controllertest.Cluster, name string) *corev1.PersistentVolume {
	t.Helper()
	got, err := c.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func settle() {
	time.Sleep(time.Minute)
	synctest.Wait()
}

// bound fails the test unless claim and volume belong to each other in all four places.
func bound(t *testing.T, c *controllertest.Cluster, claim, vol string) {
	t.Helper()
	p := claimOf(t, c, claim)
	v := volumeOf(t, c, vol)
	ref := v.Spec.ClaimRef
	if p.Spec.VolumeName != vol || p.Status.Phase != corev1.ClaimBound || v.Status.Phase != corev1.VolumeBound ||
		ref == nil || ref.Name != claim || ref.UID != p.UID {
		t.Errorf("claim %s: volume %q, %s; volume %s: %s, claim %+v", claim, p.Spec.VolumeName, p.Status.Phase, vol,
			v.Status.Phase, ref)
	}
	if p.Annotations[volume.AnnBindCompleted] == "" {
		t.Errorf("claim %s: annotations %v", claim, p.Annotations)
	}
	if got := p.Status.Capacity[corev1.ResourceStorage]; got.Cmp(v.Spec.Capacity[corev1.ResourceStorage]) != 0 {
		t.Errorf("claim %s has capacity %s", claim, got.String())
	}
}

func TestSmallestVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		many := testVolume("rom", "1Gi", func(v *corev1.PersistentVolume) {
			v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
		})
		cluster := controllertest.New(
			testVolume("large", "5Gi"), testVolume("medium", "2Gi"), testVolume("small", "1Mi"), many,
			testVolume("golden", "1Gi", func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "gold" }),
			testVolume("mine", "9Gi", claimedBy("reserved", "")),
			testClaim("a"), testClaim("b"), testClaim("c"), testClaim("reserved"),
			testClaim("labelled", func(c *corev1.PersistentVolumeClaim) {
				c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "ssd"}}
			}),
		)
		cluster.Start(t, "persistent-volume-binder", New)
		settle()
		bound(t, cluster, "reserved", "mine")
		got := map[string]int{}
		for _, name := range []string{"a", "b", "c"} {
			got[claimOf(t, cluster, name).Spec.VolumeName]++
		}
		if got["medium"] != 1 || got["large"] != 1 || got[""] != 1 {
			t.Errorf("three claims took %v", got)
		}
		if v := claimOf(t, cluster, "labelled").Spec.VolumeName; v != "" {
			t.Errorf("a claim with a selector took %s", v)
		}
		// What fits later is taken then.
		ssd := testVolume("ssd", "3Gi")
		ssd.Labels = map[string]string{"disk": "ssd"}
		if _, err := cluster.CoreV1().PersistentVolumes().Create(t.Context(), ssd, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		if v := claimOf(t, cluster, "labelled").Spec.VolumeName + claimOf(t, cluster, "a").Spec.VolumeName + claimOf(t,
			cluster,
			"b").Spec.VolumeName + claimOf(t, cluster, "c").Spec.VolumeName; !strings.Contains(v, "ssd") {
			t.Errorf("no claim took the new volume: %s", v)
		}
	})
}

// TestCrash stops a binding after each of its writes; a new controller finishes it.
func TestCrash(t *testing.T) {
	for writes := range 4 {
		synctest.Test(t, func(t *testing.T) {
			cluster := controllertest.New(testVolume("v", "1Gi"), testVolume("w", "1Gi"), testClaim("c"))
			var left atomic.Int64
			left.Store(int64(writes))
			var down atomic.Bool
			down.Store(true)
			cluster.Fake.PrependReactor("update", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				if down.Load() && left.Add(-1) < 0 {
					return true, nil, errors.New("crashed")
				}
				return false, nil, nil
			})
			cluster.Start(t, "persistent-volume-binder", New)
			settle()
			down.Store(false)
			cluster.Start(t, "persistent-volume-binder", New)
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			bound(t, cluster, "c", "v")
			if w := volumeOf(t, cluster, "w"); w.Spec.ClaimRef != nil || w.Status.Phase != corev1.VolumeAvailable {
				t.Errorf("after %d writes: the other volume is %s for %v", writes, w.Status.Phase, w.Spec.ClaimRef)
			}
		})
	}
}

func TestLifeOfAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(testVolume("v", "1Gi"), testClaim("c"))
		cluster.Start(t, "persistent-volume-binder", New)
		settle()
		bound(t, cluster, "c", "v")
		if err := cluster.CoreV1().PersistentVolumeClaims("dev").Delete(t.Context(), "c",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		if v := volumeOf(t, cluster, "v"); v.Status.Phase != corev1.VolumeReleased || v.Spec.ClaimRef == nil {
			t.Errorf("the claim is gone: the volume is %s for %v", v.Status.Phase, v.Spec.ClaimRef)
		}
		// A new claim of that name does not get the data of the old one.
		again := testClaim("c", func(c *corev1.PersistentVolumeClaim) { c.UID = "second" })
		if _, err := cluster.CoreV1().PersistentVolumeClaims("dev").Create(t.Context(), again,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		if got := claimOf(t, cluster, "c"); got.Spec.VolumeName != "" || got.Status.Phase != corev1.ClaimPending {
			t.Errorf("the new claim has %q, %s", got.Spec.VolumeName, got.Status.Phase)
		}
		// An administrator gives it free.
		v := volumeOf(t, cluster, "v")
		v.Spec.ClaimRef = nil
		if _, err := cluster.CoreV1().PersistentVolumes().Update(t.Context(), v, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		bound(t, cluster, "c", "v")
		// And takes it away.
		if err := cluster.CoreV1().PersistentVolumes().Delete(t.Context(), "v", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		if got := claimOf(t, cluster, "c"); got.Status.Phase != corev1.ClaimLost {
			t.Errorf("the volume is gone: the claim is %s", got.Status.Phase)
		}
	})
}

func TestDefaultClassComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(testClaim("c"), testClaim("none", ofClass("")))
		cluster.Start(t, "persistent-volume-binder", New)
		settle()
		class := testClass("standard", "x.io/y", storagev1.VolumeBindingImmediate)
		class.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
		if _, err := cluster.StorageV1().StorageClasses().Create(t.Context(), class,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		got := claimOf(t, cluster, "c")
		if got.Spec.StorageClassName == nil || *got.Spec.StorageClassName != "standard" ||
			got.Annotations[volume.AnnStorageProvisioner] != "x.io/y" {
			t.Errorf("class %v, annotations %v", got.Spec.StorageClassName, got.Annotations)
		}
		if got := claimOf(t, cluster, "none"); *got.Spec.StorageClassName != "" {
			t.Errorf("a claim that wanted no class has %q", *got.Spec.StorageClassName)
		}
		events := strings.Join(cluster.EventsSeen(), "\n")
		if !strings.Contains(events, "Normal ExternalProvisioning Waiting for a volume") ||
			strings.Count(events, "FailedBinding") != 2 {
			t.Errorf("events:\n%s", events)
		}
	})
}

// TestPlacedPod: a claim is recreated when its pod already has a node: that pod is not scheduled again.
func TestPlacedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "p"},
			Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
				Name: "v",
				VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
					ClaimName: "c",
				}},
			}}},
		}
		cluster := controllertest.New(testClaim("c", ofClass("l")),
			testClass("l", "x.io/y", storagev1.VolumeBindingWaitForFirstConsumer), pod)
		cluster.Start(t, "persistent-volume-binder", New)
		settle()
		place := func(node string) string {
			p, err := cluster.CoreV1().Pods("dev").Get(t.Context(), "p", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			p.Spec.NodeName = node
			if _, err := cluster.CoreV1().Pods("dev").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			settle()
			return claimOf(t, cluster, "c").Annotations[volume.AnnSelectedNode]
		}
		if got := place("gone"); got != "" {
			t.Errorf("a pod on a node that is gone: node %q was selected", got)
		}
		if _, err := cluster.CoreV1().Nodes().Create(t.Context(),
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		if got := place("n"); got != "n" {
			t.Errorf("a pod on node n: node %q was selected", got)
		}
		if got := claimOf(t, cluster, "c").Annotations[volume.AnnStorageProvisioner]; got != "x.io/y" {
			t.Errorf("provisioner %q was asked", got)
		}
	})
}

// TestNewestForgets: a written object is dropped whether the informer receives it before or after the answer.
func TestNewestForgets(t *testing.T) {
	version := func(v string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "v", ResourceVersion: v}}
	}
	cached := version("1")
	n := newAssumeCache[*corev1.PersistentVolume](func(string) (any, bool, error) { return cached, true, nil })
	n.assume("v", version("2"))
	if got := n.latest("v", cached).ResourceVersion; got != "2" || len(n.keys()) != 1 {
		t.Errorf("before the informer: version %s, waiting for %v", got, n.keys())
	}
	cached = version("2")
	n.observed("v", cached)
	if len(n.keys()) != 0 {
		t.Errorf("after the informer: waiting for %v", n.keys())
	}
	cached = version("3")
	n.assume("v", version("3"))
	if len(n.keys()) != 0 {
		t.Errorf("the informer was first: waiting for %v", n.keys())
	}
}
