// SPDX-License-Identifier: Apache-2.0

package resourcequota

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/retry"

	"keelson/api/apitest"
	"keelson/api/quota"
	"keelson/client/clienttest"
	"keelson/controllers/controllertest"
)

func amounts(kv ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(kv); i += 2 {
		l[corev1.ResourceName(kv[i])] = resource.MustParse(kv[i+1])
	}
	return l
}

func pod(name, cpu string) *corev1.Pod {
	return apitest.Pod("dev/"+name, apitest.Containers("main"), apitest.Requests("cpu", cpu))
}

func newQuota(name string, hard corev1.ResourceList, scopes ...corev1.ResourceQuotaScope) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{
			Name:      name,
			Namespace: "dev",
		},
		Spec: corev1.ResourceQuotaSpec{Hard: hard, Scopes: scopes},
	}
}

func wantUsed(t *testing.T, c *controllertest.Cluster, name string, want corev1.ResourceList) {
	t.Helper()
	q, err := c.CoreV1().ResourceQuotas("dev").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !quota.Equal(q.Status.Used, want) || !quota.Equal(q.Status.Hard, q.Spec.Hard) {
		t.Errorf("%s: used %s of %s, want %s of %s", name, quota.Text(q.Status.Used), quota.Text(q.Status.Hard),
			quota.Text(want), quota.Text(q.Spec.Hard))
	}
}

func TestUsageFollowsObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "dev"},
			Spec: corev1.ServiceSpec{
				Type:  corev1.ServiceTypeNodePort,
				Ports: make([]corev1.ServicePort, 2),
			},
		}
		gold := "gold"
		claim := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "dev"},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &gold,
				Resources:        corev1.VolumeResourceRequirements{Requests: amounts("storage", "5Gi")},
			},
		}
		elsewhere := pod("a", "8")
		elsewhere.Namespace = "other"
		cluster := controllertest.New(pod("a", "1"), pod("b", ""), elsewhere, node, claim,
			newQuota("all", amounts("pods", "5", "cpu", "4", "services", "3", "services.nodeports", "5",
				"services.loadbalancers", "1",
				"gold.storageclass.storage.k8s.io/requests.storage", "10Gi",
				"silver.storageclass.storage.k8s.io/requests.storage", "10Gi")),
			newQuota("best", amounts("pods", "5"), corev1.ResourceQuotaScopeBestEffort),
			newQuota("rest", amounts("pods", "5"), corev1.ResourceQuotaScopeNotBestEffort))
		cluster.Start(t, "resourcequota-controller", New)
		time.Sleep(time.Second)
		all := func(pods, cpu string) corev1.ResourceList {
			return amounts("pods", pods, "cpu", cpu, "services", "1", "services.nodeports", "2",
				"services.loadbalancers", "0",
				"gold.storageclass.storage.k8s.io/requests.storage", "5Gi",
				"silver.storageclass.storage.k8s.io/requests.storage", "0")
		}
		wantUsed(t, cluster, "all", all("2", "1"))
		wantUsed(t, cluster, "best", amounts("pods", "1"))
		wantUsed(t, cluster, "rest", amounts("pods", "1"))

		if err := cluster.CoreV1().Pods("dev").Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		done := pod("a", "1")
		done.Status.Phase = corev1.PodSucceeded
		if _, err := cluster.CoreV1().Pods("dev").UpdateStatus(t.Context(), done, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		wantUsed(t, cluster, "all", all("0", "0"))
		wantUsed(t, cluster, "best", amounts("pods", "0"))

		q, err := cluster.CoreV1().ResourceQuotas("dev").Get(t.Context(), "best", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		q.Spec.Hard = amounts("pods", "7")
		if _, err := cluster.CoreV1().ResourceQuotas("dev").Update(t.Context(), q, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		wantUsed(t, cluster, "best", amounts("pods", "0"))
	})
}

// TestScopeLeft: a claim of volumes is in the scope of the attributes class that it asks for and of the one that its
// volume has. When it leaves a scope, the quota's usage goes down though the claim is as large as before.
func TestScopeLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gold := "gold"
		silver := "silver"
		of := func(class string) *corev1.ResourceQuota {
			q := newQuota(class, amounts("persistentvolumeclaims", "1", "requests.storage", "5Gi"))
			q.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{{
				ScopeName: corev1.ResourceQuotaScopeVolumeAttributesClass,
				Operator:  corev1.ScopeSelectorOpIn,
				Values:    []string{class},
			}}}
			return q
		}
		claim := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "dev"},
			Spec: corev1.PersistentVolumeClaimSpec{
				VolumeAttributesClassName: &silver,
				Resources:                 corev1.VolumeResourceRequirements{Requests: amounts("storage", "1Gi")},
			},
			Status: corev1.PersistentVolumeClaimStatus{CurrentVolumeAttributesClassName: &gold},
		}
		cluster := controllertest.New(claim, of(gold), of(silver))
		cluster.Start(t, "resourcequota-controller", New)
		time.Sleep(time.Second)
		one := amounts("persistentvolumeclaims", "1", "requests.storage", "1Gi")
		none := amounts("persistentvolumeclaims", "0", "requests.storage", "0")
		wantUsed(t, cluster, gold, one)
		wantUsed(t, cluster, silver, one)

		claim.Status.CurrentVolumeAttributesClassName = &silver
		if _, err := cluster.CoreV1().PersistentVolumeClaims("dev").UpdateStatus(t.Context(), claim,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		wantUsed(t, cluster, gold, none)
		wantUsed(t, cluster, silver, one)
	})
}

// TestChargedButNotThereYet: admission charges before the object is stored, so a recalculation must not lower usage
// that has just increased.
func TestChargedButNotThereYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(pod("a", ""), newQuota("q", amounts("pods", "5")))
		cluster.Start(t, "resourcequota-controller", New)
		time.Sleep(2 * time.Second)
		wantUsed(t, cluster, "q", amounts("pods", "1"))
		if err := cluster.CoreV1().Pods("dev").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		for i := range 10 { // admission charges a pod every 10 ms, each stored 5 ms later
			err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
				q, err := cluster.CoreV1().ResourceQuotas("dev").Get(t.Context(), "q", metav1.GetOptions{})
				if err != nil {
					return err
				}
				n := q.Status.Used[corev1.ResourcePods]
				if n.Value() < int64(i) { // the pods created so far
					t.Fatalf("pod %d: used was lowered to %s", i, n.String())
				}
				q.Status.Used = amounts("pods", fmt.Sprint(n.Value()+1))
				_, err = cluster.CoreV1().ResourceQuotas("dev").UpdateStatus(t.Context(), q, metav1.UpdateOptions{})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Millisecond)
			if _, err := cluster.CoreV1().Pods("dev").Create(t.Context(), pod(fmt.Sprint("p", i), ""),
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		wantUsed(t, cluster, "q", amounts("pods", "10"))
	})
}

// TestChargesOnTheirWay: a recalculation keeps the charge of an object until the object is in the cache, even if that
// takes long. A charge without an object is subtracted after maxWriteDelay.
func TestChargesOnTheirWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(pod("a", ""), newQuota("q", amounts("pods", "50")))
		cluster.Start(t, "resourcequota-controller", New)
		time.Sleep(10 * time.Millisecond)
		charge := func(n string) {
			t.Helper()
			q, err := cluster.CoreV1().ResourceQuotas("dev").Get(t.Context(), "q", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			q.Status.Used = amounts("pods", n)
			if _, err := cluster.CoreV1().ResourceQuotas("dev").UpdateStatus(t.Context(), q,
				metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		charge("6") // five pods will be created
		time.Sleep(20 * time.Second)
		wantUsed(t, cluster, "q", amounts("pods", "6"))
		if err := cluster.CoreV1().Pods("dev").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		wantUsed(t, cluster, "q", amounts("pods", "5"))
		for i := range 3 {
			if _, err := cluster.CoreV1().Pods("dev").Create(t.Context(), pod(fmt.Sprint("p", i), ""),
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(20 * time.Second)
		wantUsed(t, cluster, "q", amounts("pods", "5"))
		time.Sleep(time.Minute)
		wantUsed(t, cluster, "q", amounts("pods", "3"))
	})
}

// TestShortLives: pods that are created and deleted between two recalculations leave no charge.
func TestShortLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(newQuota("q", amounts("pods", "50")))
		cluster.Start(t, "resourcequota-controller", New)
		time.Sleep(time.Second)
		q, err := cluster.CoreV1().ResourceQuotas("dev").Get(t.Context(), "q", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		q.Status.Used = amounts("pods", "20")
		if _, err := cluster.CoreV1().ResourceQuotas("dev").UpdateStatus(t.Context(), q,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			if _, err := cluster.CoreV1().Pods("dev").Create(t.Context(), pod(fmt.Sprint("p", i), ""),
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := cluster.CoreV1().Pods("dev").Delete(t.Context(), fmt.Sprint("p", i),
				metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		wantUsed(t, cluster, "q", amounts("pods", "0"))
	})
}

// TestGraceEnds: a pod whose grace period has ended is not charged, and its usage is subtracted exactly once.
func TestGraceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ending := pod("ending", "")
		end := metav1.NewTime(time.Now().Add(10 * time.Second))
		grace := int64(30)
		ending.DeletionTimestamp = &end
		ending.DeletionGracePeriodSeconds = &grace
		ending.Finalizers = []string{"example.com/hold"}
		c := controllertest.New(ending, pod("a", ""), newQuota("q", amounts("pods", "5")))
		c.Start(t, "resourcequota-controller", New)
		time.Sleep(30 * time.Second)
		wantUsed(t, c, "q", amounts("pods", "2"))
		time.Sleep(15 * time.Second)
		wantUsed(t, c, "q", amounts("pods", "1"))
		if err := c.Fake.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "dev", "ending"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		wantUsed(t, c, "q", amounts("pods", "1"))
	})
}

// TestUncountable: a resource that cannot be listed keeps its previous usage and does not delay other quotas. After its
// definition was deleted, it is not listed any more.
func TestUncountable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		meta := clienttest.NewMetadata()
		refusal := errors.New("conversion webhook does not answer")
		lists := 0
		meta.PrependReactor("list", "widgets", func(clienttesting.Action) (bool, runtime.Object, error) {
			lists++
			return true, nil, refusal
		})
		broken := newQuota("broken", amounts("pods", "5", "count/widgets.example.com", "3"))
		broken.Status = corev1.ResourceQuotaStatus{
			Hard: broken.Spec.Hard,
			Used: amounts("pods", "0", "count/widgets.example.com", "2"),
		}
		cluster := controllertest.New(broken, newQuota("plain", amounts("pods", "5")))
		cluster.Metadata = meta
		cluster.Fake.Resources = []*metav1.APIResourceList{{
			GroupVersion: "example.com/v1",
			APIResources: []metav1.APIResource{
				{
					Name:       "widgets",
					Kind:       "Widget",
					Namespaced: true,
					Verbs:      metav1.Verbs{"list", "watch"},
				},
			},
		}}
		cluster.Start(t, "resourcequota-controller", New)
		time.Sleep(5 * time.Second)
		if _, err := cluster.CoreV1().Pods("dev").Create(t.Context(), pod("a", ""),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		wantUsed(t, cluster, "plain", amounts("pods", "1"))
		wantUsed(t, cluster, "broken", amounts("pods", "1", "count/widgets.example.com", "2"))
		if lists > 40 {
			t.Errorf("%d lists in five minutes", lists)
		}

		refusal = apierrors.NewNotFound(schema.GroupResource{Group: "example.com", Resource: "widgets"}, "")
		time.Sleep(5 * time.Minute)
		cluster.Fake.Resources = nil
		time.Sleep(5 * time.Minute)
		lists = 0
		time.Sleep(time.Hour)
		if lists > 0 {
			t.Errorf("%d lists of a resource that is no longer served", lists)
		}
	})
}

// TestDevicesAndExtendedResources: pods that ask for extended resources and claims of devices use one quota together. A
// pod's own claim is not counted twice, and a class that begins to serve a resource is noticed.
func TestDevicesAndExtendedResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const implicit, explicit = "requests.deviceclass.resource.kubernetes.io/gpu", "requests.gpu.test/card"
		asks := pod("asks", "")
		asks.UID = "1"
		asks.Spec.Containers[0].Resources.Requests = amounts("gpu.test/card", "2")
		claim := func(name string, n int64) *resourcev1.ResourceClaim {
			return &resourcev1.ResourceClaim{
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "dev", ResourceVersion: "1"},
				Spec: resourcev1.ResourceClaimSpec{
					Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
						Name:    "r",
						Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", Count: n},
					}}},
				},
			}
		}
		own := claim("own", 2)
		own.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
		own.OwnerReferences = []metav1.OwnerReference{
			*metav1.NewControllerRef(asks, corev1.SchemeGroupVersion.WithKind("Pod")),
		}
		class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
		cluster := controllertest.New(asks, own, claim("free", 3), class,
			newQuota("i", amounts(implicit, "9")), newQuota("e", amounts(explicit, "9")))
		cluster.Fake.Resources = append(cluster.Fake.Resources, &metav1.APIResourceList{
			GroupVersion: "resource.k8s.io/v1",
			APIResources: []metav1.APIResource{{
				Name:       "resourceclaims",
				Namespaced: true,
				Kind:       "ResourceClaim",
				Verbs:      metav1.Verbs{"list", "watch"},
			}},
		})
		cluster.Start(t, "resourcequota-controller", New)
		time.Sleep(time.Second)
		wantUsed(t, cluster, "i", amounts(implicit, "5"))
		wantUsed(t, cluster, "e", amounts(explicit, "2"))

		name := "gpu.test/card"
		served := class.DeepCopy()
		served.Spec.ExtendedResourceName = &name
		if _, err := cluster.ResourceV1().DeviceClasses().Update(t.Context(), served, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		wantUsed(t, cluster, "e", amounts(explicit, "5")) // the pod's 2 and the 3 of the free claim
		if err := cluster.ResourceV1().ResourceClaims("dev").Delete(t.Context(), "free", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		wantUsed(t, cluster, "i", amounts(implicit, "2"))
		wantUsed(t, cluster, "e", amounts(explicit, "2"))
	})
}
