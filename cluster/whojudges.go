// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"keelson/auth"
	"keelson/auth/authn"
	"keelson/auth/authz"
)

// authenticators are who is asked about a credential, in order: the cluster's own, then those of o, then whoever answers for strangers.
func (l *liveFiles) authenticators(o *APIOptions, k *keys, tokens *authn.Tokens, own ...auth.Authenticator) ([]auth.Authenticator, error) {
	stranger := &authn.Anonymous{}
	if o.NoAnonymous {
		stranger = nil
	}
	if o.Proxy.CAFile != "" {
		pem, err := readAuthorities(o.Proxy.CAFile, "proxies")
		if err != nil {
			return nil, err
		}
		a, err := authn.NewProxy(o.Proxy)
		if err != nil {
			return nil, err
		}
		k.serving.tell("proxies", pem)
		l.again(o.Proxy.CAFile, pem, func(_ context.Context, pem []byte) error {
			err := a.SetRoots(pem)
			if err == nil {
				k.serving.tell("proxies", pem)
			}
			return err
		})
		own = append([]auth.Authenticator{a}, own...)
	}
	if o.TokenFile != "" {
		a, err := authn.LoadTokenFile(o.TokenFile)
		if err != nil {
			return nil, err
		}
		own = append(own, a)
	}
	if o.OIDC.IssuerURL != "" {
		a, err := authn.NewOIDC(o.OIDC)
		if err != nil {
			return nil, err
		}
		own = append(own, a)
	}
	if o.AuthenticationConfig != "" {
		c, err := l.issuers(o.AuthenticationConfig, tokens.Issuers())
		if err != nil {
			return nil, err
		}
		own = append(own, c)
		c0 := c.First()
		if c0.Strangers {
			if o.NoAnonymous {
				return nil, errors.New("--anonymous-auth and the field anonymous of the authentication configuration exclude each other")
			}
			stranger = c0.Anonymous
		}
	}
	if o.TokenWebhook != "" {
		a, err := authn.NewWebhook(o.TokenWebhook, tokens.Audiences(), o.TokenWebhookTTL)
		if err != nil {
			return nil, err
		}
		own = append(own, a)
	}
	if stranger != nil {
		own = append(own, *stranger)
	}
	return own, nil
}

// certificates believe the clients of the cluster's own authority and of those in the file that o names.
func (l *liveFiles) certificates(o *APIOptions, k *keys) *authn.Certificates {
	c := authn.NewCertificates(k.clients)
	if o.ClientCA == "" {
		return c
	}
	l.again(o.ClientCA, k.clientCA, func(ctx context.Context, pem []byte) error {
		if _, err := authoritiesOf(pem); err != nil {
			return err
		}
		both := slices.Concat(k.ca.CertPEM(), pem)
		roots, err := authoritiesOf(both)
		if err != nil {
			return err
		}
		c.SetRoots(roots)
		k.serving.tell("clients", both)
		k.clientCA = pem
		return l.told(ctx)
	})
	return c
}

// reviewer answers TokenReviews with whatever all of them know.
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

// authorizer is who decides, in order, and whether somebody among them cannot say what a user may do without being asked.
func (l *liveFiles) authorizer(o *APIOptions, node, rbac auth.Authorizer) (a auth.Authorizer, unlisted func() bool, err error) {
	if o.AuthorizationConfig != "" {
		c, err := l.authorizers(o.AuthorizationConfig, node, rbac)
		if err != nil {
			return nil, nil, err
		}
		return c, c.Unlisted, nil
	}
	var webhook auth.Authorizer
	if o.AuthorizationWebhook != "" {
		w, err := authz.NewWebhook(o.AuthorizationWebhook, o.AuthorizedTTL, o.UnauthorizedTTL)
		if err != nil {
			return nil, nil, err
		}
		webhook = w
	}
	u, without := authz.ByModes(o.modes(), node, rbac, webhook)
	return u, func() bool { return without }, nil
}

// modes are who is asked, in order. The webhook comes last: it is asked about what the cluster's own rules do not allow.
func (o *APIOptions) modes() []string {
	switch {
	case len(o.AuthorizationModes) > 0:
		return o.AuthorizationModes
	case o.AuthorizationWebhook != "":
		return []string{authz.ModeNode, authz.ModeRBAC, authz.ModeWebhook}
	}
	return []string{authz.ModeNode, authz.ModeRBAC}
}

func (o *APIOptions) validateModes() error {
	var errs []error
	if len(o.AuthorizationModes) > 0 && o.AuthorizationConfig != "" {
		errs = append(errs, errors.New("--authorization-config and --authorization-mode exclude each other: name the modes in the file"))
	}
	seen := map[string]bool{}
	for _, m := range o.AuthorizationModes {
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
	if len(seen) > 0 && seen[authz.ModeWebhook] != (o.AuthorizationWebhook != "") {
		errs = append(errs, errors.New("--authorization-mode Webhook and --authorization-webhook-config-file must be given together"))
	}
	return errors.Join(errs...)
}
