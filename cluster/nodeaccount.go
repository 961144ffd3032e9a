// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"keelson/auth"
)

// nodeRolesName is the Role by which nodes may request tokens for the roles that run next to their kubelets.
const nodeRolesName = "keelson:node-roles"

// accountUser is the user name of a service account of kube-system.
func accountUser(name string) string { return account(name)(Config{}).Name }

// nodeAccountNames are the service accounts of the roles next to a kubelet.
func nodeAccountNames(rows []role) []string {
	var out []string
	for i := range rows {
		if a := rows[i].account; a != "" {
			out = append(out, a)
		}
	}
	slices.Sort(out)
	return out
}

// nodeAccountObjects are the service accounts of the roles next to kubelets, and the RBAC that lets nodes request
// tokens for them. NodeRestriction allows a node only tokens bound to its own Node object. To deny nodes a role, delete
// its name from the Role and set autoupdate "false".
func nodeAccountObjects(rows []role) []runtime.Object {
	names := nodeAccountNames(rows)
	if len(names) == 0 {
		return nil
	}
	var out []runtime.Object
	for _, name := range names {
		no := false
		out = append(out, &corev1.ServiceAccount{
			ObjectMeta:                   metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name},
			AutomountServiceAccountToken: &no,
		})
	}
	meta := metav1.ObjectMeta{
		Namespace:   metav1.NamespaceSystem,
		Name:        nodeRolesName,
		Annotations: map[string]string{"rbac.authorization.kubernetes.io/autoupdate": "true"},
	}
	return append(out,
		&rbacv1.Role{
			ObjectMeta: meta,
			Rules: []rbacv1.PolicyRule{
				{
					APIGroups:     []string{""},
					Resources:     []string{"serviceaccounts/token"},
					ResourceNames: names,
					Verbs:         []string{"create"},
				},
			},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: *meta.DeepCopy(),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: nodeRolesName},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: auth.Nodes}},
		})
}

// WriteNodeRBAC writes, as YAML, the RBAC objects for the roles of a node that works as itself, on an API server that
// is not Keelson's.
func WriteNodeRBAC(w io.Writer, node string) error {
	if errs := validation.IsDNS1123Subdomain(node); len(errs) > 0 {
		return fmt.Errorf("%q is no name of a node: %s", node, strings.Join(errs, "; "))
	}
	rows := table()
	var out []runtime.Object
	for i := range rows {
		r := &rows[i]
		if r.account == "" {
			continue
		}
		name := "keelson:" + strings.ReplaceAll(r.name, " ", "-")
		role := r.bound
		if len(r.rules) > 0 {
			role = name
			out = append(out, &rbacv1.ClusterRole{
				TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Rules:      r.rules,
			})
		}
		out = append(out, &rbacv1.ClusterRoleBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
			ObjectMeta: metav1.ObjectMeta{Name: name + ":" + node},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{
				{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:node:" + node},
			},
		})
	}
	for _, o := range out {
		b, err := yaml.Marshal(o)
		if err != nil {
			return fmt.Errorf("encode a role of node %s: %w", node, err)
		}
		if _, err := fmt.Fprintf(w, "---\n%s", b); err != nil {
			return err
		}
	}
	return nil
}

// oldNodeBindings are the ClusterRoleBindings of versions before decision 0115, which let every node read what the
// roles next to its kubelet read.
func oldNodeBindings(rows []role) []*rbacv1.ClusterRoleBinding {
	var out []*rbacv1.ClusterRoleBinding
	for i := range rows {
		if r := &rows[i]; r.node && (r.bound != "" || len(r.rules) > 0) {
			out = append(out, &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: "keelson:" + r.name},
				Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: auth.Nodes}},
			})
		}
	}
	return out
}

// accountsBeside maps the users of roles to the service accounts as which they work next to a kubelet.
func accountsBeside(rows []role) map[string]string {
	out := map[string]string{}
	for i := range rows {
		if r := &rows[i]; r.account != "" {
			out[r.user(Config{}).Name] = r.account
		}
	}
	return out
}
