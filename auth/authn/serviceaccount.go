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
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/uuid"

	"keelson/auth"
	"keelson/pki"
)

// Objects looks up the objects that a token is bound to. ok is false when the object does not exist, or when its
// deletion began too long ago.
type Objects interface {
	ServiceAccount(ctx context.Context, namespace, name string) (uid string, ok bool)
	Pod(ctx context.Context, namespace, name string) (uid string, ok bool)
	Secret(ctx context.Context, namespace, name string) (uid string, ok bool)
	Node(ctx context.Context, name string) (uid string, ok bool)
	// SecretToken returns the content of a secret of type kubernetes.io/service-account-token.
	SecretToken(ctx context.Context, namespace, name string) (s SecretToken, ok bool)
	// Lists reports whether a service account lists a secret in its field secrets.
	Lists(ctx context.Context, namespace, account, secret string) bool
	// NoteUse labels a secret with the day of its token's last use.
	NoteUse(ctx context.Context, namespace, secret, day string)
}

// SecretToken is the token in a secret. InvalidSince is the day since which it is marked invalid, LastUsed the day of
// its last use; both are labels of the secret, or empty.
type SecretToken struct{ Token, InvalidSince, LastUsed string }

// Labels of secrets with legacy tokens.
const (
	LabelInvalidSince = "kubernetes.io/legacy-token-invalid-since"
	LabelLastUsed     = "kubernetes.io/legacy-token-last-used"
)

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

// TokenConfig configures which tokens are issued and accepted.
type TokenConfig struct {
	// Key signs tokens (RSA, or ECDSA on P-256, P-384 or P-521). Keys are further keys for verification.
	Key  crypto.Signer
	Keys []crypto.PublicKey
	// Issuers are accepted; the first one is the issuer of new tokens.
	Issuers []string
	// Audiences are the API server's own, the default of new tokens; empty: the issuers.
	Audiences []string
	// JWKS is the jwks_uri of the discovery document; empty: the issuer's.
	JWKS string
	// Longest is the maximum token lifetime; 0: none.
	Longest time.Duration
	// Extend lets tokens that kubelets request for pods be valid for a year, and counts their use after the requested
	// hour.
	Extend bool
}

// Tokens issues and verifies service-account tokens (JWT, KEP-1205). It is safe for concurrent use.
type Tokens struct {
	config  TokenConfig
	objects Objects
	now     func() time.Time
	keys    *atomic.Pointer[tokenKeys]
	used    *tokenUse
}

// tokenKeys are the keys in use. They are not modified.
type tokenKeys struct {
	signer     jose.Signer
	public     jose.JSONWebKeySet
	algorithms []jose.SignatureAlgorithm
}

// NewTokens checks the keys of tokenConfig.
func NewTokens(tokenConfig TokenConfig, objects Objects) (*Tokens, error) {
	if len(tokenConfig.Audiences) == 0 {
		tokenConfig.Audiences = tokenConfig.Issuers
	}
	tokens := &Tokens{
		config:  tokenConfig,
		objects: objects,
		now:     time.Now,
		keys:    &atomic.Pointer[tokenKeys]{},
		used:    newTokenUse(),
	}
	return tokens, tokens.SetKeys(tokenConfig.Key, tokenConfig.Keys)
}

// SetKeys replaces the key that signs tokens, and the further keys that verify them. After an error the previous ones
// stay.
func (t *Tokens) SetKeys(key crypto.Signer, further []crypto.PublicKey) error {
	next := &tokenKeys{}
	for _, key := range append([]crypto.PublicKey{key.Public()}, further...) {
		id, err := pki.KeyID(key)
		if err != nil {
			return err
		}
		alg, err := pki.Algorithm(key)
		if err != nil {
			return err
		}
		if len(next.public.Key(id)) > 0 {
			continue
		}
		next.public.Keys = append(next.public.Keys, jose.JSONWebKey{
			Key:       key,
			KeyID:     id,
			Algorithm: string(alg),
			Use:       "sig",
		})
		if !slices.Contains(next.algorithms, alg) {
			next.algorithms = append(next.algorithms, alg)
		}
	}
	first := next.public.Keys[0]
	var err error
	next.signer, err = jose.NewSigner(jose.SigningKey{
		Algorithm: next.algorithms[0],
		Key: jose.JSONWebKey{
			Key:   key,
			KeyID: first.KeyID,
		},
	}, nil)
	if err != nil {
		return fmt.Errorf("service-account key: %w", err)
	}
	t.keys.Store(next)
	return nil
}

const (
	// kubeletLife is the lifetime that kubelets request by default. Tokens of that lifetime for the API server are
	// extended.
	kubeletLife  = 3607 * time.Second
	extendedLife = 365 * 24 * time.Hour
)

// Issued is a new token.
type Issued struct {
	Token string
	// End is the expiration time in the response; an extended token is valid for longer.
	End time.Time
	// ID is the claim jti.
	ID string
}

// Issue signs a token for bound with lifetime life. Empty audiences mean the API server's own.
func (t *Tokens) Issue(bound Bound, audiences []string, life time.Duration) (Issued, error) {
	if len(audiences) == 0 {
		audiences = t.config.Audiences
	}
	now := t.now()
	lasts := life
	out := Issued{End: now.Add(life).Truncate(time.Second), ID: uuid.NewString()}
	foreign := func(a string) bool { return !slices.Contains(t.config.Audiences, a) }
	if t.config.Extend && bound.Pod != nil && life == kubeletLife && !slices.ContainsFunc(audiences, foreign) {
		bound.WarnAfter = jwt.NewNumericDate(now.Add(life))
		lasts = extendedLife
	}
	var err error
	out.Token, err = jwt.Signed(t.keys.Load().signer).Claims(jwt.Claims{
		ID:        out.ID,
		Issuer:    t.config.Issuers[0],
		Subject:   userName(bound.Namespace, bound.ServiceAccount.Name),
		Audience:  audiences,
		IssuedAt:  jwt.NewNumericDate(now),
		NotBefore: jwt.NewNumericDate(now),
		Expiry:    jwt.NewNumericDate(now.Add(lasts)),
	}).Claims(boundClaims{bound}).Serialize()
	if err != nil {
		return Issued{}, fmt.Errorf("sign token of service account %s/%s: %w", bound.Namespace,
			bound.ServiceAccount.Name, err)
	}
	return out, nil
}

// Issuers are the issuers of service-account tokens. No other authenticator may handle their tokens.
func (t *Tokens) Issuers() []string { return t.config.Issuers }

// Longest is the maximum token lifetime; 0: none.
func (t *Tokens) Longest() time.Duration { return t.config.Longest }

// Audiences are the API server's own.
func (t *Tokens) Audiences() []string { return t.config.Audiences }

// Authenticate verifies the request's bearer token if it is a service-account token.
func (t *Tokens) Authenticate(r *http.Request) (*auth.User, bool, error) {
	token := Bearer(r)
	if token == "" {
		return nil, false, nil
	}
	u, _, err := t.Check(r.Context(), token, nil)
	return u, err == nil, err
}

// Check verifies signature, times, audience (any of audiences; empty: the API server's own), and that the objects to
// which the token is bound exist. It returns the user and the matching audiences. Every error wraps ErrUnauthorized.
func (t *Tokens) Check(ctx context.Context, token string, audiences []string) (*auth.User, []string, error) {
	keys := t.keys.Load()
	parsed, err := jwt.ParseSigned(token, keys.algorithms)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: not a token of this cluster: %w", ErrUnauthorized, err)
	}
	var claims jwt.Claims
	var b boundClaims
	var legacy pki.LegacyToken
	if err := parsed.Claims(keys.public, &claims, &b, &legacy); err != nil {
		return nil, nil, fmt.Errorf("%w: token signature: %w", ErrUnauthorized, err)
	}
	id := parsed.Headers[0].KeyID // the claims were verified with a key of this id
	if claims.Issuer == pki.LegacyIssuer {
		u, matched, err := t.checkLegacy(ctx, token, &legacy, audiences)
		if err == nil {
			t.noteKey(keys, id, u.Name)
		}
		return u, matched, err
	}
	if !slices.Contains(t.config.Issuers, claims.Issuer) {
		return nil, nil, fmt.Errorf("%w: token issuer %q is invalid", ErrUnauthorized, claims.Issuer)
	}
	if err := claims.Validate(jwt.Expected{Time: t.now()}); err != nil {
		return nil, nil, fmt.Errorf("%w: token of %s: %w", ErrUnauthorized, claims.Subject, err)
	}
	if len(audiences) == 0 {
		audiences = t.config.Audiences
	}
	var matched []string
	for _, a := range audiences {
		if slices.Contains(claims.Audience, a) {
			matched = append(matched, a)
		}
	}
	if len(matched) == 0 {
		return nil, nil, fmt.Errorf("%w: token audiences %q is invalid for the target audiences %q", ErrUnauthorized,
			[]string(claims.Audience), audiences)
	}
	if err := t.alive(ctx, b.Kubernetes); err != nil {
		return nil, nil, err
	}
	u := user(b.Kubernetes, claims.ID)
	t.used.noteAge(u, claims.Subject, b.Kubernetes.WarnAfter, t.now())
	t.noteKey(keys, id, u.Name)
	return u, matched, nil
}

// noteKey notes the use of a token unless the key that signs has signed it.
func (t *Tokens) noteKey(keys *tokenKeys, id, user string) {
	if id != keys.public.Keys[0].KeyID {
		t.used.noteKey(id, user, t.now())
	}
}

// checkLegacy accepts a token without expiration while its secret contains it and its service account has the same UID.
func (t *Tokens) checkLegacy(
	ctx context.Context, token string, legacyToken *pki.LegacyToken, audiences []string,
) (*auth.User, []string, error) {
	matched := t.config.Audiences
	if len(audiences) > 0 {
		matched = slices.DeleteFunc(slices.Clone(audiences), func(a string) bool {
			return !slices.Contains(t.config.Audiences, a)
		})
	}
	if len(matched) == 0 {
		return nil, nil, fmt.Errorf("%w: token of secret %s/%s is not for the audiences %q", ErrUnauthorized,
			legacyToken.Namespace, legacyToken.Secret, audiences)
	}
	held, ok := t.objects.SecretToken(ctx, legacyToken.Namespace, legacyToken.Secret)
	if !ok || subtle.ConstantTimeCompare([]byte(held.Token), []byte(token)) != 1 {
		return nil, nil, fmt.Errorf("%w: secret %s/%s of the token is gone or holds another", ErrUnauthorized,
			legacyToken.Namespace, legacyToken.Secret)
	}
	b := Bound{
		Namespace: legacyToken.Namespace,
		ServiceAccount: Ref{
			Name: legacyToken.Account,
			UID:  legacyToken.AccountUID,
		},
	}
	if err := t.alive(ctx, b); err != nil {
		return nil, nil, err
	}
	t.noteUse(ctx, legacyToken, held)
	if held.InvalidSince != "" {
		t.used.invalid.Inc()
		return nil, nil, fmt.Errorf("%w: the token in secret %s/%s for service account %s/%s has been marked "+
			"invalid. Use tokens from the TokenRequest API or "+
			"manually created secret-based tokens, or remove the '%s' label from the secret to temporarily allow use "+
			"of this token",
			ErrUnauthorized, legacyToken.Namespace, legacyToken.Secret, legacyToken.Namespace, legacyToken.Account,
			LabelInvalidSince)
	}
	user := ServiceAccountUser(legacyToken.Namespace, legacyToken.Account, legacyToken.AccountUID,
		"service account token of secret "+legacyToken.Secret)
	t.used.legacy.Inc()
	user.Annotations = map[string]string{"authentication.k8s.io/legacy-token": user.Name}
	if t.objects.Lists(ctx, legacyToken.Namespace, legacyToken.Account, legacyToken.Secret) {
		t.used.auto.Inc()
		user.Annotations["authentication.k8s.io/legacy-token-autogenerated-secret"] = legacyToken.Secret
		user.Warnings = []string{
			"Use tokens from the TokenRequest API or manually created secret-based tokens instead " +
				"of auto-generated secret-based tokens.",
		}
	} else {
		t.used.manual.Inc()
		user.Annotations["authentication.k8s.io/legacy-token-manual-secret"] = legacyToken.Secret
	}
	return user, matched, nil
}

// noteUse labels the secret with the day, once a day.
func (t *Tokens) noteUse(ctx context.Context, l *pki.LegacyToken, held SecretToken) {
	now := t.now().UTC()
	today := now.Format(time.DateOnly)
	tomorrow := now.AddDate(0, 0, 1).Format(time.DateOnly)
	if held.LastUsed != today && held.LastUsed != tomorrow { // tomorrow: written by a server whose clock is ahead
		t.objects.NoteUse(ctx, l.Namespace, l.Secret, today)
	}
}

// alive rejects a token whose service account, pod, secret or node was deleted or recreated.
func (t *Tokens) alive(ctx context.Context, bound Bound) error {
	check := func(what string, want *Ref, uid string, ok bool) error {
		if !ok || want.UID != "" && want.UID != uid {
			return fmt.Errorf("%w: %s %s/%s of the token is gone", ErrUnauthorized, what, bound.Namespace, want.Name)
		}
		return nil
	}
	uid, ok := t.objects.ServiceAccount(ctx, bound.Namespace, bound.ServiceAccount.Name)
	if err := check("service account", &bound.ServiceAccount, uid, ok); err != nil {
		return err
	}
	if bound.Pod != nil {
		uid, ok := t.objects.Pod(ctx, bound.Namespace, bound.Pod.Name)
		if err := check("pod", bound.Pod, uid, ok); err != nil {
			return err
		}
	}
	if bound.Secret != nil {
		uid, ok := t.objects.Secret(ctx, bound.Namespace, bound.Secret.Name)
		if err := check("secret", bound.Secret, uid, ok); err != nil {
			return err
		}
	}
	// With a pod the node is only information: the token is bound to the pod.
	if bound.Node != nil && bound.Pod == nil {
		uid, ok := t.objects.Node(ctx, bound.Node.Name)
		return check("node", bound.Node, uid, ok)
	}
	return nil
}

func userName(namespace, name string) string {
	return "system:serviceaccount:" + namespace + ":" + name
}

// ServiceAccountUser is the user of a service account, as its tokens name it.
func ServiceAccountUser(namespace, name, uid, how string) *auth.User {
	return &auth.User{
		Name:   userName(namespace, name),
		UID:    uid,
		How:    how,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, auth.Authenticated},
	}
}

func user(bound Bound, id string) *auth.User {
	u := ServiceAccountUser(bound.Namespace, bound.ServiceAccount.Name, bound.ServiceAccount.UID,
		"service account token")
	u.Extra = map[string][]string{}
	if id != "" {
		u.Extra["authentication.kubernetes.io/credential-id"] = []string{"JTI=" + id}
	}
	if bound.Pod != nil {
		u.Extra["authentication.kubernetes.io/pod-name"] = []string{bound.Pod.Name}
		u.Extra["authentication.kubernetes.io/pod-uid"] = []string{bound.Pod.UID}
	}
	if bound.Node != nil {
		u.Extra["authentication.kubernetes.io/node-name"] = []string{bound.Node.Name}
		if bound.Node.UID != "" {
			u.Extra["authentication.kubernetes.io/node-uid"] = []string{bound.Node.UID}
		}
	}
	return u
}

func credentialID(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return "X509SHA256=" + hex.EncodeToString(sum[:])
}

// Discovery returns the issuer's OIDC documents: /.well-known/openid-configuration and /openid/v1/jwks.
func (t *Tokens) Discovery() (configuration, keys any) {
	issuer := t.config.Issuers[0]
	current := t.keys.Load()
	jwks := t.config.JWKS
	if jwks == "" {
		jwks = strings.TrimSuffix(issuer, "/") + "/openid/v1/jwks"
	}
	return map[string]any{
		"issuer":                                issuer,
		"jwks_uri":                              jwks,
		"response_types_supported":              []string{"id_token"},
		"subject_types_supported":               []string{"public"},
		"id_token_signing_alg_values_supported": current.algorithms,
	}, current.public
}
