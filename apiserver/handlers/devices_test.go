// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/rest"

	"keelson/apiserver/servertest"
)

const (
	bindRight   = `status.allocation: Forbidden: changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", verb="update" permission: resourceclaims.resource.k8s.io is forbidden: User "plain" cannot update resource "resourceclaims/binding" in API group "resource.k8s.io" at the cluster scope`
	driverRight = `status.devices: Forbidden: changing status.devices requires resource="resourceclaims/driver", verb=`
)

// claimWriters are users with the right to a claim's status, and with further rights.
func claimWriters(t *testing.T, r *servertest.Running) func(user, node string) resourceclient.ResourceClaimInterface {
	t.Helper()
	group := []string{resourcev1.GroupName}
	status := servertest.PolicyRule([]string{"update", "patch"}, group, []string{"resourceclaims/status"})
	driver := func(verb string, names ...string) rbacv1.PolicyRule {
		return servertest.PolicyRule([]string{verb}, group, []string{"resourceclaims/driver"}, names...)
	}
	r.Grant(t, "plain", "plain", status)
	r.Grant(t, "binds", "binds", status, servertest.PolicyRule([]string{"update"}, group, []string{"resourceclaims/binding"}))
	r.Grant(t, "anywhere", "anywhere", status, driver("arbitrary-node:update", "gpu.example.com"))
	r.Grant(t, "patches", "patches", status, driver("arbitrary-node:patch", "gpu.example.com"))
	r.Grant(t, "other", "other", status, driver("arbitrary-node:update", "nic.example.com"))
	r.Grant(t, "driver", "system:serviceaccount:default:driver", status,
		driver("associated-node:update", "gpu.example.com"))
	return func(user, node string) resourceclient.ResourceClaimInterface {
		t.Helper()
		cfg := rest.CopyConfig(r.Rest)
		cfg.Impersonate = rest.ImpersonationConfig{UserName: user}
		if node != "" {
			cfg.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
		}
		c, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return c.ResourceV1().ResourceClaims("default")
	}
}

func allocationOn(node string, admin *bool) *resourcev1.AllocationResult {
	return &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{
				Request:     "gpu",
				Driver:      "gpu.example.com",
				Pool:        "p",
				Device:      "d",
				AdminAccess: admin,
			},
		}},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{
				{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
			},
		}}},
	}
}

// TestClaimStatusRights: the right to write a claim's status does not allow a user to allocate devices, nor to report
// for a driver (KEP-4817).
func TestClaimStatusRights(t *testing.T) {
	r := servertest.StartSecured(t, nil)
	as := claimWriters(t, r)
	ctx := t.Context()
	claims := r.Clients(t).ResourceV1().ResourceClaims("default")
	allocate := func(s *resourcev1.ResourceClaimStatus) { s.Allocation = allocationOn("n1", nil) }
	free := func(s *resourcev1.ResourceClaimStatus) { *s = resourcev1.ResourceClaimStatus{} }
	device := resourcev1.AllocatedDeviceStatus{Driver: "gpu.example.com", Pool: "p", Device: "d"}
	report := func(s *resourcev1.ResourceClaimStatus) {
		d := device
		d.NetworkData = &resourcev1.NetworkDeviceData{InterfaceName: "gpu0"}
		s.Devices = []resourcev1.AllocatedDeviceStatus{d}
	}
	for _, tt := range []struct {
		what, user, node string
		change           func(*resourcev1.ResourceClaimStatus)
		reported, bound  bool // before
		want             string
	}{
		{"allocate", "plain", "", allocate, false, false, bindRight},
		{"allocate with the right", "binds", "", allocate, false, false, ""},
		{"free", "plain", "", free, true, true, bindRight},
		{"free what a driver reported", "binds", "", free, true, true, ""},
		{"nothing", "plain", "", func(*resourcev1.ResourceClaimStatus) {}, true, true, ""},
		{
			"report", "plain", "", report, false, true,
			driverRight +
				`["arbitrary-node:update"] permission: resourceclaims.resource.k8s.io "gpu.example.com" is forbidden: User "plain" cannot arbitrary-node:update resource "resourceclaims/driver" in API group "resource.k8s.io" in the namespace "default"`,
		},
		{"report by another verb", "patches", "", report, false, true, driverRight},
		{"report for another driver", "other", "", report, false, true, driverRight},
		{"report", "anywhere", "", report, false, true, ""},
		{"take a report back", "plain", "", func(s *resourcev1.ResourceClaimStatus) {
			s.Devices = nil
		}, true, true, driverRight},
		{"take a report back with the right", "anywhere", "", func(s *resourcev1.ResourceClaimStatus) {
			s.Devices = nil
		}, true, true, ""},
		{"report on the node", "system:serviceaccount:default:driver", "n1", report, false, true, ""},
		{
			"report on another node", "system:serviceaccount:default:driver", "n2", report, false, true,
			driverRight + `["arbitrary-node:update"]`,
		},
		{"report on no node", "system:serviceaccount:default:driver", "", report, false, true, driverRight},
	} {
		t.Run(tt.what+" as "+tt.user, func(t *testing.T) {
			resourceClaim, err := claims.Create(ctx, gpuClaim(nil), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { deleteClaim(t, claims) })
			if tt.bound {
				allocate(&resourceClaim.Status)
				if tt.reported {
					report(&resourceClaim.Status)
				}
				if resourceClaim, err = claims.UpdateStatus(ctx, resourceClaim, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			tt.change(&resourceClaim.Status)
			_, err = as(tt.user, tt.node).UpdateStatus(ctx, resourceClaim, metav1.UpdateOptions{})
			if tt.want == "" && err != nil ||
				tt.want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v\nwant %s", err, tt.want)
			}
		})
	}
}

// TestAdminResult: devices are allocated for admin access only in a namespace that is labeled for it.
func TestAdminResult(t *testing.T) {
	r := servertest.Start(t, nil)
	c := r.Clients(t)
	ctx := t.Context()
	claims := c.ResourceV1().ResourceClaims("default")
	label := func(value string) {
		t.Helper()
		ns, err := c.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ns.Labels[resourcev1.DRAAdminNamespaceLabelKey] = value
		if _, err := c.CoreV1().Namespaces().Update(ctx, ns, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	label("true")
	claim, err := claims.Create(ctx, gpuClaim(new(true)), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	label("false")
	claim.Status.Allocation = allocationOn("n1", new(true))
	const want = "status.allocation.devices.results[0].adminAccess: Forbidden: admin access to devices requires the " +
		"`resource.kubernetes.io/admin-access: true` label"
	if _, err := claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("got %v\nwant %s", err, want)
	}
	label("true")
	if claim, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	label("false")
	claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "u"}}
	if _, err := claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		t.Errorf("a claim that was allocated with the label: %v", err)
	}
}

// TestAdminLabelAtOnce: the label counts from the answer to its write, and no longer than to that of its removal.
func TestAdminLabelAtOnce(t *testing.T) {
	r := servertest.Start(t, nil)
	c := r.Clients(t)
	ctx := t.Context()
	claims := c.ResourceV1().ResourceClaims("default")
	for round := range 300 {
		labeled := round%2 == 0
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:"%v"}}}`, resourcev1.DRAAdminNamespaceLabelKey, labeled)
		if _, err := c.CoreV1().Namespaces().Patch(ctx, "default", types.MergePatchType, []byte(patch),
			metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err := claims.Create(ctx, gpuClaim(new(true)), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if labeled && err != nil || !labeled && !apierrors.IsInvalid(err) {
			t.Fatalf("round %d, label %v: %v", round, labeled, err)
		}
	}
}

func gpuClaim(admin *bool) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{
				{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AdminAccess: admin}},
			},
		}},
	}
}

func deleteClaim(t *testing.T, claims resourceclient.ResourceClaimInterface) {
	t.Helper()
	if err := claims.Delete(context.WithoutCancel(t.Context()), "c", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}
