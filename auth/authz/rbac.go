// SPDX-License-Identifier: Apache-2.0

// Package authz authorizes requests: RBAC, the Node authorizer for kubelets, webhooks, and the union of several. The
// API server's pipeline calls it for every request; cluster builds it and feeds it the RBAC objects. It never reads the
// store itself: the RBAC rules are in an immutable snapshot that is replaced after changes.
package authz

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"keelson/auth"
	"keelson/event"
)

// RBAC authorizes by the roles and bindings given to Set and Remove. The zero value allows nothing. It is safe for
// concurrent use.
type RBAC struct {
	mu   sync.Mutex // guards the maps; snapshot is read without it
	crs  map[string]*rbacv1.ClusterRole
	rs   map[types.NamespacedName]*rbacv1.Role
	crbs map[string]bound[*rbacv1.ClusterRoleBinding]
	rbs  map[types.NamespacedName]bound[*rbacv1.RoleBinding]

	// snap is nil after a change, until the next request: many changes in a row cost one rebuild.
	snap atomic.Pointer[snapshot]
}

// bound is a binding with the index keys of its subjects.
type bound[T any] struct {
	binding  T
	subjects []reason
}

// reason is a subject with the reason why the binding allows it: as text and as fields.
type reason struct {
	subject subject
	why     string
	by      *event.Grant
}

// snapshot indexes grants by subject. It is never modified.
type snapshot struct {
	// cluster holds the grants of ClusterRoleBindings, local those of RoleBindings by namespace.
	cluster map[subject][]grant
	local   map[string]map[subject][]grant
}

type subject struct{ kind, name string }

// grant is the set of rules that one binding gives to one subject.
type grant struct {
	rules  []rbacv1.PolicyRule
	reason reason
}

// Set adds or updates ClusterRoles, Roles, ClusterRoleBindings and RoleBindings; other kinds are ignored. Objects are
// kept and never modified.
func (a *RBAC) Set(objs ...runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, obj := range objs {
		switch o := obj.(type) {
		case *rbacv1.ClusterRole:
			put(&a.crs, o.Name, o)
		case *rbacv1.Role:
			put(&a.rs, key(o.Namespace, o.Name), o)
		case *rbacv1.ClusterRoleBinding:
			put(&a.crbs, o.Name, bound[*rbacv1.ClusterRoleBinding]{o, clusterReasons(o)})
		case *rbacv1.RoleBinding:
			put(&a.rbs, key(o.Namespace, o.Name), bound[*rbacv1.RoleBinding]{o, localReasons(o)})
		}
	}
	a.snap.Store(nil)
}

// Remove removes a deleted object.
func (a *RBAC) Remove(obj runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch o := obj.(type) {
	case *rbacv1.ClusterRole:
		delete(a.crs, o.Name)
	case *rbacv1.Role:
		delete(a.rs, key(o.Namespace, o.Name))
	case *rbacv1.ClusterRoleBinding:
		delete(a.crbs, o.Name)
	case *rbacv1.RoleBinding:
		delete(a.rbs, key(o.Namespace, o.Name))
	}
	a.snap.Store(nil)
}

func put[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[k] = v
}

func key(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

func clusterReasons(b *rbacv1.ClusterRoleBinding) []reason {
	out := make([]reason, len(b.Subjects))
	for i, sub := range b.Subjects {
		out[i] = reasonOf(sub, event.Grant{
			Binding: event.Ref{Kind: "ClusterRoleBinding", Name: b.Name},
			Role:    event.Ref{Kind: "ClusterRole", Name: b.RoleRef.Name},
		})
	}
	return out
}

func localReasons(b *rbacv1.RoleBinding) []reason {
	out := make([]reason, len(b.Subjects))
	for i, sub := range b.Subjects {
		out[i] = reasonOf(sub, event.Grant{
			Binding: event.Ref{Kind: "RoleBinding", Namespace: b.Namespace, Name: b.Name},
			Role:    event.Ref{Kind: b.RoleRef.Kind, Name: b.RoleRef.Name},
		})
	}
	return out
}

// reasonOf builds the reason for one subject of a binding. The text is Kubernetes': a name precedes its namespace.
func reasonOf(sub rbacv1.Subject, grant event.Grant) reason {
	grant.Subject = event.Ref{Kind: sub.Kind, Name: sub.Name}
	if sub.Kind == rbacv1.ServiceAccountKind {
		grant.Subject.Namespace = cmp.Or(sub.Namespace, grant.Binding.Namespace)
	}
	name := func(r event.Ref) string {
		if r.Namespace == "" {
			return r.Name
		}
		return r.Name + "/" + r.Namespace
	}
	return reason{
		subjectOf(sub, grant.Binding.Namespace), fmt.Sprintf("RBAC: allowed by %s %q of %s %q to %s %q",
			grant.Binding.Kind, name(grant.Binding), grant.Role.Kind, grant.Role.Name, sub.Kind, name(grant.Subject)),
		&grant,
	}
}

// index returns the current snapshot.
func (a *RBAC) index() *snapshot {
	if s := a.snap.Load(); s != nil {
		return s
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.snap.Load() // another goroutine may have built it meanwhile
	if s == nil {
		s = a.indexLocked()
		a.snap.Store(s)
	}
	return s
}

func (a *RBAC) indexLocked() *snapshot {
	snap := &snapshot{cluster: map[subject][]grant{}, local: map[string]map[subject][]grant{}}
	for _, name := range slices.Sorted(maps.Keys(a.crbs)) {
		b := a.crbs[name]
		if cr, ok := a.crs[b.binding.RoleRef.Name]; ok {
			for _, r := range b.subjects {
				snap.cluster[r.subject] = append(snap.cluster[r.subject], grant{cr.Rules, r})
			}
		}
	}
	names := slices.SortedFunc(maps.Keys(a.rbs), func(x, y types.NamespacedName) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	for _, n := range names {
		b := a.rbs[n]
		rules, ok := a.rulesLocked(b.binding)
		if !ok {
			continue
		}
		if snap.local[n.Namespace] == nil {
			snap.local[n.Namespace] = map[subject][]grant{}
		}
		for _, r := range b.subjects {
			snap.local[n.Namespace][r.subject] = append(snap.local[n.Namespace][r.subject], grant{rules, r})
		}
	}
	return snap
}

func (a *RBAC) rulesLocked(b *rbacv1.RoleBinding) ([]rbacv1.PolicyRule, bool) {
	if b.RoleRef.Kind == "ClusterRole" {
		cr, ok := a.crs[b.RoleRef.Name]
		if !ok {
			return nil, false
		}
		return cr.Rules, true
	}
	r, ok := a.rs[key(b.Namespace, b.RoleRef.Name)]
	if !ok {
		return nil, false
	}
	return r.Rules, true
}

// subjectOf converts a binding's subject to an index key: a service account becomes a user name.
func subjectOf(s rbacv1.Subject, namespace string) subject {
	if s.Kind == rbacv1.ServiceAccountKind {
		return subject{rbacv1.UserKind, "system:serviceaccount:" + cmp.Or(s.Namespace, namespace) + ":" + s.Name}
	}
	return subject{s.Kind, s.Name}
}

// visit calls f for every grant of the user in namespace ("": cluster-wide only) until f returns false.
func (a *RBAC) visit(user *auth.User, namespace string, f func(grant) bool) {
	snapshot := a.index()
	each := func(m map[subject][]grant) bool {
		if len(m) == 0 {
			return true
		}
		for _, g := range m[subject{rbacv1.UserKind, user.Name}] {
			if !f(g) {
				return false
			}
		}
		for _, group := range user.Groups {
			for _, g := range m[subject{rbacv1.GroupKind, group}] {
				if !f(g) {
					return false
				}
			}
		}
		return true
	}
	if each(snapshot.cluster) && namespace != "" {
		each(snapshot.local[namespace])
	}
}

// Authorize allows a request that a rule of the user covers. It never denies, so that another authorizer may allow.
func (a *RBAC) Authorize(_ context.Context, at *auth.Attributes) (auth.Decision, error) {
	var d auth.Decision
	a.visit(at.User, at.Namespace, func(g grant) bool {
		for i := range g.rules {
			if Covers(&g.rules[i], at) {
				d = auth.Decision{Verdict: auth.Allow, Reason: g.reason.why, Grant: g.reason.by}
				return false
			}
		}
		return true
	})
	return d, nil
}

// RulesFor lists the user's rules in namespace, for SelfSubjectRulesReview.
func (a *RBAC) RulesFor(u *auth.User, namespace string) []rbacv1.PolicyRule {
	var out []rbacv1.PolicyRule
	a.visit(u, namespace, func(g grant) bool {
		out = append(out, g.rules...)
		return true
	})
	return out
}

// RoleRules are the rules of the role that a binding in namespace refers to; ok is false when the role does not exist.
func (a *RBAC) RoleRules(ref rbacv1.RoleRef, namespace string) (rules []rbacv1.PolicyRule, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rulesLocked(&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, RoleRef: ref})
}

// Covers reports whether a rule allows a request.
func Covers(r *rbacv1.PolicyRule, at *auth.Attributes) bool {
	if !has(r.Verbs, at.Verb) {
		return false
	}
	if !at.ResourceRequest {
		return slices.ContainsFunc(r.NonResourceURLs, func(p string) bool { return pathMatches(p, at.Path) })
	}
	if !has(r.APIGroups, at.Group) || !hasResource(r.Resources, at.Resource, at.Subresource) {
		return false
	}
	return len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, at.Name)
}

func has(list []string, want string) bool {
	return slices.Contains(list, want) || slices.Contains(list, "*")
}

func hasResource(list []string, resource, sub string) bool {
	for _, r := range list {
		if r == "*" {
			return true
		}
		if sub == "" {
			if r == resource {
				return true
			}
			continue
		}
		res, s, ok := strings.Cut(r, "/")
		if ok && s == sub && (res == resource || res == "*") {
			return true
		}
	}
	return false
}

func pathMatches(pattern, path string) bool {
	if pattern == "*" || pattern == path {
		return true
	}
	prefix, ok := strings.CutSuffix(pattern, "*")
	return ok && strings.HasPrefix(path, prefix)
}
