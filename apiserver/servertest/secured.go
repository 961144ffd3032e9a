// SPDX-License-Identifier: Apache-2.0

package servertest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"keelson/api/gates"
	"keelson/api/kind"
	"keelson/apiserver"
	"keelson/apiserver/access"
	"keelson/apiserver/writes"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/auth/authz"
	"keelson/auth/authz/bootstrap"
	"keelson/lib/waittest"
)

// Everyone may do everything.
type Everyone struct{}

// Authorize implements auth.Authorizer.
func (Everyone) Authorize(context.Context, *auth.Attributes) (auth.Decision, error) {
	return auth.Decision{Verdict: auth.Allow, Reason: "test"}, nil
}

// Grant binds a cluster role of its own, with those rules, to a user, and waits until the server knows.
func (r *Running) Grant(t testing.TB, name, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	c := r.Clients(t).RbacV1()
	if _, err := c.ClusterRoles().Create(t.Context(),
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", Name: name, APIGroup: rbacv1.GroupName},
		Subjects:   []rbacv1.Subject{{Kind: "User", Name: user, APIGroup: rbacv1.GroupName}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "grant "+name, func() bool {
		policyRule := rules[0]
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user}}
		if len(policyRule.NonResourceURLs) > 0 {
			review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{
				Verb: policyRule.Verbs[0],
				Path: policyRule.NonResourceURLs[0],
			}
		} else {
			resource, sub, _ := strings.Cut(policyRule.Resources[0], "/")
			review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
				Verb:        policyRule.Verbs[0],
				Group:       policyRule.APIGroups[0],
				Resource:    resource,
				Subresource: sub,
			}
			if len(policyRule.ResourceNames) > 0 {
				review.Spec.ResourceAttributes.Name = policyRule.ResourceNames[0]
			}
		}
		got, err := r.Clients(t).AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review,
			metav1.CreateOptions{})
		return err == nil && got.Status.Allowed
	})
}

// Issuer is the issuer of the service-account tokens of StartSecured.
const Issuer = "https://kubernetes.default.svc.cluster.local"

// StartSecured is Start with the authenticators and authorizers of a real cluster: tokens, bootstrap tokens, the Node
// authorizer and RBAC with its policy. edit may change the parts, and change the rest.
func StartSecured(
	t testing.TB, edit func(*access.Reader, *apiserver.Parts), change ...func(*Setup),
) *Running {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rbac := &authz.RBAC{}
	return Start(t, func(config *Setup) {
		for _, f := range change {
			f(config)
		}
		plain := config.Parts
		config.Objects.Bootstrap = bootstrap.Policy(gates.On{})
		guarded := map[schema.GroupResource]writes.Guard{}
		config.Parts = func(reader *access.Reader) (apiserver.Parts, error) {
			parts, err := plain(reader)
			if err != nil {
				return parts, err
			}
			tokens, err := authn.NewTokens(authn.TokenConfig{
				Key:     key,
				Issuers: []string{Issuer},
				Longest: 90 * 24 * time.Hour,
				Extend:  true,
			}, lookup{reader})
			if err != nil {
				return parts, err
			}
			parts.Authenticators = append([]auth.Authenticator{tokens, authn.BootstrapTokens{Secret: lookup{
				reader,
			}.bootstrapSecret}}, parts.Authenticators...)
			parts.Authorizer = authz.Union{
				authz.Node{Pods: reader.PodsOn, Objects: reader, Rules: bootstrap.NodeRules()}, rbac, authz.Masters{},
			}
			parts.Tokens = tokens
			parts.Rules = authz.Rules{Of: []interface {
				RulesFor(*auth.User, string) []rbacv1.PolicyRule
			}{authz.Masters{}, rbac}}
			for _, resource := range []string{"clusterroles", "roles", "clusterrolebindings", "rolebindings"} {
				guarded[schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}] = authz.Escalation{
					Rules:      rbac,
					Authorizer: parts.Authorizer,
				}.Check
			}
			parts.Guards = guarded
			if edit != nil {
				edit(reader, &parts)
			}
			return parts, nil
		}
		for _, resource := range []string{"clusterroles", "roles", "clusterrolebindings", "rolebindings"} {
			config.Objects.EventHandlers = append(config.Objects.EventHandlers, access.EventHandler{
				Resource: rbacv1.SchemeGroupVersion.WithResource(resource),
				Set:      func(o runtime.Object) { rbac.Set(o) },
				Remove:   rbac.Remove,
			})
		}
	})
}

// lookup finds what tokens are bound to.
type lookup struct{ r *access.Reader }

func (l lookup) find(ctx context.Context, resource, namespace, name string) (string, bool) {
	obj, err := l.r.Get(ctx, corev1.SchemeGroupVersion.WithResource(resource), namespace, name)
	if err != nil {
		return "", false
	}
	o, ok := obj.(kind.Object)
	if !ok || o.GetDeletionTimestamp() != nil {
		return "", false
	}
	return string(o.GetUID()), true
}

func (l lookup) ServiceAccount(ctx context.Context, namespace, name string) (string, bool) {
	return l.find(ctx, "serviceaccounts", namespace, name)
}

func (l lookup) Pod(ctx context.Context, namespace, name string) (string, bool) {
	return l.find(ctx, "pods", namespace, name)
}

func (l lookup) Secret(ctx context.Context, namespace, name string) (string, bool) {
	return l.find(ctx, "secrets", namespace, name)
}

func (l lookup) Node(ctx context.Context, name string) (string, bool) {
	return l.find(ctx, "nodes", "", name)
}

func (l lookup) bootstrapSecret(ctx context.Context, name string) *corev1.Secret {
	obj, err := l.r.Get(ctx, corev1.SchemeGroupVersion.WithResource("secrets"), metav1.NamespaceSystem, name)
	if err != nil {
		return nil
	}
	s, _ := obj.(*corev1.Secret)
	return s
}

// WithToken returns the configuration of a client that has nothing but a token.
func (r *Running) WithToken(token string) *rest.Config {
	c := rest.AnonymousClientConfig(r.Rest)
	c.BearerToken = token
	c.QPS = -1
	c.UserAgent = "tester/1"
	return c
}

// PolicyRule is a rule for resources.
func PolicyRule(verbs, group, resources []string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{
		Verbs:         verbs,
		APIGroups:     group,
		Resources:     resources,
		ResourceNames: names,
	}
}

func (l lookup) SecretToken(ctx context.Context, namespace, name string) (authn.SecretToken, bool) {
	obj, err := l.r.Get(ctx, corev1.SchemeGroupVersion.WithResource("secrets"), namespace, name)
	if err != nil {
		return authn.SecretToken{}, false
	}
	s, ok := obj.(*corev1.Secret)
	if !ok || s.DeletionTimestamp != nil || s.Type != corev1.SecretTypeServiceAccountToken {
		return authn.SecretToken{}, false
	}
	return authn.SecretToken{Token: string(s.Data[corev1.ServiceAccountTokenKey])}, true
}

func (l lookup) Lists(context.Context, string, string, string) bool { return false }

func (l lookup) NoteUse(context.Context, string, string, string) {}
