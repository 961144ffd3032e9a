// SPDX-License-Identifier: Apache-2.0

package bootstrap_test

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"keelson/api/gates"
	"keelson/auth"
	"keelson/auth/authz"
	"keelson/auth/authz/bootstrap"
)

func TestPolicyHoldsTogether(t *testing.T) {
	roles := map[string]bool{}
	seen := map[string]bool{}
	for _, obj := range bootstrap.Policy(gates.On{}) {
		switch o := obj.(type) {
		case *rbacv1.ClusterRole:
			if roles[o.Name] {
				t.Errorf("ClusterRole %s twice", o.Name)
			}
			roles[o.Name] = true
			for _, r := range o.Rules {
				if len(r.Verbs) == 0 || len(r.Resources) == 0 && len(r.NonResourceURLs) == 0 {
					t.Errorf("ClusterRole %s has an empty rule %v", o.Name, r)
				}
			}
		case *rbacv1.ClusterRoleBinding:
			if seen[o.Name] {
				t.Errorf("ClusterRoleBinding %s twice", o.Name)
			}
			seen[o.Name] = true
			if !roles[o.RoleRef.Name] {
				t.Errorf("ClusterRoleBinding %s refers to %s, which is not there", o.Name, o.RoleRef.Name)
			}
		}
	}
}

func TestWhoMayWhat(t *testing.T) {
	rbac := &authz.RBAC{}
	rbac.Set(bootstrap.Policy(gates.On{})...)
	sa := func(name string) *auth.User { return &auth.User{Name: "system:serviceaccount:kube-system:" + name} }
	anyone := &auth.User{Name: "ann", Groups: []string{auth.Authenticated}}
	for _, c := range []struct {
		user                  *auth.User
		verb, group, resource string
		want                  bool
	}{
		{&auth.User{Name: "admin", Groups: []string{auth.Masters}}, "delete", "x.io", "anything", true},
		{anyone, "create", "authorization.k8s.io", "selfsubjectaccessreviews", true},
		{anyone, "list", "", "pods", false},
		{&auth.User{Name: "system:kube-scheduler"}, "list", "", "nodes", true},
		{&auth.User{Name: "system:kube-scheduler"}, "list", "", "secrets", false},
		{&auth.User{Name: "system:kube-scheduler"}, "delete", "resource.k8s.io", "resourceclaims", true},
		{sa("replicaset-controller"), "create", "", "pods", true},
		{sa("replicaset-controller"), "create", "", "secrets", false},
		{sa("deployment-controller"), "create", "apps", "replicasets", true},
		{sa("device-taint-eviction-controller"), "list", "resource.k8s.io", "devicetaintrules", true},
		{
			sa("kube-apiserver-serving-clustertrustbundle-publisher"), "create", "certificates.k8s.io",
			"clustertrustbundles", true,
		},
		{sa("podcertificaterequestcleaner"), "delete", "certificates.k8s.io", "podcertificaterequests", true},
		{sa("podcertificaterequestcleaner"), "create", "", "events", false},
		{sa("selinux-warning-controller"), "list", "storage.k8s.io", "csidrivers", true},
		{sa("storage-version-migrator-controller"), "patch", "x.io", "widgets", true},
		{&auth.User{Name: "system:kube-scheduler"}, "create", "coordination.k8s.io", "leasecandidates", true},
		{sa("generic-garbage-collector"), "delete", "x.io", "widgets", true},
	} {
		d, err := rbac.Authorize(t.Context(), &auth.Attributes{
			User:            c.user,
			Verb:            c.verb,
			Group:           c.group,
			Resource:        c.resource,
			ResourceRequest: true,
		})
		if err != nil || (d.Verdict == auth.Allow) != c.want {
			t.Errorf("%s %s %s/%s: got %+v, want allowed %v", c.user.Name, c.verb, c.group, c.resource, d, c.want)
		}
	}
}
