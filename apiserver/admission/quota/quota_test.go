// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission"
)

// fakeStore is a Store: a map with compare-and-swap. stored are other objects, by "resource namespace/name".
type fakeStore struct {
	mu     sync.Mutex
	quotas map[string]*corev1.ResourceQuota
	stored map[string]runtime.Object
	writes atomic.Int64
}

func (s *fakeStore) Get(
	_ context.Context, gvr schema.GroupVersionResource, namespace, name string,
) (runtime.Object, error) {
	if obj := s.stored[gvr.Resource+" "+namespace+"/"+name]; obj != nil {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(gvr.GroupResource(), name)
}

func (s *fakeStore) List(
	_ context.Context, gvr schema.GroupVersionResource, namespace string,
) (all []runtime.Object, err error) {
	for key, obj := range s.stored {
		if strings.HasPrefix(key, gvr.Resource+" "+namespace+"/") {
			all = append(all, obj)
		}
	}
	return all, nil
}

func (s *fakeStore) GuaranteedUpdate(_ context.Context, gvr schema.GroupVersionResource, _, name string, f func(
	runtime.Object,
) (runtime.Object, error),
) error {
	for {
		s.mu.Lock()
		q := s.quotas[name]
		s.mu.Unlock()
		if q == nil {
			return apierrors.NewNotFound(gvr.GroupResource(), name)
		}
		next, err := f(q)
		if err != nil || next == runtime.Object(q) {
			return err
		}
		s.mu.Lock()
		if s.quotas[name] == q {
			s.quotas[name] = next.(*corev1.ResourceQuota)
			s.mu.Unlock()
			s.writes.Add(1)
			return nil
		}
		s.mu.Unlock()
	}
}

func (s *fakeStore) used(name string, r corev1.ResourceName) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.quotas[name].Status.Used[r]
	return v.String()
}

func plugin(quotas ...*corev1.ResourceQuota) (*Plugin, *fakeStore) {
	s := &fakeStore{quotas: map[string]*corev1.ResourceQuota{}}
	p := New(s, s, nil)
	for _, q := range quotas {
		s.quotas[q.Name] = q
		p.Set(q)
	}
	return p, s
}

func limit(name, r, hard, used string) *corev1.ResourceQuota {
	list := func(v string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceName(r): resource.MustParse(v)}
	}
	return &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: name},
		Spec:       corev1.ResourceQuotaSpec{Hard: list(hard)},
		Status:     corev1.ResourceQuotaStatus{Hard: list(hard), Used: list(used)},
	}
}

func creation(name string) *admission.Request {
	return &admission.Request{
		Operation: admission.Create,
		Resource:  corev1.SchemeGroupVersion.WithResource("pods"),
		Namespace: "dev",
		Name:      name,
		Object: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: name},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "main"}},
			},
		},
	}
}

func TestChargeAndRefund(t *testing.T) {
	p, fakeStore := plugin(limit("a", "pods", "2", "0"), limit("b", "count/pods", "1", "0"))
	chain := admission.NewChain(nil, p)
	notStored := func() error { return admission.ErrNothingStored }
	err := chain.Do(t.Context(), creation("one"), func() error {
		err := chain.Do(t.Context(), creation("two"), notStored)
		want := `pods "two" is forbidden: exceeded quota: b, requested: count/pods=1, used: count/pods=1, limited: count/pods=1`
		if !apierrors.IsForbidden(err) || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		if got := fakeStore.used("a", "pods"); got != "1" {
			t.Errorf("a refused pod left a charge behind: used %s, want 1", got)
		}
		return notStored()
	})
	if !errors.Is(err, admission.ErrNothingStored) {
		t.Errorf("got %v", err)
	}
	if a, b := fakeStore.used("a", "pods"), fakeStore.used("b", "count/pods"); a != "0" || b != "0" {
		t.Errorf("a pod that was not stored is still charged: %s and %s", a, b)
	}
	unsure := errors.New("the connection to the store is gone")
	if err := chain.Do(t.Context(), creation("unsure"), func() error { return unsure }); !errors.Is(err, unsure) {
		t.Fatal(err)
	}
	if got := fakeStore.used("a", "pods"); got != "1" {
		t.Errorf("a pod that may be stored yet is not charged: used %s, want 1", got)
	}
	p, fakeStore = plugin(limit("a", "pods", "2", "0"), limit("b", "count/pods", "1", "0"))
	dry := creation("dry")
	dry.DryRun = true
	if err := p.Validate(t.Context(), dry); err != nil || fakeStore.used("a", "pods") != "0" {
		t.Errorf("dry run: %v, used %s", err, fakeStore.used("a", "pods"))
	}
}

// TestManyAtOnce has 64 clients ask for 200 pods of which 50 fit.
func TestManyAtOnce(t *testing.T) {
	p, fakeStore := plugin(limit("q", "pods", "50", "0"))
	var stored, refused atomic.Int64
	var wg sync.WaitGroup
	next := atomic.Int64{}
	for range 64 {
		wg.Go(func() {
			for {
				n := next.Add(1)
				if n > 200 {
					return
				}
				switch err := p.Validate(t.Context(), creation(fmt.Sprint("p", n))); {
				case err == nil:
					stored.Add(1)
				case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota: q"):
					refused.Add(1)
				default:
					t.Errorf("pod %d: %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	if stored.Load() != 50 || refused.Load() != 150 || fakeStore.used("q", "pods") != "50" {
		t.Errorf("%d stored, %d refused, used %s; want 50, 150, 50", stored.Load(), refused.Load(),
			fakeStore.used("q", "pods"))
	}
}

func TestNothingToDo(t *testing.T) {
	p, _ := plugin()
	ctx := t.Context()
	r := creation("x")
	if n := testing.AllocsPerRun(100, func() { _ = p.Validate(ctx, r) }); n > 0 {
		t.Errorf("%v allocations without a quota, want none", n)
	}
	quota := limit("q", "pods", "0", "0")
	p.Set(quota)
	for name, edit := range map[string]func(*admission.Request){
		"another namespace": func(r *admission.Request) { r.Namespace = "other" },
		"an update": func(r *admission.Request) {
			r.Operation = admission.Update
			r.OldObject = r.Object
		},
		"a subresource": func(r *admission.Request) { r.Subresource = "binding" },
		"an event":      func(r *admission.Request) { r.Resource.Resource = "events" },
		"a config map":  func(r *admission.Request) { r.Resource.Resource = "configmaps" },
	} {
		r := creation("x")
		edit(r)
		if err := p.Validate(t.Context(), r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	p.Remove(quota)
	if err := p.Validate(t.Context(), creation("x")); err != nil {
		t.Errorf("after the quota went: %v", err)
	}
}

// A quota of devices holds in all ways of asking for them: in a claim, and as an extended resource of a pod, which has
// the name of the class or one that the class gives. The claim that the scheduler makes for a pod is not charged again,
// but one that only says so is.
func TestExtendedResourcesAndClaims(t *testing.T) {
	const implicit, explicit = "requests.deviceclass.resource.kubernetes.io/gpu.test", "requests.gpu.test/card"
	name := "gpu.test/card"
	pod := creation("asks")
	asks := pod.Object.(*corev1.Pod)
	asks.UID = "1"
	asks.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
		corev1.ResourceName(name): resource.MustParse("2"),
	}
	classed := creation("classed")
	classed.Object.(*corev1.Pod).Spec.Containers[0].Resources.Requests = corev1.ResourceList{
		"deviceclass.resource.kubernetes.io/gpu.test": resource.MustParse("3"),
	}
	claim := func(name string, n int64, change ...func(*resourcev1.ResourceClaim)) *admission.Request {
		c := &resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: name},
			Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
				Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu.test", Count: n},
			}}}},
		}
		for _, f := range change {
			f(c)
		}
		return &admission.Request{
			Operation: admission.Create,
			Resource:  deviceClaims,
			Namespace: "dev",
			Name:      name,
			Object:    c,
		}
	}
	ofPod := func(c *resourcev1.ResourceClaim) {
		c.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
		c.OwnerReferences = []metav1.OwnerReference{
			*metav1.NewControllerRef(asks, corev1.SchemeGroupVersion.WithKind("Pod")),
		}
	}
	p, store := plugin(limit("i", implicit, "2", "0"), limit("e", explicit, "2", "0"))
	store.stored = map[string]runtime.Object{"deviceclasses /gpu.test": &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu.test"},
		Spec:       resourcev1.DeviceClassSpec{ExtendedResourceName: &name},
	}}
	check := func(what string, r *admission.Request, forbidden bool, i, e string) {
		t.Helper()
		err := p.Validate(t.Context(), r)
		if apierrors.IsForbidden(err) != forbidden || err != nil && !forbidden {
			t.Errorf("%s: got %v, want forbidden %v", what, err, forbidden)
		}
		if gotI, gotE := store.used("i", implicit), store.used("e", explicit); gotI != i || gotE != e {
			t.Errorf("%s: got %s of the class and %s of the name charged, want %s and %s", what, gotI, gotE, i, e)
		}
	}
	check("a pod that asks for the class", classed, true, "0", "0")
	check("a claim of too many", claim("three", 3), true, "0", "0")
	check("a claim that says that it is a pod's, which is not there", claim("lies", 3, ofPod), true, "0", "0")
	check("a pod that asks for the name", pod, false, "0", "2")
	store.stored["pods dev/asks"] = asks
	scheduled := claim("scheduled", 2, ofPod)
	check("the claim that the scheduler makes for it", scheduled, false, "2", "2")
	store.stored["resourceclaims dev/scheduled"] = scheduled.Object
	check("another one of the same pod", claim("again", 1, ofPod), true, "2", "2")
	asks.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "scheduled"}
	check("another one after the pod has its claim", claim("later", 1, ofPod), true, "2", "2")
}
