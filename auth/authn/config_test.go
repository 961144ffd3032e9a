// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"keelson/auth"
)

// fileOf is a configuration whose first lines are always the same.
func fileOf(kind, text string) []byte {
	return []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: " + kind + "\n" + text)
}

// indented is text with every line moved to the right.
func indented(text string, by int) string {
	pad := strings.Repeat(" ", by)
	return pad + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+pad) + "\n"
}

// TestClaimMappings: who a token is about, by claims and by expressions.
func TestClaimMappings(t *testing.T) {
	s, sign := issuer(t)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	issuerOf := "jwt:\n- issuer:\n    url: " + s.URL + "\n    audiences: [keelson, other]\n    audienceMatchPolicy: " +
		"MatchAny\n    certificateAuthority: |\n" + indented(ca, 6)
	const bySub = "  claimMappings: {username: {claim: sub, prefix: ''}}\n"
	plain := []string{auth.Authenticated}
	for _, c := range []struct {
		what, rules string
		claims      map[string]any
		want        auth.User
		wrong       string
	}{
		{
			"claims", "  claimMappings: {username: {claim: sub, prefix: 'x:'}, groups: {claim: roles, prefix: 'g:'}, " +
				"uid: {claim: id}}\n",
			map[string]any{"roles": []string{"a", "b"}, "id": "7", "jti": "j"},
			auth.User{
				Name:   "x:1234",
				UID:    "7",
				Groups: []string{"g:a", "g:b", auth.Authenticated},
				Extra:  map[string][]string{"authentication.kubernetes.io/credential-id": {"JTI=j"}},
			},
			"",
		},
		{
			"expressions", `  claimMappings:
    username: {expression: 'claims.sub + ":corp"'}
    groups: {expression: 'claims.roles.split(",")'}
    uid: {expression: 'claims.id'}
    extra: [{key: example.com/tenant, valueExpression: claims.tenant}, {key: example.com/none, valueExpression: '""'}]
`,
			map[string]any{"roles": "a,b", "id": "7", "tenant": "t1"},
			auth.User{
				Name:   "1234:corp",
				UID:    "7",
				Groups: []string{"a", "b", auth.Authenticated},
				Extra:  map[string][]string{"example.com/tenant": {"t1"}},
			},
			"",
		},
		{
			"second audience", bySub, map[string]any{"aud": []string{"x", "other"}}, auth.User{
				Name:   "1234",
				Groups: plain,
			}, "",
		},
		{"another audience", bySub, map[string]any{"aud": "x"}, auth.User{}, "token audiences x are none of"},
		{
			"no such claim", "  claimMappings: {username: {expression: claims.nobody}}\n", nil,
			auth.User{},
			"no such key: nobody",
		},
		{
			"name of another type", "  claimMappings: {username: {expression: claims.exp}}\n", nil,
			auth.User{},
			"gives a double, not a string",
		},
		{
			"an empty name", "  claimMappings: {username: {expression: '\"\"'}}\n", nil,
			auth.User{},
			"the user's name is empty",
		},
		{
			"email not verified", "  claimMappings: {username: {claim: email, prefix: ''}}\n", map[string]any{
				"email":          "a@b",
				"email_verified": false,
			}, auth.User{}, "email not verified",
		},
		{
			"required claim", bySub + "  claimValidationRules: [{claim: hd, requiredValue: corp}]\n", map[string]any{
				"hd": "corp",
			}, auth.User{Name: "1234", Groups: plain}, "",
		},
		{
			"required claim of another value", bySub + "  claimValidationRules: [{claim: hd, requiredValue: corp}]\n",
			map[string]any{"hd": "home"},
			auth.User{},
			"required claim hd value does not match",
		},
		{
			"rule that holds", bySub + "  claimValidationRules: [{expression: 'claims.level > 2.0', message: too " +
				"low}]\n", map[string]any{"level": 3}, auth.User{Name: "1234", Groups: plain}, "",
		},
		{
			"rule that does not", bySub + "  claimValidationRules: [{expression: 'claims.level > 2.0', message: too " +
				"low}]\n", map[string]any{"level": 1}, auth.User{}, "failed: too low",
		},
		{
			"user who may not", bySub + "  userValidationRules: [{expression: '!user.username.startsWith(\"12\")', " +
				"message: reserved}]\n", nil, auth.User{}, "failed: reserved",
		},
		{
			"user who may", bySub + "  userValidationRules: [{expression: 'size(user.groups) == 0', message: " +
				"reserved}]\n", nil, auth.User{Name: "1234", Groups: plain}, "",
		},
	} {
		cfg, err := ParseConfig(fileOf("AuthenticationConfiguration", issuerOf+c.rules), nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		user, ok, err := cfg.JWT[0].Authenticate(withBearer(sign(c.claims)))
		if c.wrong != "" {
			if ok || !errors.Is(err, ErrUnauthorized) || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: %v %v, want %s", c.what, ok, err, c.wrong)
			}
			continue
		}
		if err != nil || !ok {
			t.Errorf("%s: %v %v", c.what, ok, err)
			continue
		}
		user.How = ""
		if d := cmp.Diff(c.want, *user); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.what, d)
		}
	}
}

// TestDiscoveryElsewhere: the issuer's description comes from where the file says, and its name stays what tokens say.
func TestDiscoveryElsewhere(t *testing.T) {
	s, sign := issuer(t)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	text := "jwt:\n- issuer:\n    url: https://tokens.example.com\n    discoveryURL: " + s.URL +
		"/elsewhere\n    audiences: [keelson]\n    certificateAuthority: |\n" +
		indented(ca, 6) + "  claimMappings: {username: {claim: sub, prefix: ''}}\n"
	cfg, err := ParseConfig(fileOf("AuthenticationConfiguration", text), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	u, ok, err := cfg.JWT[0].Authenticate(withBearer(sign(map[string]any{"iss": "https://tokens.example.com"})))
	if err != nil || !ok || u.Name != "1234" {
		t.Errorf("got %+v, %v, %v", u, ok, err)
	}
}

// TestStrangers: which paths are open to requests without a credential.
func TestStrangers(t *testing.T) {
	for _, c := range []struct {
		text  string
		says  bool
		paths map[string]bool
	}{
		{"", false, nil},
		{"anonymous: {enabled: false}\n", true, nil},
		{"anonymous: {enabled: true}\n", true, map[string]bool{"/livez": true, "/api": true}},
		{"anonymous: {enabled: true, conditions: [{path: /livez}, {path: /readyz}]}\n", true, map[string]bool{
			"/livez":      true,
			"/readyz":     true,
			"/livez/etcd": false,
			"/api":        false,
		}},
	} {
		cfg, err := ParseConfig(fileOf("AuthenticationConfiguration", c.text), nil, nil)
		if err != nil || cfg.Strangers != c.says || (cfg.Anonymous == nil) != (c.paths == nil) {
			t.Errorf("%q: %+v, %v", c.text, cfg, err)
			continue
		}
		for path, open := range c.paths {
			u, ok, err := cfg.Anonymous.Authenticate(httptest.NewRequest(http.MethodGet, path, http.NoBody))
			if err != nil || ok != open || ok && u.Name != auth.Anonymous {
				t.Errorf("%q: %s: %v %v", c.text, path, ok, err)
			}
		}
	}
}

func TestWrongConfigs(t *testing.T) {
	const j = "jwt: [{issuer: {url: 'https://x', audiences: [a]}, claimMappings: {username: {claim: sub, prefix: " +
		"''}}}]\n"
	for text, want := range map[string]string{
		"jwt: [{issuer: {url: 'http://x', audiences: [a]}, claimMappings: {username: {claim: sub, prefix: ''}}}]\n": "jwt[0].issuer.url: Invalid value: \"http://x\": URL scheme must be https",
		"jwt: [{issuer: {url: 'https://x'}, claimMappings: {username: {claim: sub, prefix: ''}}}]\n":                "at least one jwt[0].issuer.audiences is required",
		"jwt: [{issuer: {url: 'https://x', audiences: [a]}}]\n":                                                     "claimMappings.username: Required value",
		"jwt: [{issuer: {url: 'https://x', audiences: [a]}, claimMappings: {username: {expression: 'claims.'}}}]\n": "compilation failed",
		"anonymous: {enabled: false, conditions: [{path: /x}]}\n":                                                   "enabled should be set to true",
		"unknown: 1\n":                     `unknown field "unknown"`,
		j + "anonymous: {enabled: true}\n": "URL must not overlap with disallowed issuers",
	} {
		if _, err := ParseConfig(fileOf("AuthenticationConfiguration", text), []string{"https://x"},
			nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	if _, err := ParseConfig(fileOf("AuthorizationConfiguration", "authorizers: []\n"), nil, nil); err == nil {
		t.Error("another kind was taken")
	}
}

// FuzzConfig: a configuration is read or refused, and never both.
func FuzzConfig(f *testing.F) {
	f.Add("jwt: [{issuer: {url: 'https://x', audiences: [a]}, claimMappings: {username: {claim: sub, prefix: ''}}}]\n")
	f.Add("jwt: [{issuer: {url: 'https://x', audiences: [a]}, claimMappings: {username: {expression: 'claims.sub'}}, " +
		"userValidationRules: [{expression: 'size(user.groups) == 0'}]}]\n")
	f.Add("anonymous: {enabled: true, conditions: [{path: /healthz}]}\n")
	f.Fuzz(func(t *testing.T, text string) {
		if c, err := ParseConfig(fileOf("AuthenticationConfiguration", text), []string{"https://taken"},
			nil); (c == nil) == (err == nil) {
			t.Errorf("%q: got %v and %v", text, c, err)
		}
	})
}

// FuzzTokenFile: of a file that is taken no user is without a group, and no token is empty.
func FuzzTokenFile(f *testing.F) {
	f.Add([]byte("t1,jane,7\nt2,joe,8,\"a,b\"\n"))
	f.Add([]byte("t1,jane\n"))
	f.Add([]byte(",nobody,1\n\"t\n3\",x,\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		list, err := LoadTokenFile(path)
		if err != nil {
			return
		}
		if _, ok := list.users[sha256.Sum256(nil)]; ok {
			t.Errorf("%q: the empty token is somebody's", b)
		}
		for _, u := range list.users {
			if !slices.Contains(u.Groups, auth.Authenticated) {
				t.Errorf("%q: %+v", b, u)
			}
		}
	})
}
