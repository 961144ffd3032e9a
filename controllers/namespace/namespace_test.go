// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"keelson/client/clienttest"
	"keelson/controllers/controllertest"
)

var (
	cmGVR     = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	leaseGVR  = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	withVerbs = metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "watch"}
)

func meta(gvk schema.GroupVersionKind, ns, name string, finalizers ...string) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Finalizers: finalizers}}
	o.SetGroupVersionKind(gvk)
	return o
}

// world has namespace "going" with a pod that ends when the test says so, a config map and a lease that can only be
// deleted singly.
func world(t *testing.T, objs ...runtime.Object) (*controllertest.Cluster, *metafake.FakeMetadataClient) {
	t.Helper()
	client := clienttest.NewMetadata(objs...)
	// The fake does not delete collections.
	client.PrependReactor("delete-collection", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		l, err := client.Tracker().List(a.GetResource(),
			schema.GroupVersionKind{Group: "fake-metadata-client-group", Version: "v1"}, a.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		for _, raw := range l.(*metav1.List).Items {
			o := raw.Object.(*metav1.PartialObjectMetadata)
			if len(o.Finalizers) == 0 {
				if err := client.Tracker().Delete(a.GetResource(), o.Namespace, o.Name); err != nil {
					return true, nil, err
				}
			}
		}
		return true, nil, nil
	})
	going := &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{
			Name:              "going",
			DeletionTimestamp: &metav1.Time{Time: time.Now()},
			Finalizers:        []string{"x/y"},
		},
		Spec:   corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
		Status: corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating},
	}
	cluster := controllertest.New(going, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "stays"}})
	cluster.Metadata = client
	cluster.Fake.Resources = []*metav1.APIResourceList{
		{
			GroupVersion: "v1",
			APIResources: []metav1.APIResource{
				{Name: "pods", Kind: "Pod", Namespaced: true, Verbs: withVerbs},
				{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: withVerbs},
				{Name: "nodes", Kind: "Node", Verbs: withVerbs},
				{Name: "bindings", Kind: "Binding", Namespaced: true, Verbs: metav1.Verbs{"create"}},
			},
		},
		{
			GroupVersion: "coordination.k8s.io/v1",
			APIResources: []metav1.APIResource{
				{
					Name:       "leases",
					Kind:       "Lease",
					Namespaced: true,
					Verbs:      metav1.Verbs{"delete", "list"},
				},
			},
		},
	}
	return cluster, client
}

func TestPodsGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		podGVK := corev1.SchemeGroupVersion.WithKind("Pod")
		cmGVK := corev1.SchemeGroupVersion.WithKind("ConfigMap")
		cluster, client := world(t, meta(podGVK, "going", "p", "test/hold"), meta(cmGVK, "going", "cm"),
			meta(cmGVK, "stays", "cm"),
			meta(leaseGVR.GroupVersion().WithKind("Lease"), "going", "l"))
		cluster.Start(t, "namespace-controller", New)
		time.Sleep(5 * time.Second)
		ns, err := cluster.CoreV1().Namespaces().Get(t.Context(), "going", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := map[corev1.NamespaceConditionType]string{}
		for _, cond := range ns.Status.Conditions {
			if cond.Status == corev1.ConditionTrue {
				got[cond.Type] = cond.Reason + ": " + cond.Message
			}
		}
		want := map[corev1.NamespaceConditionType]string{
			corev1.NamespaceContentRemaining: "SomeResourcesRemain: Some resources are remaining: pods. has 1 " +
				"resource instances",
			corev1.NamespaceFinalizersRemaining: "SomeFinalizersRemain: Some content in the namespace has finalizers " +
				"remaining: test/hold in 1 resource instances",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("conditions (-want +got):\n%s", diff)
		}
		if _, err := client.Tracker().Get(cmGVR, "going", "cm"); err != nil {
			t.Errorf("a config map went before the pods: %v", err)
		}
		if err := client.Tracker().Delete(podsGVR, "going", "p"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		for _, gvr := range []schema.GroupVersionResource{cmGVR, leaseGVR} {
			if _, err := client.Tracker().Get(gvr, "going", "cm"); err == nil {
				t.Errorf("%s are left", gvr.Resource)
			}
		}
		if _, err := client.Tracker().Get(cmGVR, "stays", "cm"); err != nil {
			t.Errorf("another namespace was touched: %v", err)
		}
		ns, err = cluster.CoreV1().Namespaces().Get(t.Context(), "going", metav1.GetOptions{})
		if err != nil || len(ns.Spec.Finalizers) != 0 {
			t.Errorf("finalizers: got %v, %v; want none", ns.Spec.Finalizers, err)
		}
	})
}

// TestEndingPodsAreLeftAlone: while many pods end, one after the other, they are neither listed nor deleted each time
// that one is gone.
func TestEndingPodsAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 300
		var objs []runtime.Object
		for i := range pods {
			p := meta(corev1.SchemeGroupVersion.WithKind("Pod"), "going", fmt.Sprint("p", i), "test/hold")
			p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			objs = append(objs, p)
		}
		cluster, client := world(t, objs...)
		for i := range pods {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace:         "going",
				Name:              fmt.Sprint("p", i),
				DeletionTimestamp: &metav1.Time{Time: time.Now()},
				Finalizers:        []string{"test/hold"},
			}}
			if err := cluster.Fake.Tracker().Add(p); err != nil {
				t.Fatal(err)
			}
		}
		cluster.Start(t, "namespace-controller", New)
		for i := range pods {
			time.Sleep(30 * time.Millisecond)
			if err := errors.Join(client.Tracker().Delete(podsGVR, "going", fmt.Sprint("p", i)),
				cluster.Fake.Tracker().Delete(podsGVR, "going", fmt.Sprint("p", i))); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(100 * time.Millisecond)
		lists := 0
		deletes := 0
		for _, a := range client.Actions() {
			switch {
			case a.GetResource() != podsGVR:
			case a.GetVerb() == "list":
				lists++
			default:
				deletes++
			}
		}
		if lists > 10 || deletes > 0 {
			t.Errorf("%d lists and %d deletions of pods that were all ending, want 10 at most and none", lists, deletes)
		}
		ns, err := cluster.CoreV1().Namespaces().Get(t.Context(), "going", metav1.GetOptions{})
		if err != nil || len(ns.Spec.Finalizers) != 0 {
			t.Errorf("a moment after the last pod: finalizers %v, %v; want none", ns.Spec.Finalizers, err)
		}
	})
}

func TestFailuresAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, client := world(t)
		client.PrependReactor("list", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil,
				errors.New("disk on fire")
		})
		c.Start(t, "namespace-controller", New)
		time.Sleep(time.Minute)
		ns, err := c.CoreV1().Namespaces().Get(t.Context(), "going", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(ns.Status.Conditions, func(c corev1.NamespaceCondition) bool {
			return c.Type == corev1.NamespaceDeletionContentFailure
		})
		want := "Failed to delete all resource types, 1 remaining: list leases.coordination.k8s.io: disk on fire"
		if i < 0 || ns.Status.Conditions[i].Message != want || ns.Status.Conditions[i].Status != corev1.ConditionTrue {
			t.Errorf("conditions: got %+v, want %q", ns.Status.Conditions, want)
		}
		if len(ns.Spec.Finalizers) != 1 {
			t.Error("finalized although content may be left")
		}
		if n := len(client.Actions()); n > 100 {
			t.Errorf("%d requests in a minute", n)
		}
	})
}
