// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/servertest"
)

// TestServiceProxyGoesToPods: a user who writes a namespace's endpoint slices reaches by services/proxy what pods of
// that namespace serve, and nothing else.
func TestServiceProxyGoesToPods(t *testing.T) {
	_, clientset, _ := servertest.StartHooked(t)
	ctx := t.Context()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "reached "+r.URL.Path+r.Header.Get("Authorization"))
	}))
	defer backend.Close()
	address, port := servertest.Elsewhere(t, backend.Listener.Addr().String())
	p, err := clientset.CoreV1().Pods("free").Create(ctx, servertest.PodIn("free", "p"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Status.PodIP = address
	p.Status.PodIPs = []corev1.PodIP{{IP: address}}
	if _, err := clientset.CoreV1().Pods("free").UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := clientset.CoreV1().Pods("free").Create(ctx, servertest.PodIn("free", "other"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ready := true
	portName := ""
	for name, tt := range map[string]struct {
		kind    discoveryv1.AddressType
		address string
		ref     *corev1.ObjectReference
		want    bool
	}{
		"pod": {discoveryv1.AddressTypeIPv4, address, &corev1.ObjectReference{
			Kind:      "Pod",
			Namespace: "free",
			Name:      "p",
		}, true},
		"none": {discoveryv1.AddressTypeIPv4, address, nil, false},
		"other": {discoveryv1.AddressTypeIPv4, address, &corev1.ObjectReference{
			Kind:      "Pod",
			Namespace: "free",
			Name:      "other",
		}, false},
		"elsewhere": {discoveryv1.AddressTypeIPv4, address, &corev1.ObjectReference{
			Kind:      "Pod",
			Namespace: "hooked",
			Name:      "p",
		}, false},
		"name": {discoveryv1.AddressTypeFQDN, "localhost.localdomain", &corev1.ObjectReference{
			Kind:      "Pod",
			Namespace: "free",
			Name:      "p",
		}, false},
	} {
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{
				Ports: []corev1.ServicePort{{Port: 80}},
			},
		}
		if _, err := clientset.CoreV1().Services("free").Create(ctx, svc, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: tt.kind,
			Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
			Endpoints: []discoveryv1.Endpoint{
				{
					Addresses:  []string{tt.address},
					Conditions: discoveryv1.EndpointConditions{Ready: &ready},
					TargetRef:  tt.ref,
				},
			},
		}
		if _, err := clientset.DiscoveryV1().EndpointSlices("free").Create(ctx, slice,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		b, err := clientset.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces/free/services/"+name+"/proxy/x").
			SetHeader(
				"Authorization", "Bearer secret").DoRaw(ctx)
		if got := err == nil && string(b) == "reached /x"; got != tt.want {
			t.Errorf("%s: %q, %v; want it reached: %v", name, b, err, tt.want)
		}
	}
}

// TestSimulatedNodeSaysSo: nothing answers at a fake node's address, and a stranger may; its pods' streams end before
// that is tried.
func TestSimulatedNodeSaysSo(t *testing.T) {
	_, clientset, _ := servertest.StartHooked(t)
	ctx := t.Context()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "fake-0"}, Spec: corev1.NodeSpec{ProviderID: "fake://fake-0"}}
	if _, err := clientset.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := servertest.PodIn("free", "p")
	p.Spec.NodeName = n.Name
	if _, err := clientset.CoreV1().Pods("free").Create(ctx, p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"namespaces/free/pods/p/log", "nodes/fake-0/proxy/healthz"} {
		err := clientset.CoreV1().RESTClient().Get().AbsPath("/api/v1/" + path).Do(ctx).Error()
		if err == nil || !strings.HasPrefix(err.Error(), "node fake-0 is simulated: ") {
			t.Errorf("%s: got %v, want that the node is simulated", path, err)
		}
	}
}
