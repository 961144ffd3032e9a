// SPDX-License-Identifier: Apache-2.0

package options

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"keelson/auth/authn"
	"keelson/lib/option"
	"keelson/pki"
)

// clusterIssuer is the default issuer of service-account tokens, and their default audience.
const clusterIssuer = "https://kubernetes.default.svc.cluster.local"

// ServiceAccountTokens holds kube-apiserver's --service-account-* flags and --api-audiences.
type ServiceAccountTokens struct {
	// Issuers are accepted; the first one is the issuer of new tokens. None: clusterIssuer.
	Issuers []string
	// SigningKeyFile is the private signing key; empty: the one in the data directory.
	SigningKeyFile string
	// KeyFiles hold further verification keys.
	KeyFiles []string
	// Audiences are the API server's own; none: the issuers.
	Audiences []string
	// JWKSURI is the jwks_uri of the discovery document.
	JWKSURI string
	// MaxExpiration is the maximum token lifetime; 0: none.
	MaxExpiration time.Duration
	// NoExtendedExpiration disables the extended lifetime of tokens that kubelets request for pods.
	NoExtendedExpiration bool
}

func (o *ServiceAccountTokens) rows() []option.Row {
	return []option.Row{
		option.Each(&o.Issuers, "service-account-issuer",
			"issuer `URL` of service account tokens; may be repeated: all are accepted, the first one issues"),
		option.New(&o.SigningKeyFile, "service-account-signing-key-file", "",
			"sign service account tokens with the private key in `FILE`, in place of the data directory's"),
		option.Each(&o.KeyFiles, "service-account-key-file",
			"verify service account tokens with the keys in `FILE`, too; may be repeated"),
		option.New(&o.Audiences, "api-audiences", nil,
			"`AUDIENCES` of the API server, one of which service account tokens must name (default the issuers)"),
		option.New(&o.JWKSURI, "service-account-jwks-uri", "",
			"`URL` of the JSON Web Key Set that the issuer's discovery document names"),
		option.New(&o.MaxExpiration, "service-account-max-token-expiration", 0,
			"maximum lifetime of a service account token; 0: unlimited"),
		option.Not(&o.NoExtendedExpiration, "service-account-extend-token-expiration",
			"extend the tokens that kubelets ask for pods to a year, and count uses after their hour"),
	}
}

// AllIssuers are the accepted issuers, the default one too.
func (o *ServiceAccountTokens) AllIssuers() []string {
	if len(o.Issuers) == 0 {
		return []string{clusterIssuer}
	}
	return o.Issuers
}

// validate returns one sentence for each error.
func (o *ServiceAccountTokens) validate() error {
	var errs []error
	for _, i := range o.Issuers {
		if i == "" {
			errs = append(errs, errors.New("service-account-issuer should not be an empty string"))
		}
	}
	if o.JWKSURI != "" {
		if u, err := url.Parse(o.JWKSURI); err != nil {
			errs = append(errs, fmt.Errorf("service-account-jwks-uri must be a valid URL: %w", err))
		} else if u.Scheme != "https" {
			errs = append(errs, fmt.Errorf("service-account-jwks-uri requires https scheme, parsed as: %s", u))
		}
	}
	if o.MaxExpiration != 0 && (o.MaxExpiration < time.Hour || o.MaxExpiration > 1<<32*time.Second) {
		errs = append(errs,
			errors.New("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds"))
	}
	return errors.Join(errs...)
}

// SigningKeys are the keys of tokens; own returns the cluster's own.
func (o *ServiceAccountTokens) SigningKeys(own func() (*pki.TokenKeys, error)) (*pki.TokenKeys, error) {
	if o.SigningKeyFile == "" {
		return own()
	}
	signer, err := pki.TokenSigner(o.SigningKeyFile)
	if err != nil {
		return nil, err
	}
	return pki.FixedTokenKeys(signer), nil
}

// Config configures issuing and verification by keys, and those of --service-account-key-file.
func (o *ServiceAccountTokens) Config(keys *pki.TokenKeys) (authn.TokenConfig, error) {
	tokenConfig := authn.TokenConfig{
		Key:       keys.Signer(),
		Keys:      slices.Clone(keys.Further()),
		Issuers:   o.Issuers,
		Audiences: o.Audiences,
		JWKS:      o.JWKSURI,
		Longest:   o.MaxExpiration,
		Extend:    !o.NoExtendedExpiration,
	}
	if len(tokenConfig.Issuers) == 0 {
		tokenConfig.Issuers = []string{clusterIssuer}
	}
	for _, file := range o.KeyFiles {
		keys, err := pki.TokenKeysIn(file)
		if err != nil {
			return tokenConfig, err
		}
		tokenConfig.Keys = append(tokenConfig.Keys, keys...)
	}
	return tokenConfig, nil
}
