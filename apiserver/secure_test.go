// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"testing"
	"time"

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
	"keelson/apiserver/handlers"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/auth/authz"
	"keelson/auth/authz/bootstrap"
)

const testIssuer = "https://kubernetes.default.svc.cluster.local"

// startSecured is start with the judges of a real cluster: tokens, bootstrap tokens, the Node authorizer and RBAC with
// its policy. edit may change the parts, and change the rest.
func startSecured(t testing.TB, edit func(*access.Reader, *apiserver.Parts), change ...func(
	*setup,
),
) *running {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rbac := &authz.RBAC{}
	return start(t, func(config *setup) {
		for _, f := range change {
			f(config)
		}
		plain := config.Parts
		config.Bootstrap = bootstrap.Policy(gates.On{})
		guarded := map[schema.GroupResource]handlers.Guard{}
		config.Parts = func(reader *access.Reader) (apiserver.Parts, error) {
			parts, err := plain(reader)
			if err != nil {
				return parts, err
			}
			tokens, err := authn.NewTokens(authn.TokenConfig{
				Key:     key,
				Issuers: []string{testIssuer},
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
			config.EventHandlers = append(config.EventHandlers, apiserver.EventHandler{
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

// withToken is a client that has nothing but a token.
func (r *running) withToken(token string) *rest.Config {
	c := rest.AnonymousClientConfig(r.rest)
	c.BearerToken = token
	c.QPS = -1
	c.UserAgent = "tester/1"
	return c
}

func on(verbs, group, resources []string, names ...string) rbacv1.PolicyRule {
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
