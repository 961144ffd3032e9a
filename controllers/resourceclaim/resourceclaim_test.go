// SPDX-License-Identifier: Apache-2.0

package resourceclaim

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"keelson/api/apitest"
	"keelson/client"
	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
)

func pod(name string, entries ...corev1.PodResourceClaim) *corev1.Pod {
	return apitest.Pod("dev/"+name, func(p *corev1.Pod) { p.Spec.ResourceClaims = entries })
}

func from(entry, template string) corev1.PodResourceClaim {
	return corev1.PodResourceClaim{Name: entry, ResourceClaimTemplateName: &template}
}

func named(entry, claim string) corev1.PodResourceClaim {
	return corev1.PodResourceClaim{Name: entry, ResourceClaimName: &claim}
}

func template(name string) *resourcev1.ResourceClaimTemplate {
	return &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: name},
		Spec: resourcev1.ResourceClaimTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{"team": "vision"},
				Annotations: map[string]string{
					"note": "x",
				},
			},
			Spec: resourcev1.ResourceClaimSpec{
				Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
					{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}},
				}},
			},
		},
	}
}

// allocated is a claim with devices, used by these pods.
func allocated(name string, users ...*corev1.Pod) *resourcev1.ResourceClaim {
	resourceClaim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace:  "dev",
		Name:       name,
		UID:        types.UID("claim-" + name),
		Finalizers: []string{resourcev1.Finalizer},
	}}
	resourceClaim.Status.Allocation = &resourcev1.AllocationResult{}
	for _, u := range users {
		resourceClaim.Status.ReservedFor = append(
			resourceClaim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
				Resource: "pods",
				Name:     u.Name,
				UID:      u.UID,
			})
	}
	return resourceClaim
}

func claims(t *testing.T, c *controllertest.Cluster) map[string]*resourcev1.ResourceClaim {
	t.Helper()
	list, err := c.ResourceV1().ResourceClaims("dev").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*resourcev1.ResourceClaim{}
	for i := range list.Items {
		out[list.Items[i].Name] = &list.Items[i]
	}
	return out
}

func settle() {
	synctest.Wait()
	time.Sleep(time.Second)
	synctest.Wait()
}

func get(t *testing.T, c *controllertest.Cluster, name string) *corev1.Pod {
	t.Helper()
	p, err := c.CoreV1().Pods("dev").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// newController is New with a count of its own.
func newController(env *framework.Env) (framework.Controller, error) {
	return New(env, client.NewClaims())
}

// TestGenerated: a claim is made from the template, named in the pod's status, recreated when it is deleted, and goes
// with the pod's end.
func TestGenerated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(pod("a", from("gpu", "gpus"), named("own", "mine"), from("late", "later")),
			template("gpus"), pod("plain"))
		cluster.Start(t, "resource-claim-controller", newController)
		settle()
		p := get(t, cluster, "a")
		have := claims(t, cluster)
		if len(have) != 1 || len(p.Status.ResourceClaimStatuses) != 1 {
			t.Fatalf("claims %v, status %v", have, p.Status.ResourceClaimStatuses)
		}
		first := *p.Status.ResourceClaimStatuses[0].ResourceClaimName
		made := have[first]
		if made == nil || p.Status.ResourceClaimStatuses[0].Name != "gpu" || !metav1.IsControlledBy(made, p) ||
			made.Labels["team"] != "vision" ||
			made.Annotations["note"] != "x" || made.Annotations["resource.kubernetes.io/pod-claim-name"] != "gpu" ||
			made.GenerateName != "a-gpu-" ||
			made.Spec.Devices.Requests[0].Exactly.DeviceClassName != "gpu" ||
			made.OwnerReferences[0].BlockOwnerDeletion != nil {
			t.Errorf("made %+v, status %+v", made, p.Status.ResourceClaimStatuses)
		}
		if said := strings.Join(cluster.EventsSeen(), "\n"); !strings.Contains(said,
			`FailedResourceClaimCreation PodResourceClaim late: resource claim template "later": not found`) {
			t.Errorf("said %s", said)
		}
		if _, err := cluster.ResourceV1().ResourceClaimTemplates("dev").Create(t.Context(), template("later"),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := cluster.ResourceV1().ResourceClaims("dev").Delete(t.Context(), first,
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		p = get(t, cluster, "a")
		if have = claims(t, cluster); len(have) != 2 || len(p.Status.ResourceClaimStatuses) != 2 || have[first] != nil {
			t.Fatalf("after a deletion and the second template: %v, %+v", have, p.Status.ResourceClaimStatuses)
		}
		for _, s := range p.Status.ResourceClaimStatuses {
			if have[*s.ResourceClaimName] == nil {
				t.Errorf("the status says that %s is %s", s.Name, *s.ResourceClaimName)
			}
		}
		p.Status.Phase = corev1.PodSucceeded
		if _, err := cluster.CoreV1().Pods("dev").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		if have = claims(t, cluster); len(have) != 0 {
			t.Errorf("the pod has ended and there are %v", have)
		}
	})
}

// TestOnce: a status that cannot be written does not get a second claim made.
func TestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(pod("a", from("gpu", "gpus")), template("gpus"))
		fails := 5
		c.Fake.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			fails--
			return fails >= 0, nil, apierrors.NewInternalError(errNoTemplate)
		})
		c.Start(t, "resource-claim-controller", newController)
		settle()
		if have := claims(t, c); len(have) != 1 || fails > 0 || len(get(t, c, "a").Status.ResourceClaimStatuses) != 1 {
			t.Errorf("%d claims, %d failures left", len(have), fails)
		}
	})
}

// TestNeverSeen: a claim that was deleted before the cache had it is made again.
func TestNeverSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(pod("a", from("gpu", "gpus")), template("gpus"))
		first := true
		cluster.Fake.PrependReactor("create", "resourceclaims", func(
			a clienttesting.Action,
		) (bool, runtime.Object, error) {
			create, ok := a.(clienttesting.CreateAction)
			if !ok || !first {
				return false, nil, nil
			}
			first = false
			made := create.GetObject().DeepCopyObject().(*resourcev1.ResourceClaim)
			made.Name = "gone"
			made.UID = "gone"
			return true, made, nil
		})
		cluster.Start(t, "resource-claim-controller", newController)
		settle()
		p := get(t, cluster, "a")
		p.Labels = map[string]string{"changed": "yes"}
		if _, err := cluster.CoreV1().Pods("dev").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		statuses := get(t, cluster, "a").Status.ResourceClaimStatuses
		if have := claims(t, cluster); len(have) != 1 || len(statuses) != 1 || have[*statuses[0].ResourceClaimName] == nil {
			t.Errorf("claims %v, status %v", have, statuses)
		}
	})
}

// TestExtendedResourcesOfEndedPod: the claim that the scheduler made for a pod's extended resources goes when the pod
// has ended, with its devices.
func TestExtendedResourcesOfEndedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := pod("a")
		runs.Spec.NodeName = "n"
		runs.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "x"}
		claim := allocated("x", runs)
		claim.OwnerReferences = []metav1.OwnerReference{
			*metav1.NewControllerRef(runs, corev1.SchemeGroupVersion.WithKind("Pod")),
		}
		c := controllertest.New(runs, claim)
		c.Start(t, "resource-claim-controller", newController)
		settle()
		if claims(t, c)["x"] == nil {
			t.Fatal("the claim of a running pod is gone")
		}
		ended := get(t, c, "a")
		ended.Status.Phase = corev1.PodSucceeded
		if _, err := c.CoreV1().Pods("dev").UpdateStatus(t.Context(), ended, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		if left := claims(t, c); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})
}

// TestGivenBack: reservations of pods that are gone, have ended, or were made again go; with the last one the devices;
// with a deleted claim the finalizer.
func TestGivenBack(t *testing.T) {
	runs := pod("runs", named("x", "x"))
	ended := pod("ended", named("x", "x"))
	runs.Spec.NodeName = "n"
	ended.Status.Phase = corev1.PodFailed
	again := pod("runs")
	again.UID = "another"
	deleted := allocated("deleted")
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	other := allocated("other", ended)
	other.Status.ReservedFor = append(other.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
		APIGroup: "example.com",
		Resource: "jobs",
		Name:     "j",
		UID:      "j",
	})
	for _, tt := range []struct {
		claim     *resourcev1.ResourceClaim
		users     int
		allocated bool
		finalizer bool
	}{
		{allocated("used", runs), 1, true, true},
		{allocated("half", runs, ended), 1, true, true},
		{allocated("ended", ended), 0, false, false},
		{allocated("gone", pod("absent")), 0, false, false},
		{allocated("again", again), 0, false, false},
		{allocated("fresh"), 0, true, true},
		{deleted, 0, false, false},
		{other, 1, true, true},
	} {
		t.Run(tt.claim.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := controllertest.New(runs.DeepCopy(), ended.DeepCopy(), tt.claim.DeepCopy())
				c.Start(t, "resource-claim-controller", newController)
				settle()
				got := claims(t, c)[tt.claim.Name]
				if got == nil {
					if tt.finalizer || tt.claim.DeletionTimestamp == nil {
						t.Error("it is gone")
					}
					return
				}
				if len(got.Status.ReservedFor) != tt.users || (got.Status.Allocation != nil) != tt.allocated ||
					(len(got.Finalizers) > 0) != tt.finalizer {
					t.Errorf("got %+v %v", got.Status, got.Finalizers)
				}
				if again := plan(got, got.Status.ReservedFor); again.status != nil || again.finish {
					t.Errorf("a second pass would do %+v", again)
				}
			})
		})
	}
}

// TestReserved: a pod that got its node without the scheduler gets its reservation, once the claim has devices.
func TestReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pod("p", named("x", "x"))
		p.Spec.NodeName = "n"
		c := controllertest.New(p, allocated("x"))
		c.Start(t, "resource-claim-controller", newController)
		settle()
		if got := claims(t, c)["x"].Status.ReservedFor; len(got) != 1 || got[0].UID != p.UID {
			t.Errorf("reserved for %v", got)
		}
		if err := c.CoreV1().Pods("dev").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		if got := claims(t, c)["x"]; len(got.Status.ReservedFor) != 0 || got.Status.Allocation != nil ||
			len(got.Finalizers) != 0 {
			t.Errorf("after the pod: %+v", got)
		}
	})
}

func TestBase(t *testing.T) {
	long := strings.Repeat("p", 200)
	for _, tt := range []struct{ pod, entry, want string }{
		{"web", "gpu", "web-gpu-"},
		{long, "gpu", strings.Repeat("p", 55) + "-"},
		{strings.Repeat("p", 54) + "." + strings.Repeat("p", 145), "gpu", strings.Repeat("p", 54) + "-"},
		{strings.Repeat("p", 58), strings.Repeat("e", 58), strings.Repeat("p", 28) + "-" + strings.Repeat("e", 28)},
	} {
		if got := nameBase(tt.pod, tt.entry); got != tt.want || len(got) > 57 {
			t.Errorf("base(%s, %s) = %s, want %s", tt.pod, tt.entry, got, tt.want)
		}
	}
}
