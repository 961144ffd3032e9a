// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"keelson/auth"
)

// OIDCConfig holds kube-apiserver's --oidc-* flags.
type OIDCConfig struct {
	IssuerURL string
	ClientID  string
	// CAFile holds the CAs of the issuer's certificate; empty: the system's.
	CAFile string
	// UsernameClaim is the claim with the user's name (default "sub"). UsernamePrefix is added before it: by default
	// the issuer and "#", but nothing for the claim "email"; "-" means no prefix.
	UsernameClaim, UsernamePrefix string
	// GroupsClaim is the claim with the user's groups, a string or a list; GroupsPrefix is added before each.
	GroupsClaim, GroupsPrefix string
	// RequiredClaims must be in the token with these values.
	RequiredClaims map[string]string
	// SigningAlgs are the accepted algorithms (default RS256).
	SigningAlgs []string
}

// OIDC authenticates by ID tokens of one OpenID Connect issuer.
type OIDC struct {
	issuer string
	tokens *oidc.Config
	// user maps a verified token's claims to a user.
	user   func(ctx context.Context, claims map[string]any) (*auth.User, error)
	client *http.Client

	mu       sync.Mutex
	verifier *oidc.IDTokenVerifier
	tryAfter time.Time
}

const (
	oidcTimeout = 30 * time.Second
	oidcRetry   = 10 * time.Second
)

// NewOIDC checks cfg. The issuer's keys are fetched when its first token arrives.
func NewOIDC(cfg OIDCConfig, via Via) (*OIDC, error) {
	u, err := url.Parse(cfg.IssuerURL)
	if err != nil {
		return nil, fmt.Errorf("oidc issuer: %w", err)
	}
	if u.Scheme != "https" {
		return nil, fmt.Errorf("oidc issuer %q: its scheme must be https", cfg.IssuerURL)
	}
	if cfg.ClientID == "" {
		return nil, errors.New("oidc: a client id is needed")
	}
	if cfg.UsernameClaim == "" {
		cfg.UsernameClaim = "sub"
	}
	switch {
	case cfg.UsernamePrefix == "-":
		cfg.UsernamePrefix = ""
	case cfg.UsernamePrefix == "" && cfg.UsernameClaim != "email":
		cfg.UsernamePrefix = cfg.IssuerURL + "#"
	}
	if len(cfg.SigningAlgs) == 0 {
		cfg.SigningAlgs = []string{oidc.RS256}
	}
	var pem []byte
	if cfg.CAFile != "" {
		if pem, err = os.ReadFile(cfg.CAFile); err != nil {
			return nil, fmt.Errorf("oidc authorities: %w", err)
		}
	}
	transport, err := toIssuer(pem, via)
	if err != nil {
		return nil, fmt.Errorf("oidc authorities: %s: %w", cfg.CAFile, err)
	}
	return &OIDC{
		issuer: cfg.IssuerURL,
		tokens: &oidc.Config{ClientID: cfg.ClientID, SupportedSigningAlgs: cfg.SigningAlgs},
		user:   func(_ context.Context, claims map[string]any) (*auth.User, error) { return cfg.user(claims) },
		client: &http.Client{Transport: transport, Timeout: oidcTimeout},
	}, nil
}

// Via returns the transport to an issuer with this TLS configuration; nil: the default. A nil Via connects directly,
// for tests.
type Via func(*tls.Config) http.RoundTripper

func direct(conf *tls.Config) http.RoundTripper {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		TLSClientConfig:     conf,
		TLSHandshakeTimeout: oidcTimeout,
		ForceAttemptHTTP2:   true,
	}
}

// toIssuer returns the transport to an issuer whose certificate is signed by the CAs in pem; nil: the system's CAs.
func toIssuer(pem []byte, via Via) (http.RoundTripper, error) {
	if via == nil {
		via = direct
	}
	var conf *tls.Config
	if pem != nil {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, errors.New("it holds no certificate")
		}
		conf = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return via(conf), nil
}

// Authenticate handles bearer tokens whose claim iss is the issuer.
func (o *OIDC) Authenticate(r *http.Request) (*auth.User, bool, error) {
	token := Bearer(r)
	if token == "" || issuerOf(token) != o.issuer {
		return nil, false, nil
	}
	v, err := o.ready()
	if err != nil {
		return nil, false, err
	}
	id, err := v.Verify(r.Context(), token)
	if err != nil {
		return nil, false, fmt.Errorf("%w: oidc: verify token: %w", ErrUnauthorized, err)
	}
	claims := map[string]any{}
	if err := id.Claims(&claims); err != nil {
		return nil, false, fmt.Errorf("%w: oidc: %w", ErrUnauthorized, err)
	}
	u, err := o.user(r.Context(), claims)
	if err != nil {
		return nil, false, fmt.Errorf("%w: oidc: %w", ErrUnauthorized, err)
	}
	return u, true, nil
}

// issuerOf reads the claim iss of a token without verifying it.
func issuerOf(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var c struct {
		Issuer string `json:"iss"`
	}
	if json.Unmarshal(payload, &c) != nil {
		return ""
	}
	return c.Issuer
}

// ready discovers the issuer's keys once; after a failure it retries no sooner than after oidcRetry.
func (o *OIDC) ready() (*oidc.IDTokenVerifier, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.verifier != nil {
		return o.verifier, nil
	}
	if time.Now().Before(o.tryAfter) {
		return nil, errors.New("oidc: authenticator not initialized")
	}
	// The provider keeps the context to fetch keys later, so it must not be a request's.
	p, err := oidc.NewProvider(oidc.ClientContext(context.Background(), o.client), o.issuer)
	if err != nil {
		o.tryAfter = time.Now().Add(oidcRetry)
		return nil, fmt.Errorf("oidc: ask issuer %s: %w", o.issuer, err)
	}
	o.verifier = p.Verifier(o.tokens)
	return o.verifier, nil
}

// wait retries the discovery until it succeeds or ctx ends.
func (o *OIDC) wait(ctx context.Context) error {
	for {
		_, err := o.ready()
		if err == nil {
			return nil
		}
		o.mu.Lock()
		next := time.Until(o.tryAfter)
		o.mu.Unlock()
		select {
		case <-time.After(next):
		case <-ctx.Done():
			return err
		}
	}
}

// user maps the claims to a user.
func (c *OIDCConfig) user(claims map[string]any) (*auth.User, error) {
	name, err := nameOf(claims, c.UsernameClaim)
	if err != nil {
		return nil, err
	}
	for claim, want := range c.RequiredClaims {
		if got, ok := claims[claim].(string); !ok || got != want {
			return nil, fmt.Errorf("required claim %s value does not match: got %v, want %s", claim, claims[claim],
				want)
		}
	}
	u := &auth.User{Name: c.UsernamePrefix + name, How: "oidc token"}
	groups, err := groupsOf(claims, c.GroupsClaim, c.GroupsPrefix)
	if err != nil {
		return nil, err
	}
	u.Groups = groups
	u.Extra = credentialExtra(claims)
	return WithAuthenticated(u), nil
}

// groupsOf reads a claim that is a string or a list of strings.
func groupsOf(claims map[string]any, claim, prefix string) ([]string, error) {
	value := claims[claim]
	if claim == "" || value == nil {
		return nil, nil
	}
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	var out []string
	for _, g := range list {
		s, ok := g.(string)
		if !ok {
			return nil, fmt.Errorf("claim %q is neither a string nor a list of strings", claim)
		}
		out = append(out, prefix+s)
	}
	return out, nil
}

// nameOf reads the claim with the user's name; an email must be verified.
func nameOf(claims map[string]any, claim string) (string, error) {
	name, ok := claims[claim].(string)
	if !ok || name == "" {
		return "", fmt.Errorf("claim %q is not present, or no string", claim)
	}
	if claim == "email" {
		if verified, present := claims["email_verified"]; present && verified != true {
			return "", errors.New("email not verified")
		}
	}
	return name, nil
}

// credentialExtra is the user's extra field with the token's ID.
func credentialExtra(claims map[string]any) map[string][]string {
	if id, ok := claims["jti"].(string); ok && id != "" {
		return map[string][]string{"authentication.kubernetes.io/credential-id": {"JTI=" + id}}
	}
	return nil
}
