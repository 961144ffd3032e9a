// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"fmt"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// LegacyIssuer is the issuer of tokens in secrets of type kubernetes.io/service-account-token.
const LegacyIssuer = "kubernetes/serviceaccount"

// LegacyToken holds the claims of such a token. It has no expiration and no audience; it is valid as long as its
// secret.
type LegacyToken struct {
	Namespace  string `json:"kubernetes.io/serviceaccount/namespace"`
	Secret     string `json:"kubernetes.io/serviceaccount/secret.name"`
	Account    string `json:"kubernetes.io/serviceaccount/service-account.name"`
	AccountUID string `json:"kubernetes.io/serviceaccount/service-account.uid"`
}

// KeyID is the key ID in the header of tokens, computed as Kubernetes does.
func KeyID(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("service-account key: %w", err)
	}
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// Algorithm is the signature algorithm for tokens signed with key.
func Algorithm(key crypto.PublicKey) (jose.SignatureAlgorithm, error) {
	switch k := key.(type) {
	case *rsa.PublicKey:
		return jose.RS256, nil
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return jose.ES256, nil
		case elliptic.P384():
			return jose.ES384, nil
		case elliptic.P521():
			return jose.ES512, nil
		}
	}
	return "", fmt.Errorf("service-account key: a %T of this kind cannot sign tokens: RSA, or ECDSA on P-256, P-384 "+
		"or P-521", key)
}

// Sign signs t with the service-account key.
func (t LegacyToken) Sign(key crypto.Signer) (string, error) {
	id, err := KeyID(key.Public())
	if err != nil {
		return "", err
	}
	alg, err := Algorithm(key.Public())
	if err != nil {
		return "", err
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		return "", fmt.Errorf("service-account key: %w", err)
	}
	token, err := jwt.Signed(signer).Claims(jwt.Claims{
		Issuer:  LegacyIssuer,
		Subject: "system:serviceaccount:" + t.Namespace + ":" + t.Account,
	}).Claims(t).Serialize()
	if err != nil {
		return "", fmt.Errorf("sign token of secret %s/%s: %w", t.Namespace, t.Secret, err)
	}
	return token, nil
}
