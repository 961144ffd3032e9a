// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/uuid"

	"keelson/auth"
	"keelson/pki"
)

// Objects looks up what a token is bound to. ok is false when the object does not exist (or is past its deletion time).
type Objects interface {
	ServiceAccount(ctx context.Context, namespace, name string) (uid string, ok bool)
	Pod(ctx context.Context, namespace, name string) (uid string, ok bool)
	Secret(ctx context.Context, namespace, name string) (uid string, ok bool)
	Node(ctx context.Context, name string) (uid string, ok bool)
	// SecretToken is the token that a secret of type kubernetes.io/service-account-token holds.
	SecretToken(ctx context.Context, namespace, name string) (token string, ok bool)
}

// Ref names an object that a token is bound to.
type Ref struct {
	Name string `json:"name"`
	UID  string `json:"uid,omitempty"`
}

// Bound is the kubernetes.io claim of a service-account token.
type Bound struct {
	Namespace      string           `json:"namespace,omitempty"`
	ServiceAccount Ref              `json:"serviceaccount,omitzero"`
	Pod            *Ref             `json:"pod,omitempty"`
	Secret         *Ref             `json:"secret,omitempty"`
	Node           *Ref             `json:"node,omitempty"`
	WarnAfter      *jwt.NumericDate `json:"warnafter,omitempty"`
}

type boundClaims struct {
	Kubernetes Bound `json:"kubernetes.io"`
}

// Tokens issues and checks service-account tokens (JWT, KEP-1205). Safe for concurrent use.
type Tokens struct {
	issuer    string
	audiences []string
	objects   Objects
	now       func() time.Time
	signer    jose.Signer
	public    jose.JSONWebKeySet
	algorithm jose.SignatureAlgorithm
}

// NewTokens signs with key (ECDSA P-256). audiences are the API server's own, the default of tokens that ask for none.
func NewTokens(key crypto.Signer, issuer string, audiences []string, objects Objects) (*Tokens, error) {
	id, err := pki.KeyID(key.Public())
	if err != nil {
		return nil, err
	}
	alg := jose.ES256
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		return nil, fmt.Errorf("service-account key: %w", err)
	}
	return &Tokens{
		issuer: issuer, audiences: audiences, objects: objects, now: time.Now, signer: signer, algorithm: alg,
		public: jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: id, Algorithm: string(alg), Use: "sig"}}},
	}, nil
}

// Issue signs a token for b that lives for life. Empty audiences mean the API server's own. It returns the token and when it ends.
func (t *Tokens) Issue(b Bound, audiences []string, life time.Duration) (string, time.Time, error) {
	if len(audiences) == 0 {
		audiences = t.audiences
	}
	now := t.now()
	end := now.Add(life)
	token, err := jwt.Signed(t.signer).Claims(jwt.Claims{
		ID:        uuid.NewString(),
		Issuer:    t.issuer,
		Subject:   userName(b.Namespace, b.ServiceAccount.Name),
		Audience:  audiences,
		IssuedAt:  jwt.NewNumericDate(now),
		NotBefore: jwt.NewNumericDate(now),
		Expiry:    jwt.NewNumericDate(end),
	}).Claims(boundClaims{b}).Serialize()
	if err != nil {
		return "", time.Time{}, fmt.Errorf("sign token of service account %s/%s: %w", b.Namespace, b.ServiceAccount.Name, err)
	}
	return token, end.Truncate(time.Second), nil
}

// Audiences are the API server's own.
func (t *Tokens) Audiences() []string { return t.audiences }

// Authenticate checks the request's bearer token, if it is one of ours.
func (t *Tokens) Authenticate(r *http.Request) (*auth.User, bool, error) {
	token := Bearer(r)
	if token == "" {
		return nil, false, nil
	}
	u, _, err := t.Check(r.Context(), token, nil)
	return u, err == nil, err
}

// Check verifies signature, times, audience (any of audiences; empty: the API server's own) and that everything the token is
// bound to still exists. It returns the user and the audiences that matched. Every error wraps ErrUnauthorized.
func (t *Tokens) Check(ctx context.Context, token string, audiences []string) (*auth.User, []string, error) {
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{t.algorithm})
	if err != nil {
		return nil, nil, fmt.Errorf("%w: not a token of this cluster: %w", ErrUnauthorized, err)
	}
	var c jwt.Claims
	var b boundClaims
	var legacy pki.LegacyToken
	if err := parsed.Claims(t.public, &c, &b, &legacy); err != nil {
		return nil, nil, fmt.Errorf("%w: token signature: %w", ErrUnauthorized, err)
	}
	if c.Issuer == pki.LegacyIssuer {
		return t.checkLegacy(ctx, token, &legacy, audiences)
	}
	if err := c.ValidateWithLeeway(jwt.Expected{Issuer: t.issuer, Time: t.now()}, 10*time.Second); err != nil {
		return nil, nil, fmt.Errorf("%w: token of %s: %w", ErrUnauthorized, c.Subject, err)
	}
	if len(audiences) == 0 {
		audiences = t.audiences
	}
	var matched []string
	for _, a := range audiences {
		if slices.Contains(c.Audience, a) {
			matched = append(matched, a)
		}
	}
	if len(matched) == 0 {
		return nil, nil, fmt.Errorf("%w: token audiences %q is invalid for the target audiences %q", ErrUnauthorized, []string(c.Audience), audiences)
	}
	if err := t.alive(ctx, b.Kubernetes); err != nil {
		return nil, nil, err
	}
	return user(b.Kubernetes, c.ID), matched, nil
}

// checkLegacy accepts a token without end while the secret it was made for holds it and its service account is the same.
func (t *Tokens) checkLegacy(ctx context.Context, token string, l *pki.LegacyToken, audiences []string) (*auth.User, []string, error) {
	matched := t.audiences
	if len(audiences) > 0 {
		matched = slices.DeleteFunc(slices.Clone(audiences), func(a string) bool { return !slices.Contains(t.audiences, a) })
	}
	if len(matched) == 0 {
		return nil, nil, fmt.Errorf("%w: token of secret %s/%s is not for the audiences %q", ErrUnauthorized, l.Namespace, l.Secret, audiences)
	}
	held, ok := t.objects.SecretToken(ctx, l.Namespace, l.Secret)
	if !ok || subtle.ConstantTimeCompare([]byte(held), []byte(token)) != 1 {
		return nil, nil, fmt.Errorf("%w: secret %s/%s of the token is gone or holds another", ErrUnauthorized, l.Namespace, l.Secret)
	}
	b := Bound{Namespace: l.Namespace, ServiceAccount: Ref{Name: l.Account, UID: l.AccountUID}}
	if err := t.alive(ctx, b); err != nil {
		return nil, nil, err
	}
	return ServiceAccountUser(l.Namespace, l.Account, l.AccountUID, "service account token of secret "+l.Secret), matched, nil
}

// alive refuses a token whose service account, pod, secret or node is gone or was made anew.
func (t *Tokens) alive(ctx context.Context, b Bound) error {
	check := func(what string, want *Ref, uid string, ok bool) error {
		if !ok || want.UID != "" && want.UID != uid {
			return fmt.Errorf("%w: %s %s/%s of the token is gone", ErrUnauthorized, what, b.Namespace, want.Name)
		}
		return nil
	}
	uid, ok := t.objects.ServiceAccount(ctx, b.Namespace, b.ServiceAccount.Name)
	if err := check("service account", &b.ServiceAccount, uid, ok); err != nil {
		return err
	}
	if b.Pod != nil {
		uid, ok := t.objects.Pod(ctx, b.Namespace, b.Pod.Name)
		if err := check("pod", b.Pod, uid, ok); err != nil {
			return err
		}
	}
	if b.Secret != nil {
		uid, ok := t.objects.Secret(ctx, b.Namespace, b.Secret.Name)
		if err := check("secret", b.Secret, uid, ok); err != nil {
			return err
		}
	}
	// A node beside a pod is information only: the pod binds the token.
	if b.Node != nil && b.Pod == nil {
		uid, ok := t.objects.Node(ctx, b.Node.Name)
		return check("node", b.Node, uid, ok)
	}
	return nil
}

func userName(namespace, name string) string {
	return "system:serviceaccount:" + namespace + ":" + name
}

// ServiceAccountUser is the identity of a service account, as its tokens give it.
func ServiceAccountUser(namespace, name, uid, how string) *auth.User {
	return &auth.User{
		Name: userName(namespace, name), UID: uid, How: how,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, auth.Authenticated},
	}
}

func user(b Bound, id string) *auth.User {
	u := ServiceAccountUser(b.Namespace, b.ServiceAccount.Name, b.ServiceAccount.UID, "service account token")
	u.Extra = map[string][]string{}
	if id != "" {
		u.Extra["authentication.kubernetes.io/credential-id"] = []string{"JTI=" + id}
	}
	if b.Pod != nil {
		u.Extra["authentication.kubernetes.io/pod-name"] = []string{b.Pod.Name}
		u.Extra["authentication.kubernetes.io/pod-uid"] = []string{b.Pod.UID}
	}
	if b.Node != nil {
		u.Extra["authentication.kubernetes.io/node-name"] = []string{b.Node.Name}
		if b.Node.UID != "" {
			u.Extra["authentication.kubernetes.io/node-uid"] = []string{b.Node.UID}
		}
	}
	return u
}

func credentialID(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return "X509SHA256=" + hex.EncodeToString(sum[:])
}

// Discovery serves the issuer's OIDC documents: /.well-known/openid-configuration and /openid/v1/jwks under base (https://host:port).
func (t *Tokens) Discovery(base string) (configuration, keys any) {
	return map[string]any{
		"issuer":                                t.issuer,
		"jwks_uri":                              strings.TrimSuffix(base, "/") + "/openid/v1/jwks",
		"response_types_supported":              []string{"id_token"},
		"subject_types_supported":               []string{"public"},
		"id_token_signing_alg_values_supported": []string{string(t.algorithm)},
	}, t.public
}
