// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto"
	"errors"
	"fmt"
	"net/url"
	"time"

	"keelson/auth/authn"
	"keelson/pki"
)

// issuer is who service-account tokens say they are from where nobody says otherwise; it is also their default audience.
const issuer = "https://kubernetes.default.svc.cluster.local"

// TokenOptions are what can be chosen about service-account tokens; each is kube-apiserver's --service-account-* flag, or --api-audiences.
type TokenOptions struct {
	// Issuers are believed; the first one issues. None: the cluster's own.
	Issuers []string
	// SigningKeyFile is the private key that signs; empty: one in the data directory.
	SigningKeyFile string
	// KeyFiles hold the keys of tokens that are believed beside those that the signing key signed.
	KeyFiles []string
	// Audiences are the API server's own; none: the issuers.
	Audiences []string
	// JWKSURI is where discovery says that the keys are.
	JWKSURI string
	// Longest bounds how long tokens live; 0: nothing does.
	Longest time.Duration
	// Short does not extend the tokens that kubelets ask for pods.
	Short bool
}

// validate returns one sentence per thing that is wrong.
func (o *TokenOptions) validate() error {
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
	if o.Longest != 0 && (o.Longest < time.Hour || o.Longest > 1<<32*time.Second) {
		errs = append(errs, errors.New("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds"))
	}
	return errors.Join(errs...)
}

// signer is the key that signs tokens; ids holds the cluster's own.
func (o *TokenOptions) signer(ids *identities) (crypto.Signer, error) {
	if o.SigningKeyFile != "" {
		return pki.TokenSigner(o.SigningKeyFile)
	}
	return ids.tokenKey()
}

// config says which tokens are issued and believed; key signs.
func (o *TokenOptions) config(key crypto.Signer) (authn.TokenConfig, error) {
	c := authn.TokenConfig{Key: key, Issuers: o.Issuers, Audiences: o.Audiences, JWKS: o.JWKSURI, Longest: o.Longest, Extend: !o.Short}
	if len(c.Issuers) == 0 {
		c.Issuers = []string{issuer}
	}
	for _, file := range o.KeyFiles {
		keys, err := pki.TokenKeys(file)
		if err != nil {
			return c, err
		}
		c.Keys = append(c.Keys, keys...)
	}
	return c, nil
}
