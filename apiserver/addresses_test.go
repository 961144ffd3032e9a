// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/flowcontrol"
	"keelson/api/scheduling"
	"keelson/apiserver/servertest"
	"keelson/apiserver/servicealloc"
	"keelson/lib/waittest"
)

func serviceAt(name, ip string) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			ClusterIP: ip,
			Ports:     []corev1.ServicePort{{Port: 80}},
		},
	}
	return s
}

// TestServiceAddresses: a service's address is an IPAddress as long as the service has it.
func TestServiceAddresses(t *testing.T) {
	r := servertest.Start(t, nil)
	c := r.Clients(t)
	ctx := t.Context()
	services := c.CoreV1().Services("default")
	addresses := c.NetworkingV1().IPAddresses()
	ranges := c.NetworkingV1().ServiceCIDRs()
	own, err := ranges.Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if cond := meta.FindStatusCondition(own.Status.Conditions, networkingv1.ServiceCIDRConditionReady); cond == nil ||
		cond.Status != metav1.ConditionTrue {
		t.Errorf("the range kubernetes is not ready: %+v", own.Status)
	}
	made, err := services.Create(ctx, serviceAt("web", ""), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ip := made.Spec.ClusterIP
	a, err := addresses.Get(ctx, ip, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if p := a.Spec.ParentRef; p == nil || p.Resource != "services" || p.Namespace != "default" || p.Name != "web" ||
		a.Labels[networkingv1.LabelManagedBy] != "ipallocator.k8s.io" ||
		a.Labels[networkingv1.LabelIPAddressFamily] != "IPv4" {
		t.Errorf("address of the service: %+v", a)
	}
	if _, err := services.Create(ctx, serviceAt("other", ip), metav1.CreateOptions{}); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "provided IP is already allocated") {
		t.Errorf("the same address again: got %v", err)
	}
	if _, err := services.Create(ctx, serviceAt("dry", "10.96.0.99"),
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Errorf("dry run: %v", err)
	}
	if _, err := addresses.Get(ctx, "10.96.0.99", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a dry run left an address: %v", err)
	}
	if _, err := services.Create(ctx, serviceAt("taken", "10.96.0.1"), metav1.CreateOptions{}); !apierrors.IsInvalid(
		err) {
		t.Errorf("the address of the service kubernetes: got %v", err)
	}
	if err := services.Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Right(t, "address of the deleted service", func() string {
		_, err := addresses.Get(ctx, ip, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return ""
		}
		return "still there"
	})
	// A range that is added gives addresses at once.
	more := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "more"},
		Spec: networkingv1.ServiceCIDRSpec{
			CIDRs: []string{"10.200.0.0/24"},
		},
	}
	if _, err := ranges.Create(ctx, more, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Right(t, "service in the added range", func() string {
		_, err := services.Create(ctx, serviceAt("far", "10.200.0.7"), metav1.CreateOptions{})
		if err != nil {
			return err.Error()
		}
		return ""
	})
	if err := addresses.Delete(ctx, "10.200.0.7", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Right(t, "address deleted by hand", func() string {
		if _, err := addresses.Get(ctx, "10.200.0.7", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
}

// TestTwoStacks: a server that is given a range of the other family too widens its ServiceCIDR, and gives services
// both.
func TestTwoStacks(t *testing.T) {
	st, ca := servertest.NewSite(t)
	_, stop := servertest.StartOn(t, st, ca, nil)
	stop()
	r, stop := servertest.StartOn(t, st, ca, func(c *servertest.Setup) {
		c.Address.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:1::/108")}
		c.NodePorts = servicealloc.PortRange{First: 31000, Last: 31000}
	})
	t.Cleanup(stop)
	clientset := r.Clients(t)
	ctx := t.Context()
	own, err := clientset.NetworkingV1().ServiceCIDRs().Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil || !slices.Equal(own.Spec.CIDRs, []string{"10.96.0.0/16", "fd00:1::/108"}) {
		t.Errorf("the range kubernetes: %v, %v", own.Spec.CIDRs, err)
	}
	services := clientset.CoreV1().Services("default")
	service := serviceAt("both", "")
	service.Spec.Type = corev1.ServiceTypeNodePort
	service.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
	if service, err = services.Create(ctx, service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(service.Spec.ClusterIPs) != 2 || service.Spec.Ports[0].NodePort != 31000 {
		t.Errorf("addresses %v, node port %d", service.Spec.ClusterIPs, service.Spec.Ports[0].NodePort)
	}
	a, err := clientset.NetworkingV1().IPAddresses().Get(ctx, service.Spec.ClusterIPs[1], metav1.GetOptions{})
	if err != nil || a.Labels[networkingv1.LabelIPAddressFamily] != "IPv6" {
		t.Errorf("the second address: %v, %v", a.Labels, err)
	}
	// What went is free when the answer is there.
	if err := services.Delete(ctx, "both", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	again := serviceAt("again", service.Spec.ClusterIP)
	again.Spec.Type = corev1.ServiceTypeNodePort
	if _, err := services.Create(ctx, again, metav1.CreateOptions{}); err != nil {
		t.Errorf("what the deleted service had: %v", err)
	}
	bad := serviceAt("bad", "")
	bad.Spec.IPFamilies = []corev1.IPFamily{"IPv5"}
	bad.Spec.Type = "Sometimes"
	if _, err := services.Create(ctx, bad, metav1.CreateOptions{}); !apierrors.IsInvalid(err) ||
		!strings.HasSuffix(err.Error(),
			`is invalid: spec.ipFamilies[0]: Unsupported value: "IPv5": supported values: "IPv4", "IPv6"`) {
		t.Errorf("want the field that cannot be resolved only: %v", err)
	}
}

// TestOwnObjectsStay: the service kubernetes and its range are there again after they were deleted, and the classes
// that every cluster has cannot be deleted.
func TestOwnObjectsStay(t *testing.T) {
	r := servertest.Start(t, func(c *servertest.Setup) {
		c.Objects.Bootstrap = append(c.Objects.Bootstrap, flowcontrol.Bootstrap()...)
	})
	clientset := r.Clients(t)
	ctx := t.Context()
	_, err := clientset.SchedulingV1().PriorityClasses().Create(ctx, scheduling.System()[0], metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	if err := clientset.SchedulingV1().PriorityClasses().Delete(ctx, "system-node-critical",
		metav1.DeleteOptions{}); !apierrors.IsForbidden(err) ||
		!strings.HasSuffix(err.Error(), "this is a system priority class and cannot be deleted") {
		t.Errorf("a class of the system's: %v", err)
	}
	before, err := clientset.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"service": clientset.CoreV1().Services("default").Delete(ctx, "kubernetes", metav1.DeleteOptions{}),
		"range":   clientset.NetworkingV1().ServiceCIDRs().Delete(ctx, "kubernetes", metav1.DeleteOptions{}),
		"schema":  clientset.FlowcontrolV1().FlowSchemas().Delete(ctx, "probes", metav1.DeleteOptions{}),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	waittest.Right(t, "what was deleted", func() string {
		s, err := clientset.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if s.UID == before.UID || s.Spec.ClusterIP != before.Spec.ClusterIP {
			return "the service is " + s.Spec.ClusterIP
		}
		own, err := clientset.NetworkingV1().ServiceCIDRs().Get(ctx, "kubernetes", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if !meta.IsStatusConditionTrue(own.Status.Conditions, networkingv1.ServiceCIDRConditionReady) {
			return "the range is not ready"
		}
		if _, err := clientset.FlowcontrolV1().FlowSchemas().Get(ctx, "probes", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
}

// TestAdminAccess: claims that ask for admin access to devices need a namespace that is labeled for it.
func TestAdminAccess(t *testing.T) {
	r := servertest.Start(t, nil)
	clientset := r.Clients(t)
	ctx := t.Context()
	servertest.MakeNamespace(t, clientset, "trusted", map[string]string{resourcev1.DRAAdminNamespaceLabelKey: "true"})
	spec := resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
		Name:    "gpu",
		Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AdminAccess: new(true)},
	}}}}
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: spec}
	template := &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "t"},
		Spec:       resourcev1.ResourceClaimTemplateSpec{Spec: spec},
	}
	const want = "spec.devices.requests[0].adminAccess: Forbidden: admin access to devices requires the " +
		"`resource.kubernetes.io/admin-access: true` label on the containing namespace"
	if _, err := clientset.ResourceV1().ResourceClaims("default").Create(ctx, claim,
		metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("claim: got %v\nwant %s", err, want)
	}
	if _, err := clientset.ResourceV1().ResourceClaimTemplates("default").Create(ctx, template,
		metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("template: got %v\nwant %s", err, want)
	}
	if _, err := clientset.ResourceV1().ResourceClaims("trusted").Create(ctx, claim,
		metav1.CreateOptions{}); err != nil {
		t.Errorf("in a labeled namespace: %v", err)
	}
	claim.Name = "plain"
	claim.Spec.Devices.Requests[0].Exactly.AdminAccess = nil
	if _, err := clientset.ResourceV1().ResourceClaims("default").Create(ctx, claim,
		metav1.CreateOptions{}); err != nil {
		t.Errorf("without admin access: %v", err)
	}
}
