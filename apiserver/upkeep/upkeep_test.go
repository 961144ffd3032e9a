// SPDX-License-Identifier: Apache-2.0

package upkeep_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"keelson/api/flowcontrol"
	"keelson/apiserver/servertest"
	"keelson/apiserver/upkeep"
	"keelson/lib/waittest"
	"keelson/pki"
	"keelson/store"
)

const authenticationMap = "extension-apiserver-authentication"

// withBootstrap adds objects of the kinds that a cluster has.
func withBootstrap(c *servertest.Setup) {
	c.Address.Advertise = "192.0.2.1:6443"
	c.Objects.Bootstrap = append(c.Objects.Bootstrap, flowcontrol.Bootstrap()...)
	c.Objects.Bootstrap = append(c.Objects.Bootstrap,
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: authenticationMap},
			Data: map[string]string{
				"requestheader-allowed-names": `["front-proxy-client"]`,
				"since":                       "2026-11-28",
			},
		},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "agent"}},
		&rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "reader", Labels: map[string]string{"own": "yes"}},
			Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}},
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "reader"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "jane"}},
		})
}

// TestUpkeepRestores: deleted or changed objects of the server's own are restored while the server runs.
func TestUpkeepRestores(t *testing.T) {
	r := servertest.Start(t, withBootstrap)
	cl := r.Clients(t)
	ctx := t.Context()
	merge := func(text string) (types.PatchType, []byte, metav1.PatchOptions) {
		return types.MergePatchType, []byte(text), metav1.PatchOptions{}
	}
	var errs []error
	do := func(err error) { errs = append(errs, err) }
	maps := cl.CoreV1().ConfigMaps("kube-system")
	do(maps.Delete(ctx, authenticationMap, metav1.DeleteOptions{}))
	accounts := cl.CoreV1().ServiceAccounts("kube-system")
	do(accounts.Delete(ctx, "agent", metav1.DeleteOptions{}))
	kind, patch, options := merge(`{"metadata":{"labels":{"kubernetes.io/service-name":"other"}}}`)
	_, err := cl.DiscoveryV1().EndpointSlices("default").Patch(ctx, "kubernetes", kind, patch, options)
	do(err)
	_, err = cl.DiscoveryV1().EndpointSlices("default").Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:   "elsewhere",
			Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}, metav1.CreateOptions{})
	do(err)
	kind, patch, options = merge(`{"metadata":{"annotations":{"apf.kubernetes.io/autoupdate-spec":"false"}}}`)
	_, err = cl.FlowcontrolV1().FlowSchemas().Patch(ctx, "catch-all", kind, patch, options)
	do(err)
	kind, patch, options = merge(`{"metadata":{"annotations":{"apf.kubernetes.io/autoupdate-spec":"false"}},` +
		`"spec":{"matchingPrecedence":700}}`)
	_, err = cl.FlowcontrolV1().FlowSchemas().Patch(ctx, "probes", kind, patch, options)
	do(err)
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	waittest.Right(t, "the server's own objects", func() string {
		if m, err := maps.Get(ctx, authenticationMap, metav1.GetOptions{}); err != nil || m.Data["since"] == "" {
			return "the ConfigMap is missing"
		}
		if _, err := accounts.Get(ctx, "agent", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		slices, err := cl.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{})
		if err != nil || len(slices.Items) != 1 || slices.Items[0].Labels[discoveryv1.LabelServiceName] != "kubernetes" {
			return "the slices are wrong"
		}
		s, err := cl.FlowcontrolV1().FlowSchemas().Get(ctx, "catch-all", metav1.GetOptions{})
		if err != nil || s.Annotations[flowcontrolv1.AutoUpdateAnnotationKey] != "true" {
			return "the annotation of catch-all is wrong"
		}
		return ""
	})
	probes, err := cl.FlowcontrolV1().FlowSchemas().Get(ctx, "probes", metav1.GetOptions{})
	if err != nil || probes.Spec.MatchingPrecedence != 700 {
		t.Errorf("a suggested schema of the administrator's: %v, %v", probes.Spec.MatchingPrecedence, err)
	}
}

// TestUpkeepNamespace: the namespace of the node leases is there again after it was deleted.
func TestUpkeepNamespace(t *testing.T) {
	r := servertest.Start(t, nil)
	cl := r.Clients(t)
	ctx := t.Context()
	const lease = corev1.NamespaceNodeLease
	before, err := cl.CoreV1().Namespaces().Get(ctx, lease, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := cl.CoreV1().Namespaces().Delete(ctx, lease, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// what the namespace controller does when the namespace is empty
	before.Spec.Finalizers = nil
	before.ResourceVersion = ""
	if _, err := cl.CoreV1().Namespaces().Finalize(ctx, before, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Right(t, lease, func() string {
		now, err := cl.CoreV1().Namespaces().Get(ctx, lease, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if now.UID == before.UID {
			return "still the old one"
		}
		return ""
	})
}

// TestUpkeepAtStart: roles and bindings stay as an administrator left them until the next start, which restores them.
// Something that the API refuses does not prevent that start. It writes nothing if nothing differs.
func TestUpkeepAtStart(t *testing.T) {
	st, ca := servertest.NewSite(t)
	r, stop := servertest.StartOn(t, st, ca, withBootstrap)
	cl := kubernetes.NewForConfigOrDie(r.Rest)
	ctx := t.Context()
	if err := cl.RbacV1().ClusterRoleBindings().Delete(ctx, "reader", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cl.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "other"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cl.RbacV1().ClusterRoles().Update(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}},
	}, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	stop()
	r, stop = servertest.StartOn(t, st, ca, func(c *servertest.Setup) {
		withBootstrap(c)
		c.Objects.Bootstrap = append(c.Objects.Bootstrap, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: "missing",
			Name:      "refused",
		}})
	})
	cl = kubernetes.NewForConfigOrDie(r.Rest)
	role, err := cl.RbacV1().ClusterRoles().Get(ctx, "reader", metav1.GetOptions{})
	if err != nil || role.Labels["own"] != "yes" || len(role.Rules) != 1 {
		t.Errorf("role: labels %v, rules %v, %v; want the label, and the one rule that covers all", role.Labels, role.Rules,
			err)
	}
	binding, err := cl.RbacV1().ClusterRoleBindings().Get(ctx, "reader", metav1.GetOptions{})
	if err != nil || binding.RoleRef.Name != "reader" || len(binding.Subjects) != 1 {
		t.Errorf("binding: %+v, %v", binding, err)
	}
	// the conditions are written after the server is ready: what it has not written when it stops, the next one writes
	waittest.Right(t, "the conditions of flow schemas", func() string {
		list, err := cl.FlowcontrolV1().FlowSchemas().List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) == 0 {
			return fmt.Sprintf("%d flow schemas, %v", len(list.Items), err)
		}
		for i := range list.Items {
			c := list.Items[i].Status.Conditions
			if len(c) != 1 || c[0].Status != flowcontrolv1.ConditionFalse {
				return fmt.Sprintf("%s has %v", list.Items[i].Name, c)
			}
		}
		return ""
	})
	stop()
	before, err := st.Revision(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, stop = servertest.StartOn(t, st, ca, withBootstrap)
	stop()
	page, err := st.List(ctx, store.Range{Prefix: "/"})
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range page.Items {
		if kv.Revision > before {
			t.Errorf("a start without differences wrote %s", kv.Key)
		}
	}
	if page.Revision != before {
		t.Errorf("a start without differences wrote %d times", page.Revision-before)
	}
}

// TestUpkeepOfConfigMap: what is no authority and no list in the ConfigMap for extension servers is repaired, and an
// authority whose key was replaced is removed.
func TestUpkeepOfConfigMap(t *testing.T) {
	st, ca := servertest.NewSite(t)
	own := string(ca.CertPEM())
	retired, err := pki.Open("", "retired")
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := retired.Signer()
	r, stop := servertest.StartOn(t, st, ca, func(c *servertest.Setup) {
		withBootstrap(c)
		for _, o := range c.Objects.Bootstrap {
			if m, ok := o.(*corev1.ConfigMap); ok {
				m.Data["client-ca-file"] = own
				m.Annotations = map[string]string{
					upkeep.RetiredAnnotation: fmt.Sprintf("%x", sha256.Sum256(cert.Raw)),
				}
			}
		}
	})
	defer stop()
	maps := kubernetes.NewForConfigOrDie(r.Rest).CoreV1().ConfigMaps("kube-system")
	patch, err := json.Marshal(map[string]any{"data": map[string]string{
		"client-ca-file":              "x\n" + string(retired.CertPEM()),
		"requestheader-allowed-names": `["other"]`,
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Patch(t.Context(), authenticationMap, types.MergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Right(t, "the ConfigMap", func() string {
		m, err := maps.Get(t.Context(), authenticationMap, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if names := m.Data["requestheader-allowed-names"]; names != `["other","front-proxy-client"]` {
			return "names " + names
		}
		if got := m.Data["client-ca-file"]; strings.TrimSpace(got) != strings.TrimSpace(own) {
			return "authorities " + got
		}
		return ""
	})
}
