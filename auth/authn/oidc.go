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

// OIDCConfig is kube-apiserver's --oidc-* flags.
type OIDCConfig struct {
	IssuerURL string
	ClientID  string
	// CAFile holds the authorities of the issuer's certificate; empty: the system's.
	CAFile string
	// UsernameClaim is the user's name (default "sub"). UsernamePrefix goes before it: by default the issuer and "#", but nothing for
	// the claim "email"; "-" means nothing.
	UsernameClaim, UsernamePrefix string
	// GroupsClaim is the user's groups, a string or a list; GroupsPrefix goes before each.
	GroupsClaim, GroupsPrefix string
	// RequiredClaims must be in the token with these values.
	RequiredClaims map[string]string
	// SigningAlgs are accepted (default RS256).
	SigningAlgs []string
}

// OIDC authenticates by ID tokens of one OpenID Connect issuer.
type OIDC struct {
	cfg    OIDCConfig
	client *http.Client

	mu       sync.Mutex
	verifier *oidc.IDTokenVerifier
	tryAfter time.Time
}

const (
	oidcTimeout = 30 * time.Second
	oidcRetry   = 10 * time.Second
)

// NewOIDC checks cfg; the issuer is asked for its keys when the first token of it comes.
func NewOIDC(cfg OIDCConfig) (*OIDC, error) {
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
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: oidcTimeout, ForceAttemptHTTP2: true}
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("oidc authorities: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("oidc authorities: %s holds no certificate", cfg.CAFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &OIDC{cfg: cfg, client: &http.Client{Transport: transport, Timeout: oidcTimeout}}, nil
}

// Authenticate knows bearer tokens that say they are from the issuer.
func (o *OIDC) Authenticate(r *http.Request) (*auth.User, bool, error) {
	token := Bearer(r)
	if token == "" || issuerOf(token) != o.cfg.IssuerURL {
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
	u, err := o.user(claims)
	if err != nil {
		return nil, false, fmt.Errorf("%w: oidc: %w", ErrUnauthorized, err)
	}
	return u, true, nil
}

// issuerOf reads who a token says it is from, without believing it.
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

// ready asks the issuer where its keys are, once; after a failure not again for a while.
func (o *OIDC) ready() (*oidc.IDTokenVerifier, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.verifier != nil {
		return o.verifier, nil
	}
	if time.Now().Before(o.tryAfter) {
		return nil, errors.New("oidc: authenticator not initialized")
	}
	// The provider keeps the context for fetching keys later: it must not be a request's.
	p, err := oidc.NewProvider(oidc.ClientContext(context.Background(), o.client), o.cfg.IssuerURL)
	if err != nil {
		o.tryAfter = time.Now().Add(oidcRetry)
		return nil, fmt.Errorf("oidc: ask issuer %s: %w", o.cfg.IssuerURL, err)
	}
	o.verifier = p.Verifier(&oidc.Config{ClientID: o.cfg.ClientID, SupportedSigningAlgs: o.cfg.SigningAlgs})
	return o.verifier, nil
}

// user reads who the claims are about.
func (o *OIDC) user(claims map[string]any) (*auth.User, error) {
	name, ok := claims[o.cfg.UsernameClaim].(string)
	if !ok || name == "" {
		return nil, fmt.Errorf("claim %q is not present, or no string", o.cfg.UsernameClaim)
	}
	if o.cfg.UsernameClaim == "email" {
		if verified, present := claims["email_verified"]; present && verified != true {
			return nil, errors.New("email not verified")
		}
	}
	for claim, want := range o.cfg.RequiredClaims {
		if got, ok := claims[claim].(string); !ok || got != want {
			return nil, fmt.Errorf("required claim %s value does not match: got %v, want %s", claim, claims[claim], want)
		}
	}
	u := &auth.User{Name: o.cfg.UsernamePrefix + name, How: "oidc token"}
	groups, err := o.groups(claims[o.cfg.GroupsClaim])
	if err != nil {
		return nil, err
	}
	u.Groups = groups
	if id, ok := claims["jti"].(string); ok && id != "" {
		u.Extra = map[string][]string{"authentication.kubernetes.io/credential-id": {"JTI=" + id}}
	}
	return WithAuthenticated(u), nil
}

func (o *OIDC) groups(claim any) ([]string, error) {
	if o.cfg.GroupsClaim == "" || claim == nil {
		return nil, nil
	}
	list, ok := claim.([]any)
	if !ok {
		list = []any{claim}
	}
	var out []string
	for _, g := range list {
		s, ok := g.(string)
		if !ok {
			return nil, fmt.Errorf("claim %q is neither a string nor a list of strings", o.cfg.GroupsClaim)
		}
		out = append(out, o.cfg.GroupsPrefix+s)
	}
	return out, nil
}
