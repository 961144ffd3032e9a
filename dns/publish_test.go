// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"keelson/client"
	"keelson/client/clienttest"
	"keelson/lib/signal"
)

// TestServiceMadeAMomentAgo: a second pass before the informer shows the service is no fault; an address that another
// service has is one.
func TestServiceMadeAMomentAgo(t *testing.T) {
	for name, there := range map[string]bool{"made by an earlier pass": true, "another service's address": false} {
		api := clienttest.New()
		if there {
			api = clienttest.New(&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: Service},
			})
		}
		api.PrependReactor("create", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), Service,
				nil)
		})
		p := &publisher{
			cfg:  Config{Client: &client.Client{Interface: client.Plain(api)}, NodeName: "n", Log: slog.New(slog.DiscardHandler)},
			addr: netip.MustParseAddrPort("10.42.0.1:53"),
			name: sliceName(Service, "n"),
			wake: signal.New(),
		}
		if err := p.pass(t.Context()); (err == nil) != there {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// publishing is a publisher of the node n, with what its informers would have shown of api.
func publishing(t *testing.T, api *fake.Clientset) *publisher {
	t.Helper()
	p := newPublishers(Config{
		Client:    &client.Client{Interface: client.Plain(api)},
		NodeName:  "n",
		ServiceIP: netip.MustParseAddr("10.96.0.10"),
		Log:       slog.New(slog.DiscardHandler),
	}, netip.MustParseAddrPort("10.42.0.1:5353"))[0]
	p.machine = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid-n"}}
	p.svc, _ = api.CoreV1().Services(metav1.NamespaceSystem).Get(t.Context(), Service, metav1.GetOptions{})
	if p.svc.GetName() == "" {
		p.svc = nil
	}
	p.own, _ = api.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem).Get(t.Context(), p.name, metav1.GetOptions{})
	if p.own.GetName() == "" {
		p.own = nil
	}
	return p
}

// TestPublish: service and slice come into being; a second pass changes nothing; a slice that somebody has changed is
// repaired, one of another family made again; behind a service of somebody else's there is no slice.
func TestPublish(t *testing.T) {
	api := clienttest.New()
	pass := func(what string, writes int) *discoveryv1.EndpointSlice {
		t.Helper()
		p := publishing(t, api)
		api.ClearActions()
		if err := p.pass(t.Context()); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		n := 0
		for _, a := range api.Actions() {
			if a.GetVerb() != "get" {
				n++
			}
		}
		if n != writes {
			t.Errorf("%s: %d writes, want %d: %v", what, n, writes, api.Actions())
		}
		return publishing(t, api).own
	}
	slice := pass("at first", 2)
	if slice == nil || slice.Endpoints[0].Addresses[0] != "10.42.0.1" || *slice.Ports[0].Port != 5353 ||
		slice.OwnerReferences[0].UID != "uid-n" || slice.AddressType != discoveryv1.AddressTypeIPv4 {
		t.Fatalf("slice %+v", slice)
	}
	pass("again", 0)
	slice.Endpoints = nil
	slice.Labels = map[string]string{"mine": "too"}
	slices := api.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem)
	if _, err := slices.Update(t.Context(), slice, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if slice = pass("changed", 1); len(slice.Endpoints) != 1 || slice.Labels["mine"] != "too" ||
		slice.Labels[discoveryv1.LabelServiceName] != Service {
		t.Errorf("repaired %+v", slice)
	}
	slice.AddressType = discoveryv1.AddressTypeIPv6
	if _, err := slices.Update(t.Context(), slice, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if slice = pass("another family", 1); slice != nil {
		t.Errorf("left %+v", slice)
	}
	pass("recreated", 1)
	svc := publishing(t, api).svc
	svc.Spec.Selector = map[string]string{"k8s-app": "kube-dns"}
	if _, err := api.CoreV1().Services(metav1.NamespaceSystem).Update(t.Context(), svc,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if slice = pass("somebody else's", 1); slice != nil {
		t.Errorf("left %+v", slice)
	}
	pass("somebody else's, again", 0)
}

// TestSliceName: long names of nodes are cut and stay different.
func TestSliceName(t *testing.T) {
	a := sliceName(Service, strings.Repeat("a", 253))
	b := sliceName(Service, strings.Repeat("a", 252)+"b")
	if a == b || len(a) > 253 || sliceName(Service, "n") != "kube-dns-n" {
		t.Errorf("%s, %s, %s", a, b, sliceName(Service, "n"))
	}
}
