// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/api/gates"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/auth/authz"
	"keelson/auth/authz/bootstrap"
	"keelson/cluster/credentials"
	"keelson/cluster/noderoles"
	"keelson/cluster/rights"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, file, got string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got; -update rewrites it):\n%s", path, d)
	}
}

// TestRights shows what every identity of the cluster's own may do. What grows here grows for a thief of its key.
func TestRights(t *testing.T) {
	rbac := &authz.RBAC{}
	rbac.Set(slices.DeleteFunc(bootstrapObjects(gates.On{}), func(o runtime.Object) bool {
		switch o.(type) {
		case *rbacv1.ClusterRole, *rbacv1.Role, *rbacv1.ClusterRoleBinding, *rbacv1.RoleBinding:
			return false
		}
		return true
	})...)
	var out strings.Builder
	show := func(what string, u *auth.User, also []rbacv1.PolicyRule) {
		fmt.Fprintf(&out, "%s: %s\n", what, u.Name)
		seen := map[string]bool{}
		for _, l := range slices.Sorted(slices.Values(slices.Concat(lines("", rbac.RulesFor(u, "")), lines("", also),
			lines(" in kube-system", rbac.RulesFor(u, "kube-system"))))) {
			if plain := strings.TrimSuffix(l, " in kube-system"); !seen[plain] {
				seen[plain] = true
				fmt.Fprintf(&out, "  %s\n", l)
			}
		}
	}
	show("everybody", &auth.User{Name: "system:authenticated", Groups: []string{auth.Authenticated}}, nil)
	show("strangers", anonymousUser(), nil)
	show("a node; the Node authorizer narrows each of these to what is its own",
		&auth.User{Name: "system:node:n1", Groups: []string{auth.Nodes}}, bootstrap.NodeRules())
	show("the API server as a client of kubelets", &auth.User{Name: credentials.KubeletClientUser}, nil)
	show("the API server as a client of aggregated servers", &auth.User{Name: credentials.FrontProxyUser}, nil)
	show("a bootstrap token", &auth.User{Name: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers"}},
		nil)
	rows := table()
	for i := range rows {
		r := &rows[i]
		if r.user == nil || r.name == noderoles.KubeletName {
			continue
		}
		u := r.user(Config{})
		show(r.name, &auth.User{Name: u.Name}, nil)
		if r.account != "" && rights.AccountUser(r.account) != u.Name {
			show(r.name+" next to a kubelet in a process of its own",
				&auth.User{Name: authn.ServiceAccountUser("kube-system", r.account, "", "").Name}, nil)
		}
	}
	golden(t, "rights.golden", out.String())
}

func anonymousUser() *auth.User {
	return &auth.User{Name: auth.Anonymous, Groups: []string{auth.Unauthenticated}}
}

// lines are rules, one each.
func lines(where string, rules []rbacv1.PolicyRule) []string {
	var out []string
	for _, policyRule := range rules {
		verbs := strings.Join(slices.Sorted(slices.Values(policyRule.Verbs)), ",")
		for _, u := range policyRule.NonResourceURLs {
			out = append(out, u+" "+verbs+where)
		}
		for _, g := range policyRule.APIGroups {
			for _, res := range policyRule.Resources {
				line := res
				if g != "" {
					line += "." + g
				}
				if len(policyRule.ResourceNames) > 0 {
					line += " " + strings.Join(policyRule.ResourceNames, "|")
				}
				out = append(out, line+" "+verbs+where)
			}
		}
	}
	return out
}

// TestNodeRBAC: what a node's roles need on an API server of Kubernetes is bound to that node alone.
func TestNodeRBAC(t *testing.T) {
	var b bytes.Buffer
	if err := WriteNodeRBAC(&b, "n2"); err != nil {
		t.Fatal(err)
	}
	golden(t, "noderbac.yaml", b.String())
	if err := WriteNodeRBAC(&b, "n2\nsubjects: []"); err == nil {
		t.Error("a strange name was taken")
	}
}
