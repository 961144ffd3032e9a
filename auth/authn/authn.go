// SPDX-License-Identifier: Apache-2.0

// Package authn authenticates requests: by client certificate, bearer token, authenticating proxy, or as the anonymous
// user. cluster builds an ordered list of authenticators and the API server's pipeline calls it. It never decides what
// a user may do.
package authn

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"keelson/auth"
)

// ErrUnauthorized is wrapped by every error that leads to 401: the request has an invalid credential. The cause is for
// the log only, not for the client.
var ErrUnauthorized = errors.New("invalid credential")

// Certificates authenticates by TLS client certificate: the common name is the user, the organizations are the groups,
// and an attribute of the subject may be the UID.
// A verified certificate is cached until it, or a certificate of its chain, expires.
type Certificates struct {
	mu    sync.RWMutex
	roots *x509.CertPool
	known map[[sha256.Size]byte]known
	// replaced are CAs whose key is being replaced, and seen their last clients.
	replaced []*x509.Certificate
	seen     map[string]time.Time
}

// known is a verified certificate. The user is shared.
type known struct {
	user      auth.User
	from, end time.Time
	replaced  bool // signed by a key that is being replaced
}

// mostSeen limits the clients that are listed.
const mostSeen = 1000

// mostKnown limits the cached certificates.
const mostKnown = 1024

// NewCertificates accepts clients of the CAs in roots.
func NewCertificates(roots *x509.CertPool) *Certificates {
	return &Certificates{
		roots: roots,
		known: map[[sha256.Size]byte]known{},
		seen:  map[string]time.Time{},
	}
}

// SetReplaced lists from now on the clients of these CAs, whose key is being replaced.
func (c *Certificates) SetReplaced(cas []*x509.Certificate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.EqualFunc(cas, c.replaced, (*x509.Certificate).Equal) {
		return
	}
	c.replaced = cas
	clear(c.known)
	clear(c.seen)
}

// Replaced returns users by the last use of a certificate that a key has signed that is being replaced.
func (c *Certificates) Replaced() map[string]time.Time {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return maps.Clone(c.seen)
}

func (c *Certificates) note(user string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, listed := c.seen[user]; listed || len(c.seen) < mostSeen {
		c.seen[user] = now
	}
}

// SetRoots replaces the client CAs, for existing connections too.
func (c *Certificates) SetRoots(roots *x509.CertPool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.roots = roots
	clear(c.known)
}

// Authenticate verifies the certificate of the TLS connection.
func (c *Certificates) Authenticate(r *http.Request) (*auth.User, bool, error) {
	if r.TLS == nil {
		return nil, false, nil
	}
	return c.User(r.TLS.PeerCertificates)
}

// User verifies the certificates that a client has shown when its connection was made, by the CAs of now. ok is false
// if they name no user.
func (c *Certificates) User(shown []*x509.Certificate) (user *auth.User, ok bool, err error) {
	if len(shown) == 0 {
		return nil, false, nil
	}
	key := fingerprint(shown)
	now := time.Now()
	c.mu.RLock()
	known, ok := c.known[key]
	roots := c.roots
	replaced := c.replaced
	c.mu.RUnlock()
	if !ok || now.Before(known.from) || now.After(known.end) {
		if known, err = verify(roots, shown); err != nil {
			return nil, false, err
		}
		known.replaced = slices.ContainsFunc(replaced, func(ca *x509.Certificate) bool {
			return shown[0].CheckSignatureFrom(ca) == nil
		})
		c.mu.Lock()
		if len(c.known) >= mostKnown {
			clear(c.known)
		}
		if c.roots == roots {
			c.known[key] = known
		}
		c.mu.Unlock()
	}
	if known.user.Name == "" {
		return nil, false, nil
	}
	if known.replaced {
		c.note(known.user.Name, now)
	}
	u := known.user
	u.Extra = maps.Clone(u.Extra)
	return &u, true, nil
}

// fingerprint is the cache key of a certificate chain.
func fingerprint(certs []*x509.Certificate) [sha256.Size]byte {
	if len(certs) == 1 {
		return sha256.Sum256(certs[0].Raw)
	}
	h := sha256.New()
	for _, cert := range certs {
		_, _ = h.Write(cert.Raw) // Write of a hash never fails
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func verify(roots *x509.CertPool, certs []*x509.Certificate) (known, error) {
	leaf := certs[0]
	between := x509.NewCertPool()
	for _, p := range certs[1:] {
		between.AddCert(p)
	}
	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots:         roots,
		Intermediates: between,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	uid, uidErr := uidOf(leaf)
	if err := cmp.Or(err, uidErr); err != nil {
		return known{}, fmt.Errorf("%w: client certificate of %q: %w", ErrUnauthorized, leaf.Subject.CommonName, err)
	}
	k := known{from: leaf.NotBefore, end: leaf.NotAfter}
	for _, cert := range chains[0] {
		if cert.NotAfter.Before(k.end) {
			k.end = cert.NotAfter
		}
	}
	if leaf.Subject.CommonName != "" {
		k.user = *WithAuthenticated(&auth.User{
			Name:   leaf.Subject.CommonName,
			UID:    uid,
			Groups: slices.Clip(leaf.Subject.Organization),
			Extra:  map[string][]string{"authentication.kubernetes.io/credential-id": {credentialID(leaf)}},
			How:    auth.ClientCertificate,
		})
		k.user.Groups = slices.Clip(k.user.Groups)
	}
	return k, nil
}

// uidAttribute is the attribute of a certificate's subject that has the user's UID (Kubernetes'
// AllowParsingUserUIDFromCertAuth).
var uidAttribute = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}

// uidOf returns the UID in a certificate's subject, which may have one; empty: it has none.
func uidOf(cert *x509.Certificate) (string, error) {
	uid := ""
	for _, attribute := range cert.Subject.Names {
		if !attribute.Type.Equal(uidAttribute) {
			continue
		}
		text, _ := attribute.Value.(string) // x509 reads nothing else
		switch {
		case text == "":
			return "", errors.New("the UID in the subject is empty")
		case uid != "":
			return "", errors.New("the subject has more than one UID")
		}
		uid = text
	}
	return uid, nil
}

// Bearer returns the bearer token of the Authorization header or, from a browser's WebSocket, of the subprotocol.
//
// As in Kubernetes, it ends at the first space, and a space before it hides it: SpaceBeforeBearer.
func Bearer(r *http.Request) string {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	token, _, _ := strings.Cut(rest, " ")
	return token
}

// SpaceBeforeBearer reports whether a bearer token is ignored because more than one space is before it.
func SpaceBeforeBearer(r *http.Request) bool {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	return strings.EqualFold(scheme, "bearer") && strings.HasPrefix(rest, " ")
}

// WithAuthenticated adds the group system:authenticated to u, which every user except the anonymous one has. It may
// modify and return u itself.
func WithAuthenticated(u *auth.User) *auth.User {
	for _, g := range u.Groups {
		if g == auth.Authenticated || g == auth.Unauthenticated {
			return u
		}
	}
	u.Groups = append(slices.Clip(u.Groups), auth.Authenticated)
	return u
}

// Anonymous authenticates every request as system:anonymous. It must be the last authenticator.
type Anonymous struct {
	// Paths restricts anonymous requests to these paths; empty: all.
	Paths []string
	// Off reports that anonymous requests are rejected for now; nil: they are not.
	Off func() bool
}

var anonymous = &auth.User{Name: auth.Anonymous, Groups: []string{auth.Unauthenticated}, How: "anonymous"}

// Authenticate accepts every request for an allowed path.
func (a Anonymous) Authenticate(r *http.Request) (*auth.User, bool, error) {
	if a.Off != nil && a.Off() {
		return nil, false, nil
	}
	if len(a.Paths) > 0 && !slices.Contains(a.Paths, r.URL.Path) {
		return nil, false, nil
	}
	return anonymous, true, nil
}
