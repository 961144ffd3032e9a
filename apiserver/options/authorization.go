// SPDX-License-Identifier: Apache-2.0

package options

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"keelson/apiserver/configreload"
	"keelson/auth"
	"keelson/auth/authz"
	"keelson/auth/remote"
	"keelson/lib/option"
)

// Authorization selects the authorizers.
type Authorization struct {
	// Modes are the authorizers in order, if there is no ConfigFile; none: Node, RBAC, and Webhook if one is
	// configured.
	Modes []string
	// ConfigFile is an AuthorizationConfiguration, in place of Modes and WebhookConfigFile.
	ConfigFile string
	// WebhookConfigFile is a kubeconfig of an authorization webhook; its answers are cached for the TTLs.
	WebhookConfigFile                            string
	WebhookAuthorizedTTL, WebhookUnauthorizedTTL time.Duration
}

func (o *Authorization) rows() []option.Row {
	return []option.Row{
		option.New(&o.Modes, "authorization-mode", nil, "ordered list of `AUTHORIZERS`: Node, RBAC, Webhook, "+
			"AlwaysAllow (which ends anonymous access), AlwaysDeny (default Node,RBAC)"),
		option.New(&o.ConfigFile, "authorization-config", "",
			"use the authorizers of the AuthorizationConfiguration in `FILE`"),
		option.New(&o.WebhookConfigFile, "authorization-webhook-config-file", "",
			"authorization webhook: kubeconfig `FILE` of the service"),
		option.New(&o.WebhookAuthorizedTTL, "authorization-webhook-cache-authorized-ttl", 5*time.Minute,
			"how long 'authorized' responses of the webhook are cached"),
		option.New(&o.WebhookUnauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", 30*time.Second,
			"how long 'unauthorized' responses of the webhook are cached"),
	}
}

func (o *Authorization) validate() error {
	var errs []error
	if o.ConfigFile != "" && o.WebhookConfigFile != "" {
		errs = append(errs,
			errors.New("--authorization-config and --authorization-webhook-* exclude each other: name the webhook in "+
				"the file"))
	}
	if len(o.Modes) > 0 && o.ConfigFile != "" {
		errs = append(errs,
			errors.New("--authorization-config and --authorization-mode exclude each other: name the modes in the "+
				"file"))
	}
	seen := map[string]bool{}
	for _, m := range o.Modes {
		switch m {
		case authz.ModeNode, authz.ModeRBAC, authz.ModeAlwaysAllow, authz.ModeAlwaysDeny, authz.ModeWebhook:
		default:
			errs = append(errs, fmt.Errorf("authorization-mode %q is not a valid mode", m))
		}
		if seen[m] {
			errs = append(errs, fmt.Errorf("authorization-mode %q is specified more than once", m))
		}
		seen[m] = true
	}
	if len(seen) > 0 && seen[authz.ModeWebhook] != (o.WebhookConfigFile != "") {
		errs = append(errs,
			errors.New("--authorization-mode Webhook and --authorization-webhook-config-file must be given together"))
	}
	return errors.Join(errs...)
}

// modes are the authorizers in order. By default the webhook is last, after the cluster's own rules.
func (o *Authorization) modes() []string {
	switch {
	case len(o.Modes) > 0:
		return o.Modes
	case o.WebhookConfigFile != "":
		return []string{authz.ModeNode, authz.ModeRBAC, authz.ModeWebhook}
	}
	return []string{authz.ModeNode, authz.ModeRBAC}
}

// Authorizers are the configured authorizers as one. What they include may change when their file does.
type Authorizers struct {
	auth.Authorizer
	// Unlisted reports whether one of them cannot list a user's rules.
	Unlisted func() bool
	// Everybody reports whether AlwaysAllow is one of them.
	Everybody func() bool
}

// New returns the authorizers. webhooks makes the connections.
func (o *Authorization) New(
	files *configreload.Files, node, rbac auth.Authorizer, webhooks remote.Via,
) (*Authorizers, error) {
	if o.ConfigFile != "" {
		var live *authz.Live
		err := files.Configuration(o.ConfigFile, "authorization", func(b []byte) (configreload.Apply, error) {
			var err error
			live, err = authz.NewLive(b, node, rbac, webhooks)
			return func(_ context.Context, b []byte) error { return live.Apply(b) }, err
		})
		if err != nil {
			return nil, err
		}
		return &Authorizers{Authorizer: live, Unlisted: live.Unlisted, Everybody: live.Everybody}, nil
	}
	var webhook auth.Authorizer
	if o.WebhookConfigFile != "" {
		w, err := authz.NewWebhook(o.WebhookConfigFile, o.WebhookAuthorizedTTL, o.WebhookUnauthorizedTTL, webhooks)
		if err != nil {
			return nil, err
		}
		webhook = w
	}
	u, without := authz.ByModes(o.modes(), node, rbac, webhook)
	everybody := slices.Contains(o.modes(), authz.ModeAlwaysAllow)
	return &Authorizers{
		Authorizer: u,
		Unlisted:   func() bool { return without },
		Everybody:  func() bool { return everybody },
	}, nil
}
