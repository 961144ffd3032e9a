// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authorization/cel"

	"keelson/api/invalid"
	"keelson/auth"
	"keelson/auth/remote"
	"keelson/lib/celenv"
)

// Config is a parsed AuthorizationConfiguration (apiserver.config.k8s.io): the authorizers in order.
type Config struct {
	list     []apiserver.AuthorizerConfiguration
	compiler cel.Compiler
}

// The authorization modes. Kubernetes' ABAC is not supported.
const (
	ModeNode        = "Node"
	ModeRBAC        = "RBAC"
	ModeAlwaysAllow = "AlwaysAllow"
	ModeAlwaysDeny  = "AlwaysDeny"
	ModeWebhook     = "Webhook"
)

// ByModes returns the authorizers of these modes, after the group system:masters, which always has access. unlisted
// reports that one of them cannot list its rules.
func ByModes(modes []string, node, rbac, webhook auth.Authorizer) (union Union, unlisted bool) {
	union = Union{Masters{}}
	for _, m := range modes {
		switch m {
		case ModeNode:
			union = append(union, node)
		case ModeRBAC:
			union = append(union, rbac)
		case ModeAlwaysAllow:
			union = append(union, always{auth.Allow, ""})
			unlisted = true
		case ModeAlwaysDeny:
			union = append(union, always{auth.NoOpinion, "Everything is forbidden."})
		case ModeWebhook:
			union = append(union, webhook)
			unlisted = true
		}
	}
	return union, unlisted
}

// ParseConfig parses and validates the document in b.
func ParseConfig(b []byte) (*Config, error) {
	f, err := load.LoadFromData(b)
	if err != nil {
		return nil, fmt.Errorf("authorization configuration: %w", err)
	}
	config := &Config{list: f.Authorizers, compiler: cel.NewCompiler(celenv.Base())}
	known := sets.New(ModeNode, ModeRBAC, ModeAlwaysAllow, ModeAlwaysDeny, ModeWebhook)
	if errs := validation.ValidateAuthorizationConfiguration(config.compiler, nil, f, known,
		sets.New(ModeWebhook)); len(
		errs) > 0 {
		return nil, fmt.Errorf("authorization configuration: %w", invalid.Error(errs))
	}
	for _, a := range config.list {
		if want := strings.ToLower(string(a.Type)); a.Type != apiserver.TypeWebhook && a.Name != want {
			return nil, fmt.Errorf("authorization configuration: expected name %s for authorizer %s instead of %s",
				want, a.Type, a.Name)
		}
	}
	return config, nil
}

// types are the authorizer types except webhooks.
func (c *Config) types() sets.Set[string] {
	out := sets.New[string]()
	for _, a := range c.list {
		if a.Type != apiserver.TypeWebhook {
			out.Insert(string(a.Type))
		}
	}
	return out
}

// Union returns the configured authorizers, after the group system:masters, which always has access. node and rbac are
// the cluster's own. unlisted reports that one of them cannot list its rules. Webhooks are called through via.
func (c *Config) Union(node, rbac auth.Authorizer, via remote.Via) (union Union, unlisted bool, err error) {
	union = Union{Masters{}}
	for _, a := range c.list {
		var hook auth.Authorizer
		if a.Type == apiserver.TypeWebhook {
			if hook, err = c.webhook(a.Webhook, via); err != nil {
				return nil, false, fmt.Errorf("authorizer %s: %w", a.Name, err)
			}
		}
		one, without := ByModes([]string{string(a.Type)}, node, rbac, hook)
		union = append(union, one[1:]...)
		unlisted = unlisted || without
	}
	return union, unlisted, nil
}

func (c *Config) webhook(configuration *apiserver.WebhookConfiguration, via remote.Via) (*Webhook, error) {
	cfg := WebhookConfig{
		Via:           via,
		Timeout:       configuration.Timeout.Duration,
		Old:           configuration.SubjectAccessReviewVersion == "v1beta1",
		DenyOnFailure: configuration.FailurePolicy == apiserver.FailurePolicyDeny,
	}
	if configuration.ConnectionInfo.KubeConfigFile != nil {
		cfg.Kubeconfig = *configuration.ConnectionInfo.KubeConfigFile
	}
	if configuration.CacheAuthorizedRequests {
		cfg.IfAllowed = configuration.AuthorizedTTL.Duration
	}
	if configuration.CacheUnauthorizedRequests {
		cfg.IfRefused = configuration.UnauthorizedTTL.Duration
	}
	if len(configuration.MatchConditions) > 0 {
		m, errs := validation.ValidateAndCompileMatchConditions(c.compiler, configuration.MatchConditions)
		if len(errs) > 0 {
			return nil, invalid.Error(errs)
		}
		cfg.Conditions = m
	}
	return NewWebhookOf(cfg)
}

// always returns the same decision for every request.
type always struct {
	verdict auth.Verdict
	reason  string
}

// Authorize ignores the request.
func (a always) Authorize(context.Context, *auth.Attributes) (auth.Decision, error) {
	return auth.Decision{Verdict: a.verdict, Reason: a.reason}, nil
}
