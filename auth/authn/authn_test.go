// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"keelson/auth"
	"keelson/pki"
)

type objects map[string]string

func (o objects) find(key string) (string, bool) {
	uid, ok := o[key]
	return uid, ok
}

func (o objects) ServiceAccount(_ context.Context, ns, name string) (string, bool) {
	return o.find("sa/" + ns + "/" + name)
}

func (o objects) Pod(_ context.Context, ns, name string) (string, bool) {
	return o.find("pod/" + ns + "/" + name)
}

func (o objects) Secret(_ context.Context, ns, name string) (string, bool) {
	return o.find("secret/" + ns + "/" + name)
}

func (o objects) SecretToken(_ context.Context, ns, name string) (SecretToken, bool) {
	token, ok := o.find("token/" + ns + "/" + name)
	return SecretToken{Token: token, InvalidSince: o["invalid/"+ns+"/"+name], LastUsed: o["used/"+ns+"/"+name]}, ok
}

func (o objects) Lists(_ context.Context, ns, account, secret string) bool {
	return o["lists/"+ns+"/"+account] == secret
}

func (o objects) NoteUse(_ context.Context, ns, secret, day string) { o["used/"+ns+"/"+secret] = day }

func (o objects) Node(_ context.Context, name string) (string, bool) { return o.find("node/" + name) }

func newTokens(t testing.TB, o Objects) *Tokens {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := NewTokens(
		TokenConfig{Key: key, Issuers: []string{"https://kubernetes.default.svc.cluster.local"}, Extend: true}, o)
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

func TestTokenRoundTrip(t *testing.T) {
	o := objects{"sa/default/build": "u1", "pod/default/p": "u2"}
	tokens := newTokens(t, o)
	b := Bound{
		Namespace:      "default",
		ServiceAccount: Ref{"build", "u1"},
		Pod:            &Ref{"p", "u2"},
		Node:           &Ref{"node-1", "u3"},
	}
	made, err := tokens.Issue(b, nil, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	token := made.Token
	r := httptest.NewRequest(http.MethodGet, "/api", http.NoBody)
	r.Header.Set("Authorization", "Bearer "+token)
	user, ok, err := tokens.Authenticate(r)
	if err != nil || !ok {
		t.Fatalf("Authenticate() = %v, %v", ok, err)
	}
	if user.Name != "system:serviceaccount:default:build" || user.UID != "u1" {
		t.Errorf("user: got %s (%s)", user.Name, user.UID)
	}
	if d := cmp.Diff([]string{"system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"},
		user.Groups); d != "" {
		t.Errorf("groups (-want +got):\n%s", d)
	}
	if got := user.Extra["authentication.kubernetes.io/pod-name"]; !cmp.Equal(got, []string{"p"}) {
		t.Errorf("pod name in extra: got %q", got)
	}
}

func TestTokenIsRefused(t *testing.T) {
	o := objects{"sa/default/build": "u1", "pod/default/p": "u2"}
	tokens := newTokens(t, o)
	issue := func(b Bound, aud ...string) string {
		made, err := tokens.Issue(b, aud, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return made.Token
	}
	build := Ref{"build", "u1"}
	good := issue(Bound{Namespace: "default", ServiceAccount: build})
	foreign, err := newTokens(t, o).Issue(Bound{Namespace: "default", ServiceAccount: build}, nil, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	late := *tokens
	late.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	for _, c := range []struct {
		name, token string
		by          *Tokens
	}{
		{"garbage", "abc", tokens},
		{"unsigned", "eyJhbGciOiJub25lIn0." + strings.Split(good, ".")[1] + ".", tokens},
		{"of another cluster", foreign.Token, tokens},
		{"expired", good, &late},
		{"for another audience", issue(Bound{Namespace: "default", ServiceAccount: build}, "vault"), tokens},
		{
			"of a recreated service account", issue(Bound{Namespace: "default", ServiceAccount: Ref{"build", "old"}}),
			tokens,
		},
		{
			"of a service account that is gone", issue(Bound{Namespace: "default", ServiceAccount: Ref{"gone", "u9"}}),
			tokens,
		},
		{
			"of a pod that is gone", issue(Bound{Namespace: "default", ServiceAccount: build, Pod: &Ref{"q", "u7"}}),
			tokens,
		},
	} {
		if _, _, err := c.by.Check(t.Context(), c.token, nil); !errors.Is(err, ErrUnauthorized) {
			t.Errorf("token %s: got %v, want ErrUnauthorized", c.name, err)
		}
	}
	if _, _, err := tokens.Check(t.Context(), good, nil); err != nil {
		t.Errorf("the good token: %v", err)
	}
	if _, matched, err := tokens.Check(t.Context(), issue(Bound{Namespace: "default", ServiceAccount: build}, "vault"),
		[]string{"x", "vault"}); err != nil || !cmp.Equal(matched, []string{"vault"}) {
		t.Errorf("asked for its audience: matched %q, %v", matched, err)
	}
}

func TestLegacyTokens(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	o := objects{"sa/default/build": "u1"}
	tokens, err := NewTokens(TokenConfig{Key: key, Issuers: []string{"https://issuer"}, Audiences: []string{"api"}}, o)
	if err != nil {
		t.Fatal(err)
	}
	token, err := pki.LegacyToken{
		Namespace:  "default",
		Secret:     "s",
		Account:    "build",
		AccountUID: "u1",
	}.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := tokens.Check(t.Context(), token, nil); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("without its secret: %v", err)
	}
	o["token/default/s"] = token
	u, matched, err := tokens.Check(t.Context(), token, nil)
	if err != nil || u.Name != "system:serviceaccount:default:build" || u.UID != "u1" ||
		!cmp.Equal(matched, []string{"api"}) {
		t.Errorf("with its secret: %+v for %q, %v", u, matched, err)
	}
	if _, _, err := tokens.Check(t.Context(), token, []string{"vault"}); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("for another audience: %v", err)
	}
	o["sa/default/build"] = "u2"
	if _, _, err := tokens.Check(t.Context(), token, nil); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("of a recreated service account: %v", err)
	}
}

func TestBootstrapTokens(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	good := func() map[string]string {
		return map[string]string{
			"token-id":                       "abcdef",
			"token-secret":                   "0123456789abcdef",
			"usage-bootstrap-authentication": "true",
			"expiration":                     "2030-01-02T00:00:00Z",
			"auth-extra-groups":              "system:bootstrappers:workers, system:bootstrappers:workers",
		}
	}
	for _, c := range []struct {
		what, token, key, value string
		ok, wrong               bool
	}{
		{"good", "abcdef.0123456789abcdef", "", "", true, false},
		{"no such token", "ghijkl.0123456789abcdef", "", "", false, false},
		{"not of the form", "abcdef.short", "", "", false, false},
		{"wrong secret", "abcdef.0123456789abcdee", "", "", false, true},
		{"expired", "abcdef.0123456789abcdef", "expiration", "2029-12-31T00:00:00Z", false, true},
		{"end not readable", "abcdef.0123456789abcdef", "expiration", "soon", false, true},
		{"not for authentication", "abcdef.0123456789abcdef", "usage-bootstrap-authentication", "false", false, true},
		{"another's group", "abcdef.0123456789abcdef", "auth-extra-groups", "system:masters", false, true},
	} {
		data := good()
		if c.key != "" {
			data[c.key] = c.value
		}
		secret := &corev1.Secret{Type: "bootstrap.kubernetes.io/token", Data: map[string][]byte{}}
		for k, v := range data {
			secret.Data[k] = []byte(v)
		}
		by := BootstrapTokens{
			Now: func() time.Time { return now },
			Secret: func(_ context.Context, name string) *corev1.Secret {
				if name == "bootstrap-token-abcdef" {
					return secret
				}
				return nil
			},
		}
		r := httptest.NewRequest(http.MethodGet, "/api", http.NoBody)
		r.Header.Set("Authorization", "Bearer "+c.token)
		u, ok, err := by.Authenticate(r)
		if ok != c.ok || (err != nil) != c.wrong {
			t.Errorf("%s: %v, %v", c.what, ok, err)
		}
		if ok && (u.Name != "system:bootstrap:abcdef" || !cmp.Equal(u.Groups,
			[]string{"system:bootstrappers", "system:bootstrappers:workers", "system:authenticated"})) {
			t.Errorf("%s: %+v", c.what, u)
		}
	}
}

func TestCertificates(t *testing.T) {
	ours, err := pki.Open(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := pki.Open(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	request := func(a *pki.Authority) *http.Request {
		p, err := a.Client("admin", pki.Subject{Name: "admin", Groups: []string{auth.Masters}})
		if err != nil {
			t.Fatal(err)
		}
		c, err := p.TLS()
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodGet, "/api", http.NoBody)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.Leaf}}
		return r
	}
	by := NewCertificates(ours.Pool())
	u, ok, err := by.Authenticate(request(ours))
	if err != nil || !ok || u.Name != "admin" || !cmp.Equal(u.Groups, []string{auth.Masters, auth.Authenticated}) {
		t.Errorf("our client: got %+v, %v, %v", u, ok, err)
	}
	if _, _, err := by.Authenticate(request(theirs)); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("another authority's client: got %v, want ErrUnauthorized", err)
	}
	if _, ok, err := by.Authenticate(httptest.NewRequest(http.MethodGet, "/api", http.NoBody)); ok || err != nil {
		t.Errorf("no certificate: got %v, %v, want no opinion", ok, err)
	}
}

// TestUIDOfACertificate: the subject of a certificate may name the user's UID, once.
func TestUIDOfACertificate(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	uid := func(value string) pkix.AttributeTypeAndValue {
		return pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}, Value: value}
	}
	other := pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 3}, Value: "no"}
	for _, c := range []struct {
		what  string
		names []pkix.AttributeTypeAndValue
		uid   string
		err   string
	}{
		{"no UID", nil, "", ""},
		{"a UID", []pkix.AttributeTypeAndValue{other, uid("u-1")}, "u-1", ""},
		{"an empty UID", []pkix.AttributeTypeAndValue{uid("")}, "", "the UID in the subject is empty"},
		{"two", []pkix.AttributeTypeAndValue{uid("a"), uid("a")}, "", "the subject has more than one UID"},
	} {
		self := &x509.Certificate{
			SerialNumber: big.NewInt(1),
			Subject:      pkix.Name{CommonName: "ann", Organization: []string{"g"}, ExtraNames: c.names},
			NotAfter:     time.Now().Add(time.Hour),
			ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		der, err := x509.CreateCertificate(rand.Reader, self, self, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AddCert(cert)
		r := httptest.NewRequest(http.MethodGet, "/api", http.NoBody)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
		u, ok, err := NewCertificates(roots).Authenticate(r)
		switch {
		case c.err != "":
			if ok || !errors.Is(err, ErrUnauthorized) || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: got %v, %v, want %q", c.what, ok, err, c.err)
			}
		case err != nil || !ok || u.Name != "ann" || u.UID != c.uid:
			t.Errorf("%s: got %+v, %v, %v, want the UID %q", c.what, u, ok, err, c.uid)
		}
	}
}

// TestCertificateEnds: that a certificate was good once does not make it good forever.
func TestCertificateEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, err := pki.Open(t.TempDir(), "ca")
		if err != nil {
			t.Fatal(err)
		}
		p, err := ca.Client("u", pki.Subject{Name: "u", Groups: []string{"g"}})
		if err != nil {
			t.Fatal(err)
		}
		certificate, err := p.TLS()
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodGet, "/api", http.NoBody)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate.Leaf}}
		by := NewCertificates(ca.Pool())
		for range 2 {
			u, ok, err := by.Authenticate(r)
			if err != nil || !ok || u.Name != "u" || !cmp.Equal(u.Groups, []string{"g", auth.Authenticated}) {
				t.Fatalf("got %+v, %v, %v", u, ok, err)
			}
			u.Groups = append(u.Groups, auth.Masters) // a caller's own copy
			u.Extra["x"] = nil
		}
		if u, _, _ := by.Authenticate(r); len(u.Groups) != 2 || len(u.Extra) != 1 {
			t.Errorf("after a caller changed its user: got %+v", u)
		}
		time.Sleep(time.Until(certificate.Leaf.NotAfter) + time.Second) // synctest's clock
		if _, _, err := by.Authenticate(r); !errors.Is(err, ErrUnauthorized) {
			t.Errorf("after its end: got %v, want ErrUnauthorized", err)
		}
	})
}

func FuzzToken(f *testing.F) {
	tokens := newTokens(f, objects{"sa/default/build": "u1"})
	good, err := tokens.Issue(Bound{Namespace: "default", ServiceAccount: Ref{"build", "u1"}}, nil, time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good.Token)
	f.Add("a.b.c")
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Fuzz(func(t *testing.T, token string) {
		u, _, err := tokens.Check(t.Context(), token, nil)
		if err == nil && token != good.Token && u.Name != "system:serviceaccount:default:build" {
			t.Errorf("token %q was accepted as %s", token, u.Name)
		}
	})
}
