// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"keelson/client"
	"keelson/client/clienttest"
)

// TestClaimCreations: claims count by whether they could be created, and by whether they ask for admin access.
func TestClaimCreations(t *testing.T) {
	api := clienttest.New()
	created := client.NewClaims()
	registry := prometheus.NewRegistry()
	registry.MustRegister(created.Collectors()...)
	count := func(status, admin string) float64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			for _, m := range family.GetMetric() { // labels are sorted by name
				if m.GetLabel()[0].GetValue() == admin && m.GetLabel()[1].GetValue() == status {
					return m.GetCounter().GetValue()
				}
			}
		}
		return 0
	}
	plain := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "plain"}}
	admin := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "admin"}}
	admin.Spec.Devices.Requests = []resourcev1.DeviceRequest{{
		Name:    "all",
		Exactly: &resourcev1.ExactDeviceRequest{AdminAccess: new(true)},
	}}
	for _, claim := range []*resourcev1.ResourceClaim{plain, admin} {
		if _, err := created.Create(t.Context(), api.ResourceV1().ResourceClaims("a"), claim); err != nil {
			t.Fatal(err)
		}
	}
	api.PrependReactor("create", "resourceclaims", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no room")
	})
	if _, err := created.Create(t.Context(), api.ResourceV1().ResourceClaims("a"), plain); err == nil {
		t.Fatal("a refused claim: want the error")
	}
	if count("success", "false") != 1 || count("success", "true") != 1 || count("failure", "false") != 1 {
		t.Errorf("got %v, %v, %v; want one of each", count("success", "false"), count("success", "true"),
			count("failure", "false"))
	}
}
