// SPDX-License-Identifier: Apache-2.0

// Package requests makes what authenticates, authorizes and admits the requests of an API server, of the server's own
// objects and its options: a stop in the straight line by which cluster assembles a server. It makes each part once and
// keeps none.
package requests

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver"
	"keelson/apiserver/access"
	"keelson/apiserver/admission"
	"keelson/apiserver/admission/noderestriction"
	"keelson/apiserver/admission/plugins"
	"keelson/apiserver/admission/policy"
	"keelson/apiserver/configreload"
	"keelson/apiserver/options"
	"keelson/apiserver/outbound"
	"keelson/apiserver/writes"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/auth/authz"
	"keelson/auth/authz/bootstrap"
	"keelson/auth/remote"
	"keelson/cluster/credentials"
	"keelson/cluster/membership"
	"keelson/pki"
)

// toIssuers calls token issuers through the server's outgoing connections.
func toIssuers(egress *outbound.Egress) authn.Via {
	return func(conf *tls.Config) http.RoundTripper {
		return egress.Observe("token issuer",
			egress.Transport(outbound.Options{Target: outbound.Configured, TLS: conf, HTTP2: true}))
	}
}

// ThroughEgress calls webhooks through the server's outgoing connections.
func ThroughEgress(egress *outbound.Egress) remote.Via {
	return remote.Via{Dial: egress.Dialer(outbound.Configured), Observe: egress.Observe}
}

// Parts makes what authenticates, authorizes and admits requests, of the server's own objects. It returns also
// what issues and verifies the tokens of service accounts.
// roleAccounts are the service accounts of the roles next to kubelets.
func Parts(
	k *credentials.Keys, log *slog.Logger, data *apiserver.Data, egress *outbound.Egress, rbac *authz.RBAC,
	opts *options.Options, ranges noderestriction.PodRanges, roleAccounts []string, files *configreload.Files,
) (apiserver.Parts, *authn.Tokens, error) {
	webhooks := ThroughEgress(egress)
	believed, err := opts.Tokens.Config(k.Tokens)
	if err != nil {
		return apiserver.Parts{}, nil, err
	}
	tokens, err := authn.NewTokens(believed, tokenObjects{data.Reader, data.Writer})
	if err != nil {
		return apiserver.Parts{}, nil, err
	}
	authorizer, err := opts.Authorization.New(files,
		authz.Node{Pods: data.Reader.PodsOn, Objects: data.Reader, Rules: bootstrap.NodeRules()}, rbac, webhooks)
	if err != nil {
		return apiserver.Parts{}, nil, err
	}
	if authorizer.Everybody() && !opts.Authentication.NoAnonymous {
		log.Warn("anonymous requests are rejected because of the authorizer AlwaysAllow: use RBAC to serve them")
	}
	authenticators, err := opts.Authentication.New(files, options.Dependencies{
		Authenticators: []auth.Authenticator{
			membership.NewRemovedNodeCheck(k.Clients, data.Reader),
			tokens,
			authn.BootstrapTokens{Secret: bootstrapSecret(data.Reader)},
		},
		Tokens:       tokens,
		Certificates: k.Serving,
		Webhooks:     webhooks,
		Issuers:      toIssuers(egress),
		Everybody:    authorizer.Everybody,
	})
	if err != nil {
		return apiserver.Parts{}, nil, err
	}
	metrics := admission.NewMetrics()
	chain, follow, err := opts.Admission.New(plugins.Config{
		Objects:      data.Reader,
		Writer:       data.Writer,
		Outbound:     egress,
		NodeName:     authz.NodeName,
		RoleAccounts: roleAccounts,
		PodRanges:    ranges,
		Authorizer:   authorizer,
		Metrics:      metrics,
	})
	if err != nil {
		return apiserver.Parts{}, nil, err
	}
	guards := rbacGuards(authz.Escalation{Rules: rbac, Authorizer: authorizer})
	for _, gvr := range policy.Guarded {
		guards[gvr.GroupResource()] = policy.Access{Reader: data.Reader, Authorizer: authorizer}.Check
	}
	return apiserver.Parts{
		Routes:         issuerDocuments(tokens),
		Authenticators: authenticators,
		Authorizer:     authorizer,
		Tokens:         reviewer(tokens, authenticators),
		Rules: authz.Rules{
			Of: []interface {
				RulesFor(*auth.User, string) []rbacv1.PolicyRule
			}{authz.Masters{}, rbac},
			Unlisted: authorizer.Unlisted,
		},
		Admission:     chain,
		EventHandlers: follow,
		Metrics:       slices.Concat(metrics.Collectors(), tokens.Collectors(), files.Collectors()),
		Guards:        guards,
	}, tokens, nil
}

// WatchClientCA trusts the CAs of --client-ca-file as they are now, and publishes them.
func WatchClientCA(k *credentials.Keys, file string, files *configreload.Files, server *apiserver.Server) {
	if file == "" {
		return
	}
	files.Watch("client CA", file, k.ConfiguredClientCA(), func(ctx context.Context, pem []byte) error {
		if _, err := pki.Authorities(pem); err != nil {
			return err
		}
		k.TrustClients(pem)
		return server.Ensure(ctx, k.AuthenticationInfo())
	})
}

// reviewer answers TokenReviews with all authenticators.
func reviewer(tokens *authn.Tokens, all []auth.Authenticator) authn.Reviewer {
	var others []auth.Authenticator
	for _, a := range all {
		switch a.(type) {
		case *authn.OIDC, *authn.Live, *authn.Webhook, *authn.TokenFile, authn.BootstrapTokens:
			others = append(others, a)
		}
	}
	return authn.Reviewer{Tokens: tokens, Others: others}
}

// issuerDocuments serves OpenID Connect discovery, so that others can verify service-account tokens. Inside the cluster
// the issuer's host name resolves to this server.
func issuerDocuments(tokens *authn.Tokens) []apiserver.Route {
	serve := func(media string, value func() any) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			b, err := json.Marshal(value())
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", media)
			w.Header().Set("Cache-Control", "public, max-age=3600")
			_, _ = w.Write(b) // the client may be gone
		})
	}
	configuration := serve("application/json", func() any {
		configuration, _ := tokens.Discovery()
		return configuration
	})
	keys := serve("application/jwk-set+json", func() any {
		_, keys := tokens.Discovery()
		return keys
	})
	return []apiserver.Route{
		{Path: "/.well-known/openid-configuration", Handler: configuration},
		{Path: "/openid/v1/jwks", Handler: keys},
	}
}

// rbacGuards prevent privilege escalation: a user grants only rights that the user has.
func rbacGuards(e authz.Escalation) map[schema.GroupResource]writes.Guard {
	out := map[schema.GroupResource]writes.Guard{}
	for _, resource := range rbacResources {
		out[schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}] = e.Check
	}
	return out
}

var rbacResources = []string{"clusterroles", "roles", "clusterrolebindings", "rolebindings"}

// RBACEventHandlers updates the authorizer's rules from the stored objects.
func RBACEventHandlers(rbac *authz.RBAC) []access.EventHandler {
	var out []access.EventHandler
	for _, resource := range rbacResources {
		out = append(out, access.EventHandler{
			Resource: rbacv1.SchemeGroupVersion.WithResource(resource),
			Set:      func(o runtime.Object) { rbac.Set(o) },
			Remove:   rbac.Remove,
		})
	}
	return out
}

func bootstrapSecret(r *access.Reader) func(context.Context, string) *corev1.Secret {
	return func(ctx context.Context, name string) *corev1.Secret {
		obj, err := r.Get(ctx, corev1.SchemeGroupVersion.WithResource("secrets"), metav1.NamespaceSystem, name)
		if err != nil {
			return nil
		}
		s, _ := obj.(*corev1.Secret)
		return s
	}
}
