// SPDX-License-Identifier: Apache-2.0

package servicecidr

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/controllers/controllertest"
)

func addressRange(name string, deleted bool, cidrs ...string) *networkingv1.ServiceCIDR {
	r := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: networkingv1.ServiceCIDRSpec{
			CIDRs: cidrs,
		},
	}
	if deleted {
		r.DeletionTimestamp = new(metav1.Now())
		r.Finalizers = []string{finalizer}
	}
	return r
}

func address(ip string) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: ip, Labels: map[string]string{networkingv1.LabelManagedBy: manager}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource:  "services",
			Namespace: "default",
			Name:      "s",
		}},
	}
}

// TestRanges runs the controller over ranges that are there and ranges that are going.
func TestRanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(
			addressRange("kubernetes", false, "10.96.0.0/16"), addressRange("inner", true, "10.96.1.0/24"),
			addressRange("used", true, "10.97.0.0/24"), addressRange("idle", true, "10.98.0.0/24"),
			address("10.96.1.7"), address("10.97.0.1"),
		)
		cluster.Start(t, "service-cidrs-controller", New)
		client := cluster.NetworkingV1().ServiceCIDRs()
		check := func(when, name string, guarded bool, ready metav1.ConditionStatus, message string) {
			t.Helper()
			serviceCIDR, err := client.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				if guarded {
					t.Errorf("%s, %s: %v", when, name, err)
				}
				return
			}
			if slices.Contains(serviceCIDR.Finalizers, finalizer) != guarded {
				t.Errorf("%s, %s: finalizers %v, guarded shall be %v", when, name, serviceCIDR.Finalizers, guarded)
			}
			if message == "" {
				return
			}
			cond := meta.FindStatusCondition(serviceCIDR.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
			if cond == nil || cond.Status != ready || cond.Message != message {
				t.Errorf("%s, %s: condition %+v, want %s %q", when, name, cond, ready, message)
			}
		}
		const waits = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new " +
			"ServiceCIDR"
		time.Sleep(time.Second)
		check("at first", "kubernetes", true, metav1.ConditionTrue, "Kubernetes Service CIDR is ready")
		check("at first", "used", true, metav1.ConditionFalse, waits)
		check("within the grace", "inner", true, "", "")
		time.Sleep(deleteGrace)
		check("after the grace", "inner", false, "", "") // its address is in the range around it
		check("after the grace", "idle", false, "", "")
		check("after the grace", "used", true, metav1.ConditionFalse, waits)
		if err := cluster.NetworkingV1().IPAddresses().Delete(t.Context(), "10.97.0.1",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		check("without addresses", "used", false, "", "")
	})
}
