// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/admission/noderestriction"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/client/clienttest"
)

// knows authenticates everybody as a user.
type knows struct{ u auth.User }

func (k knows) Authenticate(*http.Request) (*auth.User, bool, error) {
	u := k.u
	return &u, true, nil
}

// TestCertificatesOfRemovedNodes: what a node was given before it was removed opens nothing; what it is given when it
// joins again does, and a name like a node's is no node's.
func TestCertificatesOfRemovedNodes(t *testing.T) {
	removed := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	nodes := []string{auth.Nodes}
	for _, c := range []struct {
		what                  string
		user                  auth.User
		issued, now           time.Duration // after it was removed
		marked, authenticated bool
	}{
		{"an hour after", auth.User{Name: "system:node:one", Groups: nodes}, -time.Hour, time.Hour, false, false},
		{"a minute after", auth.User{Name: "system:node:one", Groups: nodes}, -time.Hour, time.Minute, true, true},
		{"issued in the second of it", auth.User{Name: "system:node:one", Groups: nodes}, 0, time.Hour, false, true},
		{"it joined again", auth.User{Name: "system:node:one", Groups: nodes}, time.Minute, time.Hour, false, true},
		{"another node", auth.User{Name: "system:node:two", Groups: nodes}, -time.Hour, time.Hour, false, true},
		{"no node", auth.User{Name: "system:node:one"}, -time.Hour, time.Hour, false, true},
	} {
		check := RemovedNodeCheck{
			next:    knows{c.user},
			now:     func() time.Time { return removed.Add(c.now) },
			removed: func(_ context.Context, node string) (time.Time, bool) { return removed, node == "one" },
		}
		cert := &x509.Certificate{NotBefore: removed.Add(c.issued).Add(-5 * time.Minute)} // as signers date them
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
		u, ok, err := check.Authenticate(r)
		if ok != c.authenticated || ok == errors.Is(err, authn.ErrUnauthorized) {
			t.Errorf("%s: %v, %v", c.what, ok, err)
		}
		if ok && (u.Annotations[noderestriction.RemovedNode] != "") != c.marked {
			t.Errorf("%s: marked %q", c.what, u.Annotations)
		}
	}
}

// TestNoteRemoved: nodes are remembered for as long as a certificate lives.
func TestNoteRemoved(t *testing.T) {
	cl := clienttest.New()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for name, at := range map[string]time.Time{"old": now.Add(-400 * 24 * time.Hour), "new": now.Add(-time.Hour)} {
		if err := recordRemoved(t.Context(), cl, name, at); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := recordRemoved(t.Context(), cl, "one", now); err != nil {
			t.Fatal(err)
		}
	}
	cm, err := cl.CoreV1().ConfigMaps("kube-system").Get(t.Context(), removedNodes, metav1.GetOptions{})
	if err != nil || len(cm.Data) != 2 || cm.Data["one"] != "2026-05-01T12:00:00Z" || cm.Data["new"] == "" {
		t.Errorf("%+v, %v", cm, err)
	}
}
