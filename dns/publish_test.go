// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"log/slog"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"keelson/client"
)

// TestServiceMadeAMomentAgo: a second pass before the informer shows the service is no fault; an address that another service has is one.
func TestServiceMadeAMomentAgo(t *testing.T) {
	for name, there := range map[string]bool{"made by an earlier pass": true, "another service's address": false} {
		api := fake.NewClientset()
		if there {
			api = fake.NewClientset(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: Service}})
		}
		api.PrependReactor("create", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), Service, nil)
		})
		p := &publisher{
			cfg:  Config{Client: &client.Client{Interface: api}, NodeName: "n", Log: slog.New(slog.DiscardHandler)},
			addr: netip.MustParseAddrPort("10.42.0.1:53"), wake: make(chan struct{}, 1),
		}
		if err := p.pass(t.Context()); (err == nil) != there {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
