// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"keelson/scheduler/schedtest"
)

const card = "example.com/card"

func serving(name, extended string, age time.Duration) *resourcev1.DeviceClass {
	c := class(name)
	c.CreationTimestamp = metav1.NewTime(time.Unix(1000000, 0).Add(-age))
	c.Spec.ExtendedResourceName = &extended
	return c
}

// container asks for n of a resource.
func container(name string, of corev1.ResourceName, n int64, always bool) corev1.Container {
	c := corev1.Container{Name: name}
	if n > 0 {
		c.Resources.Requests = corev1.ResourceList{
			of:    *resource.NewQuantity(n, resource.DecimalSI),
			"cpu": resource.MustParse("1m"),
		}
	}
	if always {
		c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	}
	return c
}

func running(init []corev1.Container, main ...corev1.Container) *corev1.Pod {
	p := schedtest.Pod("p")
	p.Spec.InitContainers = init
	p.Spec.Containers = main
	return p
}

// offering is a node whose own kubelet offers cards.
func offering(name string, n int64) *corev1.Node {
	node := schedtest.Node(name)
	node.Status.Allocatable = node.Status.Allocatable.DeepCopy()
	node.Status.Allocatable[card] = *resource.NewQuantity(n, resource.DecimalSI)
	return node
}

// TestRequestsOfContainers: which requests containers' extended resources become, and who uses which.
func TestRequestsOfContainers(t *testing.T) {
	for _, tt := range []struct {
		name     string
		pod      *corev1.Pod
		requests string
		mappings string
	}{
		{"one", running(nil, container("a", card, 2, false)), "container-0-request-1=2", "a:container-0-request-1"},
		{
			"two, and one without", running(nil, container("a", card, 1, false), container("b", card, 0, false),
				container("c", card, 3, false)),
			"container-0-request-1=1 container-2-request-1=3", "a:container-0-request-1 c:container-2-request-1",
		},
		{
			"an init container uses what comes after it", running([]corev1.Container{container("i", card, 1, false)},
				container("a", card, 1, false), container("b", card, 1, false)),
			"container-1-request-1=1 container-2-request-1=1",
			"a:container-1-request-1 b:container-2-request-1 i:container-1-request-1",
		},
		{
			"init containers want more, one most",
			running([]corev1.Container{container("i", card, 2, false), container("j", card, 4, false)},
				container("a", card, 1, false)),
			"container-1-request-1=3 container-2-request-1=1",
			"a:container-2-request-1 i:container-2-request-1 j:container-2-request-1 i:container-1-request-1 " +
				"j:container-1-request-1",
		},
		{
			"a sidecar keeps its own, and those before it use them",
			running([]corev1.Container{container("i", card, 1, false), container("s", card, 1, true), container("j",
				card, 1, false)}, container("a", card, 0, false)),
			"container-1-request-1=1 container-2-request-1=1",
			"s:container-1-request-1 i:container-1-request-1 j:container-2-request-1",
		},
	} {
		e := &extended{
			pod:     tt.pod,
			classes: map[corev1.ResourceName]string{card: "gpu"},
			claims:  map[string]*extendedClaim{},
		}
		c := e.claimFor(schedtest.Node("n"))
		var requests, mappings []string
		for _, r := range c.claim.Spec.Devices.Requests {
			requests = append(requests, fmt.Sprintf("%s=%d", r.Name, r.Exactly.Count))
		}
		for _, m := range c.mappings {
			mappings = append(mappings, m.ContainerName+":"+m.RequestName)
		}
		if got := strings.Join(requests, " "); got != tt.requests {
			t.Errorf("%s: requests %s, want %s", tt.name, got, tt.requests)
		}
		if got := strings.Join(mappings, " "); got != tt.mappings {
			t.Errorf("%s: mappings %s, want %s", tt.name, got, tt.mappings)
		}
	}
}

// TestServingClass: the newest of several classes serves a resource, and every class the one of its name.
func TestServingClass(t *testing.T) {
	w := newWorld(t, serving("old", card, time.Hour), serving("new", card, 0), serving("newer-name", card, 0))
	for name, want := range map[corev1.ResourceName]string{
		card:                                      "new",
		"deviceclass.resource.kubernetes.io/old":  "old",
		"deviceclass.resource.kubernetes.io/gpu":  "gpu",
		"deviceclass.resource.kubernetes.io/none": "",
		"example.com/other":                       "",
		"cpu":                                     "",
	} {
		if got := w.known.DeviceClass(name); got != want {
			t.Errorf("%s is served by %q, want %q", name, got, want)
		}
	}
}

// TestExtendedResources: a pod that asks for a resource which a class serves gets devices, a claim that says so, and
// its status names it.
func TestExtendedResources(t *testing.T) {
	for _, of := range []corev1.ResourceName{card, "deviceclass.resource.kubernetes.io/cards"} {
		world := newWorld(t, slice("a", device("d")), serving("cards", card, 0))
		world.Add(schedtest.Node("a"), schedtest.Node("b"))
		// The cache has the claim when it is written.
		world.client.PrependReactor("update", "resourceclaims", func(
			a k8stesting.Action,
		) (bool, runtime.Object, error) {
			if u, ok := a.(k8stesting.UpdateAction); ok && a.GetSubresource() == "status" {
				c, _ := u.GetObject().(*resourcev1.ResourceClaim)
				world.known.ClaimChanged(nil, c)
			}
			return false, nil, nil
		})
		pod := running(nil, container("main", of, 1, false))
		world.store(pod)
		attempt := world.place(pod)
		if attempt.Chosen == nil || attempt.Chosen.Name != "a" {
			t.Fatalf("%s: placed on %v: %s", of, attempt.Chosen, attempt.Message())
		}
		if err := world.plugin.PreBind(t.Context(), attempt.Cycle, attempt.Pod, "a"); err != nil {
			t.Fatal(err)
		}
		list, err := world.client.ResourceV1().ResourceClaims("default").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("claims: %v %v", list, err)
		}
		resourceClaim := &list.Items[0]
		if r := resourceClaim.Status.Allocation; r == nil || r.Devices.Results[0].Device != "d" ||
			len(resourceClaim.Status.ReservedFor) != 1 || !isExtendedOf(resourceClaim, pod) ||
			!strings.HasPrefix(resourceClaim.GenerateName, "p-extended-resources-") ||
			resourceClaim.Spec.Devices.Requests[0].Exactly.DeviceClassName != "cards" {
			t.Errorf("%s: the claim is %+v", of, resourceClaim)
		}
		now, err := world.client.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want := corev1.ContainerExtendedResourceRequest{
			ContainerName: "main",
			ResourceName:  string(of),
			RequestName:   "container-0-request-1",
		}
		if s := now.Status.ExtendedResourceClaimStatus; s == nil || s.ResourceClaimName != resourceClaim.Name ||
			len(s.RequestMappings) != 1 || s.RequestMappings[0].ContainerName != want.ContainerName ||
			s.RequestMappings[0].ResourceName != want.ResourceName ||
			!strings.HasPrefix(s.RequestMappings[0].RequestName, "container-0-request-") {
			t.Errorf("%s: the pod's status has %+v", of, s)
		}
		if n := len(world.known.view().taken.AllocatedDevices); n != 1 {
			t.Errorf("%s: %d devices are taken, want 1", of, n)
		}
		var said []error
		world.plugin.Failed = func(_ *corev1.Pod, err error) { said = append(said, err) }
		world.plugin.Unreserve(t.Context(), attempt.Cycle, attempt.Pod, "a")
		if list, err = world.client.ResourceV1().ResourceClaims("default").List(t.Context(),
			metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
			t.Errorf("%s: it was given up, and left %d claims: %v %v", of, len(list.Items), err, said)
		}
	}
}

// TestOfferedByTheNode: a node that offers the resource itself needs no devices; a claim of an earlier attempt is
// removed first.
func TestOfferedByTheNode(t *testing.T) {
	world := newWorld(t, serving("cards", card, 0))
	world.Add(offering("a", 2), schedtest.Node("b"))
	pod := running(nil, container("main", card, 1, false))
	world.store(pod)
	attempt := world.place(pod)
	if attempt.Chosen == nil || attempt.Chosen.Name != "a" {
		t.Fatalf("placed on %v: %s", attempt.Chosen, attempt.Message())
	}
	if err := world.plugin.PreBind(t.Context(), attempt.Cycle, attempt.Pod, "a"); err != nil {
		t.Fatal(err)
	}
	stale := claim("p-extended-resources-x", exactly("r", "cards", 1))
	stale.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
	stale.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1",
		Kind:       "Pod",
		Name:       "p",
		UID:        pod.UID,
		Controller: new(true),
	}}
	stale.Finalizers = []string{resourcev1.Finalizer}
	world.add(stale)
	attempt = world.Try(pod)
	if attempt.Chosen != nil || !strings.Contains(attempt.Message(), "cannot schedule extended resource claim") {
		t.Fatalf("placed on %v: %s", attempt.Chosen, attempt.Message())
	}
	if _, said := world.plugin.PostFilter(t.Context(), attempt); !strings.Contains(said, "is deleted") {
		t.Errorf("said %q", said)
	}
	if list, err := world.client.ResourceV1().ResourceClaims("default").List(t.Context(),
		metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("it left %v %v", list, err)
	}
}
