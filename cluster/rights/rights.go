// SPDX-License-Identifier: Apache-2.0

// Package rights is what the users of a cluster's roles may do: the RBAC objects and service accounts that each cluster
// has for them, next to Kubernetes' bootstrap policy. It makes objects of the rows that it is given and writes none to
// a server.
package rights

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
	"keelson/auth/authn"
)

// Role is a role as its rights see it.
type Role struct {
	Name string
	// User is the name of its user.
	User string
	// Alone says that it can be a process of its own, which is not a node.
	Alone bool
	// OnNode says that it runs next to a kubelet.
	OnNode bool
	// Account is the service account in kube-system as which it works next to a kubelet in another process than the
	// server; empty: there is none.
	Account string
	// Bound is a ClusterRole of Kubernetes that is bound to the user and the account. Rules are further rights, as the
	// ClusterRole keelson:NAME. Neither: Kubernetes' bootstrap policy binds the user.
	Bound string
	Rules []rbacv1.PolicyRule
}

// Roles are the roles of a cluster.
type Roles []Role

// nodeRolesName is the Role by which nodes may request tokens for the roles that run next to their kubelets.
const nodeRolesName = "keelson:node-roles"

// updated is the metadata of an object that a later version updates, unless the administrator sets autoupdate "false".
func updated(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace:   namespace,
		Name:        name,
		Annotations: map[string]string{"rbac.authorization.kubernetes.io/autoupdate": "true"},
	}
}

// AccountUser is the user name of a service account of kube-system.
func AccountUser(name string) string {
	return authn.ServiceAccountUser(metav1.NamespaceSystem, name, "", auth.InProcess).Name
}

// Objects are the objects of all roles.
func (roles Roles) Objects() []runtime.Object {
	var out []runtime.Object
	for _, role := range roles {
		out = append(out, role.objects()...)
	}
	return append(append(out, roles.serversObjects()...), roles.accountObjects()...)
}

// objects are a role's ClusterRole, if it has rules, and the binding.
func (role Role) objects() []runtime.Object {
	var out []runtime.Object
	bound := role.Bound
	if len(role.Rules) > 0 {
		bound = "keelson:" + role.Name
		out = append(out, &rbacv1.ClusterRole{ObjectMeta: updated("", bound), Rules: role.Rules})
	}
	if bound == "" {
		return nil
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: updated("", "keelson:"+role.Name),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: bound},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: role.User}},
	}
	// a role whose user is its service account needs one subject
	if role.Account != "" && AccountUser(role.Account) != role.User {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{
			Kind:      rbacv1.ServiceAccountKind,
			Namespace: metav1.NamespaceSystem,
			Name:      role.Account,
		})
	}
	return append(out, binding)
}

// serversObjects are the RBAC objects by which agents in processes of their own learn the addresses of the API servers
// (client/servers).
func (roles Roles) serversObjects() []runtime.Object {
	meta := updated(metav1.NamespaceDefault, "keelson:servers")
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: auth.Nodes}}
	for _, role := range roles {
		if role.Alone {
			subjects = append(subjects, rbacv1.Subject{
				APIGroup: rbacv1.GroupName,
				Kind:     rbacv1.UserKind,
				Name:     role.User,
			})
		}
	}
	return []runtime.Object{
		&rbacv1.Role{
			ObjectMeta: meta,
			Rules: []rbacv1.PolicyRule{
				{
					APIGroups:     []string{""},
					Resources:     []string{"endpoints"},
					ResourceNames: []string{"kubernetes"},
					Verbs:         []string{"get", "list", "watch"},
				},
			},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: *meta.DeepCopy(),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
			Subjects:   subjects,
		},
	}
}

// Accounts are the names of the service accounts.
func (roles Roles) Accounts() []string {
	var out []string
	for _, role := range roles {
		if role.Account != "" {
			out = append(out, role.Account)
		}
	}
	slices.Sort(out)
	return out
}

// AccountsBeside maps the users of roles to the service accounts as which they work next to a kubelet.
func (roles Roles) AccountsBeside() map[string]string {
	out := map[string]string{}
	for _, role := range roles {
		if role.Account != "" {
			out[role.User] = role.Account
		}
	}
	return out
}

// accountObjects are the service accounts of the roles next to kubelets, and the RBAC that lets nodes request tokens
// for them. NodeRestriction allows a node only tokens bound to its own Node object. To deny nodes a role, delete its
// name from the Role and set autoupdate "false".
func (roles Roles) accountObjects() []runtime.Object {
	names := roles.Accounts()
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
	meta := updated(metav1.NamespaceSystem, nodeRolesName)
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

// WriteNode writes, as YAML, the RBAC objects for the roles of a node that works as itself, on an API server that is
// not Keelson's.
func (roles Roles) WriteNode(w io.Writer, node string) error {
	if errs := validation.IsDNS1123Subdomain(node); len(errs) > 0 {
		return fmt.Errorf("%q is no name of a node: %s", node, strings.Join(errs, "; "))
	}
	var out []runtime.Object
	for _, role := range roles {
		if role.Account == "" {
			continue
		}
		name := "keelson:" + strings.ReplaceAll(role.Name, " ", "-")
		bound := role.Bound
		if len(role.Rules) > 0 {
			bound = name
			out = append(out, &rbacv1.ClusterRole{
				TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Rules:      role.Rules,
			})
		}
		out = append(out, &rbacv1.ClusterRoleBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
			ObjectMeta: metav1.ObjectMeta{Name: name + ":" + node},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: bound},
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

// OldNodeBindings are the ClusterRoleBindings of versions before decision 0115, which let every node read what the
// roles next to its kubelet read.
func (roles Roles) OldNodeBindings() []*rbacv1.ClusterRoleBinding {
	var out []*rbacv1.ClusterRoleBinding
	for _, role := range roles {
		if role.OnNode && (role.Bound != "" || len(role.Rules) > 0) {
			out = append(out, &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: "keelson:" + role.Name},
				Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: auth.Nodes}},
			})
		}
	}
	return out
}

// askName is the name of the ClusterRole by which every authenticated user may ask why. An answer has nothing that the
// user may not read.
const askName = "keelson:ask"

// Ask are the objects by which every authenticated user may ask the timeline. posts are further paths that take a
// question by POST.
func Ask(posts ...string) []runtime.Object {
	return []runtime.Object{
		&rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: askName},
			Rules: []rbacv1.PolicyRule{
				{Verbs: []string{"get"}, NonResourceURLs: []string{"/keelson/v1/ask/why/*"}},
				{Verbs: []string{"post"}, NonResourceURLs: append([]string{"/keelson/v1/ask/trace/*"}, posts...)},
			},
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: askName},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: askName},
			Subjects: []rbacv1.Subject{
				{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: auth.Authenticated},
			},
		},
	}
}
