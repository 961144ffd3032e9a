// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/admissiontest"
	"keelson/auth"
	"keelson/auth/authz"
)

// TestTokensOfRoles: a node gets tokens for its roles other than the kubelet, bound to itself for an hour, and no
// others.
func TestTokensOfRoles(t *testing.T) {
	restriction := Plugin{
		NodeName:     authz.NodeName,
		RoleAccounts: []string{"keelson-dns"},
		Reader: admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{
			admission.Nodes: {&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u1"}}, &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "node-2", UID: "u2"},
			}},
		}),
	}
	ask := func(namespace, account string, edit func(*authenticationv1.TokenRequestSpec)) error {
		seconds := int64(3600)
		tr := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &seconds,
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1",
				Kind:       "Node",
				Name:       "node-1",
				UID:        "u1",
			},
		}}
		edit(&tr.Spec)
		return restriction.Validate(t.Context(), asNode(&admission.Request{
			Operation:   admission.Create,
			Resource:    schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"},
			Subresource: "token",
			Namespace:   namespace,
			Name:        account,
			Object:      tr,
		}))
	}
	as := func(*authenticationv1.TokenRequestSpec) {}
	if err := ask("kube-system", "keelson-dns", as); err != nil {
		t.Errorf("its own role: %v", err)
	}
	for _, c := range []struct {
		what, namespace, account string
		edit                     func(*authenticationv1.TokenRequestSpec)
		want                     string
	}{
		{"another account", "kube-system", "namespace-controller", as, "not bound to a pod"},
		{"another namespace", "default", "keelson-dns", as, "not bound to a pod"},
		{"bound to nothing", "kube-system", "keelson-dns", func(s *authenticationv1.TokenRequestSpec) {
			s.BoundObjectRef = nil
		}, "not bound to a pod"},
		{"bound to a secret", "kube-system", "keelson-dns", func(s *authenticationv1.TokenRequestSpec) {
			s.BoundObjectRef.Kind = "Secret"
		}, "not bound to a pod"},
		{"another node", "kube-system", "keelson-dns", func(s *authenticationv1.TokenRequestSpec) {
			s.BoundObjectRef.Name = "node-2"
			s.BoundObjectRef.UID = "u2"
		}, `bound to node "node-2"`},
		{"no uid", "kube-system", "keelson-dns", func(s *authenticationv1.TokenRequestSpec) {
			s.BoundObjectRef.UID = ""
		}, "without a uid"},
		{"an earlier node of that name", "kube-system", "keelson-dns", func(s *authenticationv1.TokenRequestSpec) {
			s.BoundObjectRef.UID = "u0"
		}, "does not match the UID in record"},
		{"another audience", "kube-system", "keelson-dns", func(s *authenticationv1.TokenRequestSpec) {
			s.Audiences = []string{"vault"}
		}, "own audience"},
		{"a year", "kube-system", "keelson-dns", func(s *authenticationv1.TokenRequestSpec) {
			*s.ExpirationSeconds = 365 * 86400
		}, "for 3600 seconds"},
	} {
		if err := ask(c.namespace, c.account, c.edit); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
}

// TestRolesOfNodes: with such a token a role writes what is its node's; a token of the account that is bound to no node
// is kept by RBAC alone.
func TestRolesOfNodes(t *testing.T) {
	restriction := Plugin{NodeName: authz.NodeName, RoleAccounts: []string{"keelson-dns"}, Reader: admissiontest.Reader{}}
	write := func(account, boundTo, slice string) error {
		u := &auth.User{Name: "system:serviceaccount:kube-system:" + account}
		if boundTo != "" {
			u.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {boundTo}}
		}
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Namespace: "kube-system",
			Name:      slice,
			Labels:    map[string]string{discoveryv1.LabelServiceName: "kube-dns"},
		}}
		return restriction.Validate(t.Context(), &admission.Request{
			User:      u,
			Operation: admission.Create,
			Resource:  schema.GroupVersionResource{Resource: "endpointslices"},
			Namespace: s.Namespace,
			Object:    s,
		})
	}
	for _, c := range []struct {
		account, boundTo, slice string
		ok                      bool
	}{
		{"keelson-dns", "node-1", "kube-dns-node-1", true},
		{"keelson-dns", "node-1", "kube-dns-node-2", false},
		{"keelson-dns", "node-1", "bank-x", false},
		{"keelson-dns", "", "kube-dns-node-2", true},
		{"endpointslice-controller", "node-1", "bank-x", true}, // a pod's account
	} {
		if err := write(c.account, c.boundTo, c.slice); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
	u := &auth.User{
		Name: "system:serviceaccount:kube-system:keelson-dns",
		Extra: map[string][]string{
			"authentication.kubernetes.io/node-name": {"node-1"},
		},
	}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "bank"}}
	if restriction.Validate(t.Context(), &admission.Request{
		User:      u,
		Operation: admission.Create,
		Resource:  schema.GroupVersionResource{Resource: "services"},
		Namespace: "default",
		Object:    svc,
	}) == nil {
		t.Error("another service was let through")
	}
}
