// SPDX-License-Identifier: Apache-2.0

package options

import (
	"context"
	"errors"
	"slices"
	"time"

	"keelson/apiserver/configreload"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/auth/remote"
	"keelson/lib/option"
	"keelson/pki"
)

// Authentication configures authenticators in addition to those of the cluster's own credentials.
type Authentication struct {
	// ClientCAFile holds client CAs in addition to the cluster's own.
	ClientCAFile string
	// RequestHeader configures authenticating proxies, if its CAFile is set.
	RequestHeader authn.ProxyConfig
	// TokenFile lists static bearer tokens with their users.
	TokenFile string
	// OIDC is an issuer of ID tokens, if its IssuerURL is set.
	OIDC authn.OIDCConfig
	// WebhookConfigFile is a kubeconfig of a token webhook; its answers are cached for WebhookTTL.
	WebhookConfigFile string
	WebhookTTL        time.Duration
	// ConfigFile is an AuthenticationConfiguration: JWT issuers in place of OIDC, and anonymous access.
	ConfigFile string
	// NoAnonymous rejects requests without a credential.
	NoAnonymous bool
}

func (o *Authentication) rows() []option.Row {
	return slices.Concat([]option.Row{
		option.New(&o.ClientCAFile, "client-ca-file", "",
			"client CA file: accept client certificates signed by a CA in `FILE`, in addition to the cluster's own"),
		option.New(&o.TokenFile, "token-auth-file", "", "accept the bearer tokens that the CSV `FILE` lists"),
		option.Not(&o.NoAnonymous, "anonymous-auth",
			"accept requests without a credential, as those of system:anonymous"),
		option.New(&o.ConfigFile, "authentication-config", "",
			"accept tokens of the JWT issuers, and anonymous requests, as the AuthenticationConfiguration in `FILE` "+
				"says"),
		option.New(&o.WebhookConfigFile, "authentication-token-webhook-config-file", "",
			"token webhook: kubeconfig `FILE` of the service that authenticates bearer tokens"),
		option.New(&o.WebhookTTL, "authentication-token-webhook-cache-ttl", 2*time.Minute,
			"how long responses of the token webhook are cached"),
	}, o.oidcRows(), o.requestHeaderRows())
}

func (o *Authentication) oidcRows() []option.Row {
	return []option.Row{
		option.New(&o.OIDC.IssuerURL, "oidc-issuer-url", "",
			"accept the ID tokens of the OpenID Connect issuer at `URL`"),
		option.New(&o.OIDC.ClientID, "oidc-client-id", "",
			"the client ID, which ID tokens must name as their audience"),
		option.New(&o.OIDC.CAFile, "oidc-ca-file", "", "PEM `FILE` with the CAs of the issuer's serving certificate"),
		option.New(&o.OIDC.UsernameClaim, "oidc-username-claim", "sub", "claim that is the user's name"),
		option.New(&o.OIDC.UsernamePrefix, "oidc-username-prefix", "", "prefix of the user's name; - for none"),
		option.New(&o.OIDC.GroupsClaim, "oidc-groups-claim", "", "claim that is the user's groups"),
		option.New(&o.OIDC.GroupsPrefix, "oidc-groups-prefix", "", "prefix of each group"),
		option.New(&o.OIDC.RequiredClaims, "oidc-required-claim", nil,
			"`CLAIM=VALUE` that ID tokens must have; may be repeated"),
		option.New(&o.OIDC.SigningAlgs, "oidc-signing-algs", []string{"RS256"},
			"algorithms that ID tokens may be signed with"),
	}
}

func (o *Authentication) requestHeaderRows() []option.Row {
	proxyConfig := &o.RequestHeader
	return []option.Row{
		option.New(&proxyConfig.CAFile, "requestheader-client-ca-file", "",
			"accept user names in request headers from proxies whose client certificate is signed by a CA in `FILE`"),
		option.New(&proxyConfig.AllowedNames, "requestheader-allowed-names", nil,
			"common `NAMES` that such client certificates may have; none: any"),
		option.New(&proxyConfig.UsernameHeaders, "requestheader-username-headers", []string{"X-Remote-User"},
			"request `HEADERS` with the user's name"),
		option.New(&proxyConfig.UIDHeaders, "requestheader-uid-headers", []string{"X-Remote-Uid"},
			"request `HEADERS` with the user's uid"),
		option.New(&proxyConfig.GroupHeaders, "requestheader-group-headers", []string{"X-Remote-Group"},
			"request `HEADERS` with the user's groups"),
		option.New(&proxyConfig.ExtraPrefixes, "requestheader-extra-headers-prefix", []string{"X-Remote-Extra-"},
			"prefixes of the request `HEADERS` with extra fields of the user"),
	}
}

func (o *Authentication) validate() error {
	var errs []error
	if (o.OIDC.IssuerURL == "") != (o.OIDC.ClientID == "") {
		errs = append(errs, errors.New("--oidc-issuer-url and --oidc-client-id must be given together"))
	}
	if o.ConfigFile != "" && o.OIDC.IssuerURL != "" {
		errs = append(errs,
			errors.New("--authentication-config and --oidc-* exclude each other: name the issuer in the file"))
	}
	return errors.Join(errs...)
}

// Dependencies holds the cluster's own authentication.
type Dependencies struct {
	// Authenticators of the cluster's own credentials.
	Authenticators []auth.Authenticator
	// Tokens of service accounts; no other authenticator may have their issuers.
	Tokens *authn.Tokens
	// Issuers calls token issuers; nil: directly.
	Issuers authn.Via
	// Webhooks calls webhooks.
	Webhooks remote.Via
	// Certificates gets the CAs of proxies.
	Certificates *Certificates
	// Everybody reports that the authorizers allow everything to everybody, which then must not include strangers: like
	// kube-apiserver the server rejects anonymous requests. nil: they do not.
	Everybody func() bool
}

// New returns the authenticators in order: proxies, the cluster's own, those of o, and last the anonymous one.
func (o *Authentication) New(files *configreload.Files, own Dependencies) ([]auth.Authenticator, error) {
	all := own.Authenticators
	add := func(a auth.Authenticator, err error) error {
		if err == nil {
			all = append(all, a)
		}
		return err
	}
	anonymous := &authn.Anonymous{}
	if o.NoAnonymous {
		anonymous = nil
	}
	if o.RequestHeader.CAFile != "" {
		a, err := o.requestHeader(files, own.Certificates)
		if err != nil {
			return nil, err
		}
		all = append([]auth.Authenticator{a}, all...)
	}
	if o.TokenFile != "" {
		if err := add(authn.LoadTokenFile(o.TokenFile)); err != nil {
			return nil, err
		}
	}
	if o.OIDC.IssuerURL != "" {
		if err := add(authn.NewOIDC(o.OIDC, own.Issuers)); err != nil {
			return nil, err
		}
	}
	if o.ConfigFile != "" {
		live, err := o.issuers(files, own)
		if err := add(live, err); err != nil {
			return nil, err
		}
		if first := live.First(); first.Strangers {
			if o.NoAnonymous {
				return nil, errors.New(
					"--anonymous-auth and the field anonymous of the authentication configuration exclude each other")
			}
			anonymous = first.Anonymous
			if anonymous != nil {
				anonymous = &authn.Anonymous{Paths: anonymous.Paths} // first is compared with what a reload says
			}
		}
	}
	if o.WebhookConfigFile != "" {
		if err := add(authn.NewWebhook(o.WebhookConfigFile, own.Tokens.Audiences(), o.WebhookTTL,
			own.Webhooks)); err != nil {
			return nil, err
		}
	}
	if anonymous != nil {
		anonymous.Off = own.Everybody
		all = append(all, *anonymous)
	}
	return all, nil
}

// requestHeader is the authenticator of front proxies.
func (o *Authentication) requestHeader(files *configreload.Files, certs *Certificates) (*authn.Proxy, error) {
	pem, err := pki.ReadAuthorities(o.RequestHeader.CAFile, "--requestheader-client-ca-file")
	if err != nil {
		return nil, err
	}
	proxy, err := authn.NewProxy(o.RequestHeader)
	if err != nil {
		return nil, err
	}
	certs.SetClientCAs("proxies", pem)
	files.Watch("front proxy CA", o.RequestHeader.CAFile, pem, func(_ context.Context, pem []byte) error {
		err := proxy.SetRoots(pem)
		if err == nil {
			certs.SetClientCAs("proxies", pem)
		}
		return err
	})
	return proxy, nil
}

// issuers are the JWT authenticators of the AuthenticationConfiguration.
func (o *Authentication) issuers(files *configreload.Files, own Dependencies) (live *authn.Live, err error) {
	err = files.Configuration(o.ConfigFile, "authentication", func(b []byte) (configreload.Apply, error) {
		if live, err = authn.NewLive(b, own.Tokens.Issuers(), own.Issuers); err != nil {
			return nil, err
		}
		return live.Apply, nil
	})
	return live, err
}
