// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/apiserver/servertest"
	"keelson/lib/waittest"
)

// TestEscalation: a user cannot grant permissions that the user does not hold.
func TestEscalation(t *testing.T) {
	running := servertest.StartSecured(t, nil)
	const group = rbacv1.GroupName
	running.Grant(t, "editor", "eve",
		servertest.PolicyRule([]string{"*"}, []string{group}, []string{"roles", "clusterroles", "rolebindings", "clusterrolebindings"}))
	// "*" on roles holds escalate and bind too: take a user without those.
	running.Grant(t, "writer", "walt", servertest.PolicyRule([]string{"create", "update", "patch", "get", "delete"}, []string{group},
		[]string{"roles", "clusterroles", "rolebindings", "clusterrolebindings"}),
		servertest.PolicyRule([]string{"get", "list"}, []string{""}, []string{"pods"}))
	walt := kubernetes.NewForConfigOrDie(running.User("walt", "devs")).RbacV1()
	eve := kubernetes.NewForConfigOrDie(running.User("eve")).RbacV1()
	ctx := t.Context()
	role := func(name string, rules ...rbacv1.PolicyRule) *rbacv1.Role {
		return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	}
	if _, err := walt.Roles("default").Create(ctx, role("held", servertest.PolicyRule([]string{"get"}, []string{""}, []string{"pods"})),
		metav1.CreateOptions{}); err != nil {
		t.Errorf("a role within one's own: %v", err)
	}
	_, err := walt.Roles("default").Create(ctx, role("more", servertest.PolicyRule([]string{"get", "delete", "watch"}, []string{""},
		[]string{"pods", "secrets"})), metav1.CreateOptions{})
	want := `roles.rbac.authorization.k8s.io "more" is forbidden: user "walt" (groups=["devs" "system:authenticated"]) is attempting to grant RBAC permissions not currently held:` +
		"\n" + `{APIGroups:[""], Resources:["pods"], Verbs:["delete" "watch"]}` + "\n" +
		`{APIGroups:[""], Resources:["secrets"], Verbs:["get" "delete" "watch"]}`
	if !apierrors.IsForbidden(err) || err.Error() != want {
		t.Errorf("a role beyond one's own: %v\nwant %s", err, want)
	}
	if _, err := eve.Roles("default").Create(ctx,
		role("more", servertest.PolicyRule([]string{"delete"}, []string{""}, []string{"secrets"})), metav1.CreateOptions{}); err != nil {
		t.Errorf("with escalate: %v", err)
	}
	aggregate := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "agg"},
		AggregationRule: &rbacv1.AggregationRule{
			ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"a": "b"}}},
		},
	}
	_, err = walt.ClusterRoles().Create(ctx, aggregate, metav1.CreateOptions{})
	if want := `clusterroles.rbac.authorization.k8s.io "agg" is forbidden: must have cluster-admin privileges to use the aggregationRule`; err == nil ||
		err.Error() != want {
		t.Errorf("an aggregation rule: %v, want %s", err, want)
	}
	// Updates are checked in the same way; those of the garbage collector are not.
	_, err = walt.Roles("default").Patch(ctx, "held", types.MergePatchType,
		[]byte(`{"rules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"]}]}`), metav1.PatchOptions{})
	if !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), `{APIGroups:["*"], Resources:["*"], Verbs:["*"]}`) {
		t.Errorf("an update beyond one's own: %v", err)
	}
	if _, err = walt.Roles("default").Patch(ctx, "more", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":["example.com/x"]}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("a finalizer on another's role: %v", err)
	}
	if _, err = walt.Roles("default").Patch(ctx, "more", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a label on another's role: %v", err)
	}
	bind := func(kind, name string) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "b-" + name},
			RoleRef:    rbacv1.RoleRef{APIGroup: group, Kind: kind, Name: name},
			Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: group, Name: "walt"}},
		}
	}
	if _, err := walt.RoleBindings("default").Create(ctx, bind("Role", "held"), metav1.CreateOptions{}); err != nil {
		t.Errorf("a binding of a role within one's own: %v", err)
	}
	_, err = walt.RoleBindings("default").Create(ctx, bind("ClusterRole", "cluster-admin"), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) ||
		!strings.HasPrefix(err.Error(),
			`rolebindings.rbac.authorization.k8s.io "b-cluster-admin" is forbidden: user "walt" (groups=["devs" "system:authenticated"]) is attempting to grant RBAC permissions not currently held:`) ||
		!strings.Contains(err.Error(), `{NonResourceURLs:["*"], Verbs:["*"]}`) {
		t.Errorf("a binding of cluster-admin: %v", err)
	}
	if _, err = walt.RoleBindings("default").Create(ctx, bind("Role", "absent"),
		metav1.CreateOptions{}); !apierrors.IsNotFound(err) ||
		err.Error() != `rolebindings.rbac.authorization.k8s.io "absent" not found` {
		t.Errorf("a binding of nothing: %v", err)
	}
	if _, err := eve.RoleBindings("default").Create(ctx, bind("ClusterRole", "cluster-admin"),
		metav1.CreateOptions{}); err != nil {
		t.Errorf("with bind: %v", err)
	}
	// A user who may escalate one role may not make another one, or that one again.
	running.Grant(t, "target", "no-one", servertest.PolicyRule([]string{"list"}, []string{""}, []string{"nodes"}))
	running.Grant(t, "tom", "tom", servertest.PolicyRule([]string{"create", "update", "patch", "get"}, []string{group},
		[]string{"clusterroles"}), servertest.PolicyRule([]string{"escalate"}, []string{group}, []string{"clusterroles"}, "target"))
	tom := kubernetes.NewForConfigOrDie(running.User("tom")).RbacV1().ClusterRoles()
	wide := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "target"},
		Rules: []rbacv1.PolicyRule{
			servertest.PolicyRule([]string{"get"}, []string{""}, []string{"pods"}),
		},
	}
	if _, err := tom.Update(ctx, wide, metav1.UpdateOptions{}); err != nil {
		t.Errorf("escalate by name: %v", err)
	}
	wide.Name = "target2"
	if _, err := tom.Create(ctx, wide, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("escalate by name, of a new role: %v", err)
	}
	// An apply is a create, and wants its rights.
	running.Grant(t, "patcher", "pat", servertest.PolicyRule([]string{"patch"}, []string{""}, []string{"configmaps"}))
	got := servertest.CallAs(t, running.User("pat"), "PATCH", servertest.MapsPath+"/new?fieldManager=x",
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"new"}}`, "Content-Type", servertest.ApplyPatch)
	got.Wants(t, "apply of what is not there", 403,
		`configmaps "new" is forbidden: User "pat" cannot create resource "configmaps" in API group "" in the namespace "default"`)
}

// TestAccessReviews asks the server what a user may do.
func TestAccessReviews(t *testing.T) {
	running := servertest.StartSecured(t, nil)
	running.Grant(t, "reader", "rita", servertest.PolicyRule([]string{"get", "list"}, []string{""}, []string{"pods", "pods/log"}),
		rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/metrics", "/debug/*"}})
	admin := running.Clients(t).AuthorizationV1()
	rita := kubernetes.NewForConfigOrDie(running.User("rita")).AuthorizationV1()
	ctx := t.Context()
	for _, c := range []struct {
		ra      *authorizationv1.ResourceAttributes
		nra     *authorizationv1.NonResourceAttributes
		allowed bool
	}{
		{&authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods", Namespace: "x"}, nil, true},
		{&authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods", Subresource: "log"}, nil, true},
		{&authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods", Subresource: "exec"}, nil, false},
		{&authorizationv1.ResourceAttributes{Verb: "delete", Resource: "pods"}, nil, false},
		{nil, &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/debug/pprof"}, true},
		{nil, &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/debugger"}, false},
	} {
		self, err := rita.SelfSubjectAccessReviews().Create(ctx,
			&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes:    c.ra,
				NonResourceAttributes: c.nra,
			}}, metav1.CreateOptions{})
		if err != nil || self.Status.Allowed != c.allowed || self.Status.Denied {
			t.Errorf("self %v %v: %v %+v", c.ra, c.nra, err, self.Status)
		}
		other, err := admin.SubjectAccessReviews().Create(ctx,
			&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User:                  "rita",
				ResourceAttributes:    c.ra,
				NonResourceAttributes: c.nra,
			}}, metav1.CreateOptions{})
		if err != nil || other.Status.Allowed != c.allowed {
			t.Errorf("other %v %v: %v %+v", c.ra, c.nra, err, other.Status)
		}
		if c.allowed && !strings.HasPrefix(other.Status.Reason,
			`RBAC: allowed by ClusterRoleBinding "reader" of ClusterRole "reader" to User "rita"`) {
			t.Errorf("reason %q", other.Status.Reason)
		}
	}
	rules, err := rita.SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"},
	}, metav1.CreateOptions{})
	if err != nil || rules.Status.Incomplete || !slices.ContainsFunc(rules.Status.ResourceRules, func(
		x authorizationv1.ResourceRule,
	) bool {
		return slices.Equal(x.Resources, []string{"pods", "pods/log"})
	}) {
		t.Errorf("rules: %v %+v", err, rules.Status)
	}
	all, err := admin.SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"},
	}, metav1.CreateOptions{})
	if err != nil || len(all.Status.ResourceRules) == 0 || !slices.Equal(all.Status.ResourceRules[0].Verbs,
		[]string{"*"}) {
		t.Errorf("an administrator's rules: %v %+v", err, all)
	}
	const base = "/apis/authorization.k8s.io/v1/"
	const sar = `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":%}`
	for spec, text := range map[string]string{
		`{"user":"u"}`:              `.authorization.k8s.io "" is invalid: spec: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified`,
		`{"resourceAttributes":{}}`: `spec.user: Invalid value: "": at least one of user or group must be specified`,
		`{"user":"u","resourceAttributes":{},"nonResourceAttributes":{}}`:                                                            `spec: Invalid value: {"Path":"","Verb":""}: exactly one of nonResourceAttributes or resourceAttributes must be specified`,
		`{"user":"u","resourceAttributes":{"fieldSelector":{}}}`:                                                                     `spec.resourceAttributes.fieldSelector.requirements: Required value: when spec.resourceAttributes.fieldSelector is specified, requirements or rawSelector is required`,
		`{"user":"u","resourceAttributes":{"labelSelector":{"rawSelector":"a=b","requirements":[{"key":"a","operator":"Exists"}]}}}`: `may not specified at the same time as requirements`,
	} {
		running.Call(t, "POST", base+"subjectaccessreviews", strings.Replace(sar, "%", spec, 1)).Wants(t, spec, 422,
			text)
	}
	running.Call(t, "POST", base+"namespaces/default/localsubjectaccessreviews",
		`{"apiVersion":"authorization.k8s.io/v1","kind":"LocalSubjectAccessReview","spec":{"user":"u","resourceAttributes":{"namespace":"other"}}}`).
		Wants(t, "another namespace", 422,
			`spec.resourceAttributes.namespace: Invalid value: "other": must match metadata.namespace`)
	running.Call(t, "POST", base+"namespaces/default/localsubjectaccessreviews",
		`{"apiVersion":"authorization.k8s.io/v1","kind":"LocalSubjectAccessReview","spec":{"user":"u","nonResourceAttributes":{}}}`).
		Wants(t, "a path", 422,
			`spec.nonResourceAttributes: Invalid value: {"Path":"","Verb":""}: disallowed on this kind of request`)
	running.Call(t, "POST", base+"subjectaccessreviews", strings.Replace(sar, "%",
		`{"user":"u","resourceAttributes":{"labelSelector":{"requirements":[{"key":"a","operator":"Near"}]}}}`, 1)).
		Wants(t, "an operator of another version", 201, `"allowed":false`)
	// Selectors reach the authorizer: a node may list its own pods.
	for selector, allowed := range map[string]bool{"spec.nodeName=n1": true, "spec.nodeName=n2": false} {
		got, err := admin.SubjectAccessReviews().Create(
			ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User:   "system:node:n1",
				Groups: []string{"system:nodes"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb:          "list",
					Resource:      "pods",
					FieldSelector: &authorizationv1.FieldSelectorAttributes{RawSelector: selector},
				},
			}}, metav1.CreateOptions{})
		if err != nil || got.Status.Allowed != allowed {
			t.Errorf("pods with %s: %v %+v", selector, err, got.Status)
		}
	}
}

// TestImpersonation acts as others, in every part of an identity.
func TestImpersonation(t *testing.T) {
	running := servertest.StartSecured(t, nil)
	running.Grant(t, "actor", "ann", servertest.PolicyRule([]string{"impersonate"}, []string{""}, []string{"users"}, "bob"),
		servertest.PolicyRule([]string{"impersonate"}, []string{""}, []string{"groups"}, "devs"),
		servertest.PolicyRule([]string{"impersonate"}, []string{"authentication.k8s.io"}, []string{"userextras/team"}, "blue"), servertest.PolicyRule(
			[]string{"impersonate"}, []string{"authentication.k8s.io"}, []string{"uids"}, "u-1"))
	const path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	const body = `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`
	who := func(cfg *rest.Config, headers ...string) (servertest.Reply, authenticationv1.UserInfo) {
		t.Helper()
		got := servertest.CallAs(t, cfg, "POST", path, body, headers...)
		var review authenticationv1.SelfSubjectReview
		if got.Code == 201 {
			got.Into(t, &review)
		}
		return got, review.Status.UserInfo
	}
	_, u := who(running.User("ann"), "Impersonate-User", "bob", "Impersonate-Group", "devs", "Impersonate-Extra-Team",
		"blue",
		"Impersonate-Uid", "u-1")
	if u.Username != "bob" || u.UID != "u-1" || !slices.Equal(u.Groups, []string{"devs", "system:authenticated"}) ||
		len(u.Extra["team"]) != 1 || u.Extra["team"][0] != "blue" {
		t.Errorf("impersonated: %+v", u)
	}
	_, u = who(running.Rest, "Impersonate-User", "system:serviceaccount:ns:sa")
	if !slices.Equal(u.Groups,
		[]string{"system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"}) {
		t.Errorf("a service account: %+v", u)
	}
	got, _ := who(running.Rest, "Impersonate-User", "bob", "Impersonate-Group", "system:unauthenticated")
	got.Wants(t, "who is not authenticated", 403, `User "bob" cannot create resource "selfsubjectreviews"`)
	got, _ = who(running.Rest, "Impersonate-User", "system:anonymous")
	got.Wants(t, "the anonymous", 403,
		`User "system:anonymous" cannot create resource "selfsubjectreviews" in API group "authentication.k8s.io" at the cluster scope`)
	for _, c := range []struct {
		what    string
		headers []string
		code    int
		text    string
	}{
		{
			"another user",
			[]string{"Impersonate-User", "carl"},
			403,
			`users "carl" is forbidden: User "ann" cannot impersonate resource "users" in API group "" at the cluster scope`,
		},
		{
			"another group",
			[]string{"Impersonate-User", "bob", "Impersonate-Group", "system:masters"},
			403,
			`groups "system:masters" is forbidden: User "ann" cannot impersonate resource "groups" in API group "" at the cluster scope`,
		},
		{
			"another extra",
			[]string{"Impersonate-User", "bob", "Impersonate-Extra-Team", "red"},
			403,
			`userextras.authentication.k8s.io "red" is forbidden: User "ann" cannot impersonate resource "userextras/team" in API group "authentication.k8s.io" at the cluster scope`,
		},
		{
			"another uid",
			[]string{"Impersonate-User", "bob", "Impersonate-Uid", "u-2"},
			403,
			`uids.authentication.k8s.io "u-2" is forbidden`,
		},
		{
			"a service account",
			[]string{"Impersonate-User", "system:serviceaccount:ns:sa"},
			403,
			`serviceaccounts "sa" is forbidden: User "ann" cannot impersonate resource "serviceaccounts" in API group "" in the namespace "ns"`,
		},
		{
			"a group without a user",
			[]string{"Impersonate-Group", "devs"},
			400,
			`requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"devs"}, Extra:map[string][]string(nil)} without impersonating a user name`,
		},
		{
			"no service account's name",
			[]string{"Impersonate-User", "system:serviceaccount:a b:c"},
			403,
			`users "system:serviceaccount:a b:c" is forbidden`,
		},
	} {
		got, _ := who(running.User("ann"), c.headers...)
		got.Wants(t, c.what, c.code, c.text)
	}
}

// TestWebsocketsNeedTheRightToCreate: a websocket is a GET, and the right to read a subresource opens no shell.
func TestWebsocketsNeedTheRightToCreate(t *testing.T) {
	running := servertest.StartSecured(t, nil)
	resources := []string{"pods/exec", "pods/attach", "pods/portforward"}
	running.Grant(t, "reads", "ann", servertest.PolicyRule([]string{"get"}, []string{""}, resources))
	running.Grant(t, "reads-and-creates", "bob", servertest.PolicyRule([]string{"get", "create"}, []string{""}, resources))
	for _, sub := range []string{"exec?command=sh&stdin=true", "attach?stdout=true", "portforward?ports=80"} {
		name, _, _ := strings.Cut(sub, "?")
		path := "/api/v1/namespaces/default/pods/none/" + sub
		servertest.CallAs(t, running.User("ann"), "GET", path, "").Wants(t, "read "+name, 403,
			`User "ann" cannot create resource "pods/`+name+`" in API group "" in the namespace "default"`)
		servertest.CallAs(t, running.User("bob"), "GET", path, "").Wants(t, "create "+name, 404, `pods "none" not found`)
	}
}

// TestImpersonationModes: the right to be a user and the right to do something as that user are separate (KEP 5284).
func TestImpersonationModes(t *testing.T) {
	running := servertest.StartSecured(t, nil)
	authn := []string{"authentication.k8s.io"}
	running.Grant(t, "lists", "bob", servertest.PolicyRule([]string{"list"}, []string{""}, []string{"configmaps", "secrets"}))
	running.Grant(t, "node-lists", "system:node:n1", servertest.PolicyRule([]string{"list"}, []string{""}, []string{"configmaps"}))
	running.Grant(t, "as-bob", "ann", servertest.PolicyRule([]string{"impersonate:user-info"}, authn, []string{"users"}, "bob"),
		servertest.PolicyRule([]string{"impersonate:arbitrary-node"}, authn, []string{"nodes"}, "n1"),
		servertest.PolicyRule([]string{"impersonate-on:user-info:list", "impersonate-on:arbitrary-node:list"}, []string{""},
			[]string{"configmaps"}))
	running.Grant(t, "as-groups", "ann", servertest.PolicyRule([]string{"impersonate:user-info"}, authn, []string{"groups"}, "*"))
	for _, c := range []struct {
		what, path string
		headers    []string
		code       int
		text       string
	}{
		{"a user", "configmaps", []string{"Impersonate-User", "bob"}, 200, ""},
		{
			"a user, something else", "secrets",
			[]string{"Impersonate-User", "bob"},
			403,
			`secrets is forbidden: User "ann" cannot impersonate-on:user-info:list resource "secrets" in API group "" in the namespace "default"`,
		},
		{
			"another user", "configmaps",
			[]string{"Impersonate-User", "carl"},
			403,
			`users.authentication.k8s.io "carl" is forbidden: User "ann" cannot impersonate:user-info resource "users" in API group "authentication.k8s.io" at the cluster scope`,
		},
		{
			"a uid", "configmaps",
			[]string{"Impersonate-User", "bob", "Impersonate-Uid", "1"},
			403,
			`uids.authentication.k8s.io "1" is forbidden: User "ann" cannot impersonate:user-info resource "uids" in API group "authentication.k8s.io" at the cluster scope`,
		},
		{
			"masters", "configmaps",
			[]string{"Impersonate-User", "bob", "Impersonate-Group", "system:masters"},
			403,
			`impersonating the system:masters group is not allowed`,
		},
		{
			"a bad extra", "configmaps",
			[]string{"Impersonate-User", "bob", "Impersonate-Extra-team", "a"},
			403,
			`impersonating an invalid key in extra is not allowed`,
		},
		{"a node", "configmaps", []string{"Impersonate-User", "system:node:n1"}, 200, ""},
		{
			"another node", "configmaps",
			[]string{"Impersonate-User", "system:node:n2"},
			403,
			`nodes.authentication.k8s.io "n2" is forbidden: User "ann" cannot impersonate:arbitrary-node resource "nodes"`,
		},
		{
			"a service account", "configmaps",
			[]string{"Impersonate-User", "system:serviceaccount:ns:sa"},
			403,
			`configmaps is forbidden: User "ann" cannot impersonate-on:serviceaccount:list resource "configmaps"`,
		},
	} {
		// Of the modes for a user the one that was granted last is tried first.
		if c.code == 403 && !strings.HasPrefix(c.headers[1], "system:") {
			servertest.CallAs(t, running.User("ann"), "GET", "/api/v1/namespaces/default/configmaps", "", "Impersonate-User", "bob").
				Wants(
					t, c.what+", before", 200, "")
		}
		servertest.CallAs(t, running.User("ann"), "GET", "/api/v1/namespaces/default/"+c.path, "", c.headers...).Wants(t, c.what,
			c.code,
			c.text)
	}
}

// TestTokens is about service-account tokens from their request to the end of what they are bound to.
func TestTokens(t *testing.T) {
	running := servertest.StartSecured(t, nil)
	ctx := t.Context()
	clientset := running.Clients(t)
	sa, err := clientset.CoreV1().ServiceAccounts("default").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "build"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := servertest.Pod("runner")
	p.Spec.ServiceAccountName = "build"
	if p, err = clientset.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	issue := func(spec authenticationv1.TokenRequestSpec) (*authenticationv1.TokenRequest, error) {
		return clientset.CoreV1().ServiceAccounts("default").CreateToken(ctx, "build",
			&authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
	}
	whoami := func(token string) (*authenticationv1.SelfSubjectReview, error) {
		return kubernetes.NewForConfigOrDie(running.WithToken(token)).AuthenticationV1().SelfSubjectReviews().Create(
			ctx,
			&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	}
	bound, err := issue(authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{
		Kind:       "Pod",
		APIVersion: "v1",
		Name:       "runner",
		UID:        p.UID,
	}})
	if err != nil {
		t.Fatal(err)
	}
	me, err := whoami(bound.Status.Token)
	if err != nil || me.Status.UserInfo.Username != "system:serviceaccount:default:build" ||
		me.Status.UserInfo.UID != string(sa.UID) ||
		!slices.Equal(me.Status.UserInfo.Extra["authentication.kubernetes.io/pod-name"], []string{"runner"}) {
		t.Errorf("who a bound token is: %v %+v", err, me)
	}
	if life := time.Until(bound.Status.ExpirationTimestamp.Time); life < 50*time.Minute || life > 61*time.Minute {
		t.Errorf("a token lives %s by default", life)
	}
	foreign, err := issue(authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := whoami(foreign.Status.Token); !apierrors.IsUnauthorized(err) {
		t.Errorf("a token for another audience: %v", err)
	}
	review, err := clientset.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{
			Token:     foreign.Status.Token,
			Audiences: []string{"vault", "else"},
		}}, metav1.CreateOptions{})
	if err != nil || !review.Status.Authenticated || !slices.Equal(review.Status.Audiences, []string{"vault"}) {
		t.Errorf("reviewed by its audience: %v %+v", err, review.Status)
	}
	review, err = clientset.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: foreign.Status.Token}},
		metav1.CreateOptions{})
	if err != nil || review.Status.Authenticated || review.Status.Error == "" || review.Status.User.Username != "" {
		t.Errorf("reviewed by another: %v %+v", err, review.Status)
	}
	for _, c := range []struct {
		what string
		spec authenticationv1.TokenRequestSpec
		text string
	}{
		{
			"short",
			authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(599))},
			"spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes",
		},
		{
			"long",
			authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(1)<<32 + 1)},
			"may not specify a duration larger than 2^32 seconds",
		},
		{
			"bound to a map", authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{
				Kind:       "ConfigMap",
				APIVersion: "v1",
				Name:       "x",
			}}, `cannot bind token to object of type`,
		},
		{
			"bound to nothing", authenticationv1.TokenRequestSpec{
				BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "none"},
			}, `pods "none" not found`,
		},
		{
			"bound to an older pod", authenticationv1.TokenRequestSpec{
				BoundObjectRef: &authenticationv1.BoundObjectReference{
					Kind:       "Pod",
					APIVersion: "v1",
					Name:       "runner",
					UID:        "old",
				},
			}, "the UID in the bound object reference (old) does not match the UID in record",
		},
	} {
		if _, err := issue(c.spec); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %s", c.what, err, c.text)
		}
	}
	if err := clientset.CoreV1().Pods("default").Delete(ctx, "runner",
		metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the token ends with its pod", func() bool {
		_, err := whoami(bound.Status.Token)
		return apierrors.IsUnauthorized(err)
	})
}

// TestAnonymous: strangers see health and version, and wrong credentials see nothing.
func TestAnonymous(t *testing.T) {
	running := servertest.StartSecured(t, nil)
	stranger := running.WithToken("")
	for path, code := range map[string]int{
		"/healthz":     200,
		"/livez":       200,
		"/readyz":      200,
		"/version":     200,
		"/api":         403,
		"/apis":        403,
		"/metrics":     403,
		"/openapi/v3":  403,
		"/api/v1/pods": 403,
		"/nothing":     403,
	} {
		if got := servertest.CallAs(t, stranger, "GET", path, ""); got.Code != code {
			t.Errorf("%s: %d, want %d: %s", path, got.Code, code, servertest.Short(got.Body))
		}
	}
	servertest.CallAs(t, stranger, "GET", "/api/v1/namespaces/default/pods/x", "").Wants(t, "a pod", 403,
		`pods "x" is forbidden: User "system:anonymous" cannot get resource "pods" in API group "" in the namespace "default"`)
	servertest.CallAs(t, stranger, "GET", "/api", "").Wants(t, "a path", 403,
		`forbidden: User "system:anonymous" cannot get path "/api"`)
	for _, token := range []string{"nonsense", "a.b.c", strings.Repeat("x", 10000)} {
		got := servertest.CallAs(t, running.WithToken(token), "GET", "/version", "")
		if s := got.Status(t); got.Code != 401 || s.Reason != metav1.StatusReasonUnauthorized ||
			s.Message != "Unauthorized" {
			t.Errorf("a wrong token: %d %+v", got.Code, s)
		}
	}
}

// TestNodeAuthorizer: a kubelet sees its own node and pods.
func TestNodeAuthorizer(t *testing.T) {
	running := servertest.StartSecured(t, nil)
	ctx := t.Context()
	clientset := running.Clients(t)
	if _, err := clientset.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	mine := servertest.Pod("mine")
	other := servertest.Pod("other")
	mine.Spec.NodeName = "n1"
	other.Spec.NodeName = "n2"
	mine.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{
		{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s1"}}},
	}
	for _, p := range []*corev1.Pod{mine, other} {
		if _, err := clientset.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	node := running.User("system:node:n1", "system:nodes")
	for path, code := range map[string]int{
		"/api/v1/nodes/n1": 200,
		"/api/v1/nodes/n2": 403,
		"/api/v1/nodes":    403,
		"/api/v1/nodes?fieldSelector=metadata.name%3Dn1": 200,
		"/api/v1/pods": 403,
		"/api/v1/pods?fieldSelector=spec.nodeName%3Dn1": 200,
		"/api/v1/pods?fieldSelector=spec.nodeName%3Dn2": 403,
		"/api/v1/namespaces/default/pods/mine":          200,
		"/api/v1/namespaces/default/pods/other":         403,
		"/api/v1/namespaces/default/secrets/s1":         404,
		"/api/v1/namespaces/default/secrets/s2":         403,
		"/api/v1/namespaces/default/secrets":            403,
	} {
		if got := servertest.CallAs(t, node, "GET", path, ""); got.Code != code {
			t.Errorf("%s: %d, want %d: %s", path, got.Code, code, servertest.Short(got.Body))
		}
	}
	servertest.CallAs(t, node, "GET", "/api/v1/nodes/n2", "").Wants(t, "another node", 403,
		"node: node 'n1' cannot read 'n2', only its own Node object")
	for path, text := range map[string]string{
		"/apis/coordination.k8s.io/v1/namespaces/default/leases/n1": `node: can only access leases in the "kube-node-lease" system namespace`,
		"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n2": "node: can only access node lease with " +
			"the same name as the requesting node",
		"/apis/storage.k8s.io/v1/csinodes/n2": "node: can only access CSINode with the " +
			"same name as the requesting node",
		"/apis/resource.k8s.io/v1/resourceslices": "node: can only list/watch/deletecollection resourceslices with " +
			"nodeName field selector",
		"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c": "node: no relationship found between " +
			"node 'n1' and this object",
		"/api/v1/namespaces/default/secrets": "node: No Object name found",
		"/api/v1/namespaces/default/persistentvolumeclaims": "node: can only get individual " +
			"resources of this type",
	} {
		servertest.CallAs(t, node, "GET", path, "").Wants(t, path, 403, text)
	}
}

// TestAnswersNameTheirSender: the answers of reviews and of requests for tokens have managedFields, as those of all
// creates that answer with what was sent. Reviews of oneself are answered by a new object, bindings and evictions by a
// Status.
func TestAnswersNameTheirSender(t *testing.T) {
	running := servertest.StartSecured(t, nil)
	const pods = "/api/v1/namespaces/default/pods"
	for _, made := range []servertest.Reply{
		running.Call(t, "POST", "/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":"a"}}`),
		running.Call(t, "POST", pods, `{"metadata":{"name":"p"},"spec":{"serviceAccountName":"a",`+
			`"containers":[{"name":"c","image":"i"}]}}`),
	} {
		if made.Code != 201 {
			t.Fatalf("%d: %s", made.Code, made.Body)
		}
	}
	for _, c := range []struct{ path, body, sub, fields string }{
		{
			"/apis/authentication.k8s.io/v1/tokenreviews", `{"metadata":{"uid":"x"},"spec":{"token":"t"}}`, "",
			`{"f:spec":{"f:token":{}}}`,
		},
		{
			"/apis/authorization.k8s.io/v1/subjectaccessreviews",
			`{"spec":{"user":"u","groups":["g"],"extra":{"k":["v"]},"resourceAttributes":{"verb":"get"}}}`, "",
			`{"f:spec":{"f:extra":{".":{},"f:k":{}},"f:groups":{},"f:resourceAttributes":{".":{},"f:verb":{}},"f:user":{}}}`,
		},
		{
			"/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews",
			`{"spec":{"user":"u","resourceAttributes":{"namespace":"default"}}}`, "",
			`{"f:spec":{"f:resourceAttributes":{".":{},"f:namespace":{}},"f:user":{}}}`,
		},
		{
			"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
			`{"spec":{"nonResourceAttributes":{"path":"/x","verb":"get"}}}`, "",
			`{"f:spec":{"f:nonResourceAttributes":{".":{},"f:path":{},"f:verb":{}}}}`,
		},
		{
			"/api/v1/namespaces/default/serviceaccounts/a/token", `{"spec":{"audiences":["x"]}}`, "token",
			`{"f:spec":{"f:audiences":{},"f:expirationSeconds":{}}}`,
		},
		{"/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", `{"spec":{"namespace":"default"}}`, "", ""},
		{"/apis/authentication.k8s.io/v1/selfsubjectreviews", `{"metadata":{"labels":{"a":"b"}}}`, "", ""},
		{
			pods + "/p/binding", `{"metadata":{"name":"p"},"target":{"name":"n"}}`, "", "",
		},
		{pods + "/p/eviction", `{"metadata":{"name":"p"}}`, "", ""},
	} {
		got := running.Call(t, "POST", c.path+"?fieldManager=me", c.body)
		var object metav1.PartialObjectMetadata
		got.Into(t, &object)
		if got.Code != 201 || len(object.Labels) > 0 {
			t.Errorf("%s: %d %s", c.path, got.Code, servertest.Short(got.Body))
		}
		if c.fields == "" {
			if len(object.ManagedFields) > 0 {
				t.Errorf("%s: got %v, want no managed fields", c.path, object.ManagedFields)
			}
			continue
		}
		if len(object.ManagedFields) != 1 {
			t.Errorf("%s: got %v, want one entry", c.path, object.ManagedFields)
			continue
		}
		e := object.ManagedFields[0]
		if e.Manager != "me" || e.Operation != "Update" || e.Subresource != c.sub || e.Time == nil ||
			string(e.FieldsV1.GetRawBytes()) != c.fields {
			t.Errorf("%s: got %+v with %s, want %s", c.path, e, e.FieldsV1.GetRawBytes(), c.fields)
		}
	}
}
