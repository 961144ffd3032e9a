// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"keelson/auth"
	"keelson/auth/remote"
)

// kubeconfigOf writes a kubeconfig that leads to s.
func kubeconfigOf(t *testing.T, s *httptest.Server, path string) string {
	t.Helper()
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["hook"] = &clientcmdapi.Cluster{
		Server:                   s.URL + path,
		CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
	}
	cfg.AuthInfos["us"] = &clientcmdapi.AuthInfo{Token: "hello"}
	cfg.Contexts["c"] = &clientcmdapi.Context{Cluster: "hook", AuthInfo: "us"}
	cfg.CurrentContext = "c"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		t.Fatal(err)
	}
	return file
}

func withBearer(token string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/api", http.NoBody)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r
}

func TestWebhook(t *testing.T) {
	var asked, failures atomic.Int32
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if failures.Add(-1) >= 0 {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		var q authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.Kind != "TokenReview" ||
			r.URL.Path != "/review" || r.Header.Get("Authorization") != "Bearer hello" {
			t.Errorf("asked at %s with %v: %v", r.URL.Path, q, err)
		}
		tokenReview := authenticationv1.TokenReview{}
		if q.Spec.Token == "good" {
			tokenReview.Status = authenticationv1.TokenReviewStatus{
				Authenticated: true,
				User: authenticationv1.UserInfo{
					Username: "jane",
					UID:      "7",
					Groups:   []string{"devs"},
					Extra:    map[string]authenticationv1.ExtraValue{"k": {"v"}},
				},
			}
		} else {
			tokenReview.Status.Error = "no such token"
		}
		_ = json.NewEncoder(w).Encode(tokenReview)
	}))
	defer server.Close()
	webhook, err := NewWebhook(kubeconfigOf(t, server, "/review"), []string{"api"}, time.Minute, remote.Via{})
	if err != nil {
		t.Fatal(err)
	}
	failures.Store(2)
	for range 3 {
		u, ok, err := webhook.Authenticate(withBearer("good"))
		want := &auth.User{
			Name:   "jane",
			UID:    "7",
			Groups: []string{"devs", auth.Authenticated},
			Extra:  map[string][]string{"k": {"v"}},
			How:    "token webhook",
		}
		if err != nil || !ok || !cmp.Equal(want, u) {
			t.Fatalf("good token: %v %v %v", ok, err, cmp.Diff(want, u))
		}
	}
	if n := asked.Load(); n != 3 {
		t.Errorf("asked %d times, want two failures and one answer", n)
	}
	if _, ok, err := webhook.Authenticate(withBearer("bad")); ok || !errors.Is(err, ErrUnauthorized) ||
		!strings.Contains(err.Error(), "no such token") {
		t.Errorf("bad token: %v %v", ok, err)
	}
	if _, ok, err := webhook.Authenticate(withBearer("")); ok || err != nil {
		t.Errorf("no token: %v %v", ok, err)
	}
	if _, _, err := webhook.Check(t.Context(), "good", []string{"vault"}); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("for another audience: %v", err)
	}
	if _, err := NewWebhook(filepath.Join(t.TempDir(), "none"), nil, 0, remote.Via{}); err == nil {
		t.Error("a configuration that is not there was taken")
	}
}

// issuer is an OpenID Connect provider that signs any claims.
func issuer(t *testing.T) (server *httptest.Server, sign func(claims map[string]any) string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	server = httptest.NewTLSServer(mux)
	t.Cleanup(server.Close)
	answer := func(path string, v any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v)
		})
	}
	answer("/.well-known/openid-configuration", map[string]any{
		"issuer":                                server.URL,
		"jwks_uri":                              server.URL + "/keys",
		"authorization_endpoint":                server.URL + "/auth",
		"token_endpoint":                        server.URL + "/token",
		"id_token_signing_alg_values_supported": []string{"ES256"},
	})
	answer("/elsewhere", map[string]any{"issuer": "https://tokens.example.com", "jwks_uri": server.URL + "/keys"})
	answer("/keys", jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{
		Key:       key.Public(),
		KeyID:     "k",
		Algorithm: "ES256",
		Use:       "sig",
	}}})
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}},
		nil)
	if err != nil {
		t.Fatal(err)
	}
	return server, func(claims map[string]any) string {
		all := map[string]any{
			"iss": server.URL,
			"aud": "keelson",
			"sub": "1234",
			"exp": time.Now().Add(time.Hour).Unix(),
			"iat": time.Now().Unix(),
		}
		maps.Copy(all, claims)
		token, err := jwt.Signed(signer).Claims(all).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
}

func TestOIDC(t *testing.T) {
	server, sign := issuer(t)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	_, foreign := issuer(t)
	base := OIDCConfig{
		IssuerURL:   server.URL,
		ClientID:    "keelson",
		CAFile:      ca,
		SigningAlgs: []string{"ES256"},
	}
	with := func(edit func(*OIDCConfig)) OIDCConfig {
		c := base
		edit(&c)
		return c
	}
	email := with(func(c *OIDCConfig) {
		c.UsernameClaim = "email"
		c.GroupsClaim = "groups"
		c.GroupsPrefix = "oidc:"
	})
	for _, c := range []struct {
		what   string
		cfg    OIDCConfig
		token  string
		user   string
		groups []string
		wrong  string
	}{
		{"plain", base, sign(nil), server.URL + "#1234", []string{auth.Authenticated}, ""},
		{
			"no prefix", with(func(c *OIDCConfig) { c.UsernamePrefix = "-" }), sign(nil), "1234",
			[]string{auth.Authenticated},
			"",
		},
		{
			"own prefix", with(func(c *OIDCConfig) { c.UsernamePrefix = "o:" }), sign(nil), "o:1234",
			[]string{auth.Authenticated},
			"",
		},
		{
			"email", email, sign(map[string]any{"email": "jane@x", "groups": []string{"a", "b"}}), "jane@x",
			[]string{"oidc:a", "oidc:b", auth.Authenticated},
			"",
		},
		{
			"one group", email, sign(map[string]any{"email": "jane@x", "email_verified": true, "groups": "a"}),
			"jane@x",
			[]string{"oidc:a", auth.Authenticated},
			"",
		},
		{
			"email not verified", email, sign(map[string]any{"email": "jane@x", "email_verified": false}), "", nil,
			"email not verified",
		},
		{"no email", email, sign(nil), "", nil, `claim "email" is not present`},
		{
			"groups of another type", email, sign(map[string]any{"email": "j", "groups": []int{1}}), "", nil,
			"neither a string nor a list",
		},
		{
			"required", with(func(c *OIDCConfig) { c.RequiredClaims = map[string]string{"hd": "x"} }),
			sign(map[string]any{"hd": "x"}), server.URL + "#1234",
			[]string{auth.Authenticated},
			"",
		},
		{
			"required, wrong", with(func(c *OIDCConfig) { c.RequiredClaims = map[string]string{"hd": "x"} }),
			sign(map[string]any{"hd": "y"}), "", nil, "required claim hd",
		},
		{"another audience", base, sign(map[string]any{"aud": "else"}), "", nil, "expected audience"},
		{"expired", base, sign(map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}), "", nil, "expired"},
		{"forged", base, foreign(map[string]any{"iss": server.URL}), "", nil, "verify token"},
		{
			"algorithm", with(func(c *OIDCConfig) { c.SigningAlgs = []string{"RS256"} }), sign(nil), "", nil,
			"verify token",
		},
	} {
		o, err := NewOIDC(c.cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		u, ok, err := o.Authenticate(withBearer(c.token))
		switch {
		case c.wrong != "" && (ok || !errors.Is(err, ErrUnauthorized) || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%s: %v %v, want %s", c.what, ok, err, c.wrong)
		case c.wrong == "" && (!ok || err != nil || u.Name != c.user || !cmp.Equal(u.Groups, c.groups)):
			t.Errorf("%s: %v %v %+v", c.what, ok, err, u)
		}
	}
	o, err := NewOIDC(base, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"", "x", "a.b.c", foreign(nil)} {
		if _, ok, err := o.Authenticate(withBearer(token)); ok || err != nil {
			t.Errorf("a token without an owner %q: %v %v", token, ok, err)
		}
	}
	for _, bad := range []OIDCConfig{
		{IssuerURL: "http://x", ClientID: "a"},
		{IssuerURL: "https://x"},
		{IssuerURL: "https://x", ClientID: "a", CAFile: "/none"},
	} {
		if _, err := NewOIDC(bad, nil); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

// TestDial: issuers and webhooks are reached by the connections that the caller makes, and by no others.
func TestDial(t *testing.T) {
	refused := errors.New("refused at the door")
	var asked atomic.Int64
	dial := func(context.Context, string, string) (net.Conn, error) {
		asked.Add(1)
		return nil, refused
	}
	server, _ := issuer(t)
	o, err := NewOIDC(OIDCConfig{IssuerURL: server.URL, ClientID: "me", UsernameClaim: "sub"}, func(
		conf *tls.Config,
	) http.RoundTripper {
		return &http.Transport{DialContext: dial, TLSClientConfig: conf}
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.ready(); !errors.Is(err, refused) || asked.Load() == 0 {
		t.Errorf("the issuer was reached: %v, %d connections", err, asked.Load())
	}
	asked.Store(0)
	w, err := NewWebhook(kubeconfigOf(t, server, "/review"), nil, 0, remote.Via{Dial: dial, Retry: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Check(t.Context(), "token", nil); !errors.Is(err, refused) || asked.Load() == 0 {
		t.Errorf("the webhook was reached: %v, %d connections", err, asked.Load())
	}
}
