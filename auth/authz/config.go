// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authorization/cel"

	"keelson/auth"
)

// Config is an AuthorizationConfiguration (apiserver.config.k8s.io): who is asked, in which order.
type Config struct {
	list     []apiserver.AuthorizerConfiguration
	compiler cel.Compiler
}

// The types of authorizers that a configuration may name beside webhooks. ABAC is not among them.
const (
	typeNode        = "Node"
	typeRBAC        = "RBAC"
	typeAlwaysAllow = "AlwaysAllow"
	typeAlwaysDeny  = "AlwaysDeny"
)

// LoadConfig reads and checks the file at path.
func LoadConfig(path string) (*Config, error) {
	f, err := load.LoadFromFile(path)
	if err != nil {
		return nil, fmt.Errorf("authorization configuration %s: %w", path, err)
	}
	c := &Config{list: f.Authorizers, compiler: cel.NewDefaultCompiler()}
	known := sets.New(typeNode, typeRBAC, typeAlwaysAllow, typeAlwaysDeny, string(apiserver.TypeWebhook))
	if errs := validation.ValidateAuthorizationConfiguration(c.compiler, nil, f, known, sets.New(string(apiserver.TypeWebhook))); len(errs) > 0 {
		return nil, fmt.Errorf("authorization configuration %s: %w", path, errs.ToAggregate())
	}
	return c, nil
}

// Union is who the configuration names, after the group system:masters, which nobody locks out. node and rbac are the cluster's own;
// unlisted tells that one of them decides without a list of rules.
func (c *Config) Union(node, rbac auth.Authorizer) (u Union, unlisted bool, err error) {
	u = Union{Masters{}}
	for _, a := range c.list {
		switch a.Type {
		case typeNode:
			u = append(u, node)
		case typeRBAC:
			u = append(u, rbac)
		case typeAlwaysAllow:
			u, unlisted = append(u, always{auth.Allow, ""}), true
		case typeAlwaysDeny:
			u = append(u, always{auth.NoOpinion, "Everything is forbidden."})
		case apiserver.TypeWebhook:
			w, err := c.webhook(a.Webhook)
			if err != nil {
				return nil, false, fmt.Errorf("authorizer %s: %w", a.Name, err)
			}
			u, unlisted = append(u, w), true
		}
	}
	return u, unlisted, nil
}

func (c *Config) webhook(w *apiserver.WebhookConfiguration) (*Webhook, error) {
	cfg := WebhookConfig{
		Timeout: w.Timeout.Duration, Old: w.SubjectAccessReviewVersion == "v1beta1", DenyOnFailure: w.FailurePolicy == apiserver.FailurePolicyDeny,
	}
	if w.ConnectionInfo.KubeConfigFile != nil {
		cfg.Kubeconfig = *w.ConnectionInfo.KubeConfigFile
	}
	if w.CacheAuthorizedRequests {
		cfg.IfAllowed = w.AuthorizedTTL.Duration
	}
	if w.CacheUnauthorizedRequests {
		cfg.IfRefused = w.UnauthorizedTTL.Duration
	}
	if len(w.MatchConditions) > 0 {
		m, errs := validation.ValidateAndCompileMatchConditions(c.compiler, w.MatchConditions)
		if len(errs) > 0 {
			return nil, errs.ToAggregate()
		}
		cfg.Conditions = m
	}
	return NewWebhookOf(cfg)
}

// always gives the same answer.
type always struct {
	verdict auth.Verdict
	reason  string
}

// Authorize looks at nothing.
func (a always) Authorize(context.Context, *auth.Attributes) (auth.Decision, error) {
	return auth.Decision{Verdict: a.verdict, Reason: a.reason}, nil
}
