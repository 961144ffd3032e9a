// SPDX-License-Identifier: Apache-2.0

// Package bootstrap holds the RBAC policy of a new cluster: the user-facing roles (cluster-admin, admin, edit, view),
// the discovery roles, and a role for each component and controller. cluster adds it to the objects that the API server
// creates, or extends (rbac.authorization.kubernetes.io/autoupdate), at each start. It is data only. Source of the
// names: the Kubernetes documentation, "Using RBAC Authorization".
package bootstrap

import (
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/api/gates"
)

const (
	read  = "get list watch"
	write = "create delete deletecollection patch update"
)

// on is a rule for resources of one API group. Each argument is a list separated by spaces.
func on(verbs, group, resources string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{
		Verbs:     strings.Fields(verbs),
		APIGroups: []string{group},
		Resources: strings.Fields(resources),
	}
}

// named is a rule for objects of the given names.
func named(verbs, group, resources, names string) rbacv1.PolicyRule {
	r := on(verbs, group, resources)
	r.ResourceNames = strings.Fields(names)
	return r
}

// paths is a rule for non-resource URLs.
func paths(verbs, urls string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: strings.Fields(verbs), NonResourceURLs: strings.Fields(urls)}
}

// events lets a component record events in both API groups.
var events = []rbacv1.PolicyRule{{
	Verbs:     []string{"create", "patch", "update"},
	APIGroups: []string{"", "events.k8s.io"},
	Resources: []string{"events"},
}}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:        name,
		Labels:      map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
		Annotations: map[string]string{"rbac.authorization.kubernetes.io/autoupdate": "true"},
	}
}

// Policy returns new objects for the given feature gates: roles first, then their bindings.
func Policy(gated gates.On) []runtime.Object {
	roles := maps.Clone(userFacing())
	maps.Copy(roles, components())
	loops := controllers()
	if gated.GenericWorkload {
		roles["system:kube-scheduler"] = append(roles["system:kube-scheduler"], groupRules.scheduler...)
		loops["podgroup-protection-controller"] = groupRules.protection
	}
	for name, rules := range loops {
		roles["system:controller:"+name] = rules
	}
	var out []runtime.Object
	for _, name := range slices.Sorted(maps.Keys(roles)) {
		out = append(out, &rbacv1.ClusterRole{ObjectMeta: meta(name), Rules: roles[name]})
	}
	out = append(out, aggregated(gated)...)
	for _, b := range clusterBindings() {
		out = append(out, clusterBinding(b.name, b.role, b.subjects...))
	}
	for _, name := range slices.Sorted(maps.Keys(loops)) {
		role := "system:controller:" + name
		out = append(out, clusterBinding(role, role, serviceAccount(name)))
	}
	return append(out, local()...)
}

// groupRules are added by the feature gate GenericWorkload.
var groupRules = struct{ edit, view, scheduler, protection []rbacv1.PolicyRule }{
	edit: []rbacv1.PolicyRule{on(write, "scheduling.k8s.io", "workloads podgroups")},
	view: []rbacv1.PolicyRule{on(read, "scheduling.k8s.io", "workloads podgroups podgroups/status")},
	scheduler: []rbacv1.PolicyRule{
		on(read, "scheduling.k8s.io", "podgroups"), on("patch update", "scheduling.k8s.io", "podgroups/status"),
	},
	protection: []rbacv1.PolicyRule{on(read+" update", "scheduling.k8s.io", "podgroups"), on(read, "", "pods")},
}

func clusterBinding(name, role string, subjects ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta(name),
		Subjects:   subjects,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}
}

func user(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}
}

func group(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: name}
}

func serviceAccount(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: name}
}

type bindingRow struct {
	name, role string
	subjects   []rbacv1.Subject
}

func clusterBindings() []bindingRow {
	same := func(role string, s ...rbacv1.Subject) bindingRow { return bindingRow{role, role, s} }
	authenticated := group("system:authenticated")
	return []bindingRow{
		same("cluster-admin", group("system:masters")),
		same("system:monitoring", group("system:monitoring")),
		same("system:discovery", authenticated),
		same("system:basic-user", authenticated),
		same("system:public-info-viewer", authenticated, group("system:unauthenticated")),
		same("system:node-proxier", user("system:kube-proxy")),
		same("system:kube-controller-manager", user("system:kube-controller-manager")),
		same("system:kube-dns", serviceAccount("kube-dns")),
		same("system:kube-scheduler", user("system:kube-scheduler")),
		same("system:volume-scheduler", user("system:kube-scheduler")),
		// The Node authorizer covers nodes. The role exists so that administrators can bind it.
		same("system:node"),
		same("system:service-account-issuer-discovery", group("system:serviceaccounts")),
		same("system:cluster-trust-bundle-discovery", group("system:serviceaccounts")),
	}
}

// local are the roles in kube-system and kube-public.
func local() []runtime.Object {
	var out []runtime.Object
	bind := func(ns, name, role string, subjects ...rbacv1.Subject) {
		m := meta(name)
		m.Namespace = ns
		out = append(out, &rbacv1.RoleBinding{
			ObjectMeta: m,
			Subjects:   subjects,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
		})
	}
	add := func(ns, name string, subjects []rbacv1.Subject, rules ...rbacv1.PolicyRule) {
		m := meta(name)
		m.Namespace = ns
		out = append(out, &rbacv1.Role{ObjectMeta: m, Rules: rules})
		if len(subjects) > 0 {
			bind(ns, name, name, subjects...)
		}
	}
	account := func(name string) []rbacv1.Subject { return []rbacv1.Subject{serviceAccount(name)} }
	manager := user("system:kube-controller-manager")
	scheduler := user("system:kube-scheduler")
	locking := []rbacv1.PolicyRule{
		on("create get list update watch", "coordination.k8s.io", "leases"),
		on("create get list update watch", "coordination.k8s.io", "leasecandidates"),
	}
	sys := metav1.NamespaceSystem
	public := metav1.NamespacePublic
	add(sys, "extension-apiserver-authentication-reader", nil,
		named(read, "", "configmaps", "extension-apiserver-authentication"))
	bind(sys, "system::extension-apiserver-authentication-reader", "extension-apiserver-authentication-reader",
		manager, scheduler)
	add(sys, "system::leader-locking-kube-controller-manager",
		[]rbacv1.Subject{
			manager, serviceAccount("kube-controller-manager"), serviceAccount("leader-election-controller"),
		}, locking...)
	add(sys, "system::leader-locking-kube-scheduler", []rbacv1.Subject{scheduler, serviceAccount("kube-scheduler")},
		locking...)
	add(sys, "system:controller:cloud-provider", account("cloud-provider"), on("create "+read, "", "configmaps"))
	add(sys, "system:controller:bootstrap-signer", account("bootstrap-signer"), on(read, "", "secrets"))
	add(sys, "system:controller:token-cleaner", account("token-cleaner"),
		append([]rbacv1.PolicyRule{on(read+" delete", "", "secrets")}, events...)...)
	add(public, "system:controller:bootstrap-signer", account("bootstrap-signer"),
		append([]rbacv1.PolicyRule{on(read, "", "configmaps"), named("update", "", "configmaps", "cluster-info")},
			events...)...)
	return out
}
