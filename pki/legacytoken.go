// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"fmt"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// LegacyIssuer is who the tokens in secrets of type kubernetes.io/service-account-token say they are from.
const LegacyIssuer = "kubernetes/serviceaccount"

// LegacyToken is the claims of such a token; it has no end and no audience, and lasts as long as its secret.
type LegacyToken struct {
	Namespace  string `json:"kubernetes.io/serviceaccount/namespace"`
	Secret     string `json:"kubernetes.io/serviceaccount/secret.name"`
	Account    string `json:"kubernetes.io/serviceaccount/service-account.name"`
	AccountUID string `json:"kubernetes.io/serviceaccount/service-account.uid"`
}

// KeyID names a public key in the header of tokens, as Kubernetes computes it.
func KeyID(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("service-account key: %w", err)
	}
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// Sign signs t with the service-account key (ECDSA P-256).
func (t LegacyToken) Sign(key crypto.Signer) (string, error) {
	id, err := KeyID(key.Public())
	if err != nil {
		return "", err
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		return "", fmt.Errorf("service-account key: %w", err)
	}
	token, err := jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: LegacyIssuer, Subject: "system:serviceaccount:" + t.Namespace + ":" + t.Account,
	}).Claims(t).Serialize()
	if err != nil {
		return "", fmt.Errorf("sign token of secret %s/%s: %w", t.Namespace, t.Secret, err)
	}
	return token, nil
}
