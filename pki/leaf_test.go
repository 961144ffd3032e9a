// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

const day = 24 * time.Hour

// clocked is an authority on a clock that the test sets.
func clocked(t *testing.T, dir string, life time.Duration) (a *Authority, set func(time.Duration)) {
	t.Helper()
	begin := time.Now().Truncate(time.Second)
	now := begin
	a, err := open(dir, "ca", life, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	return a, func(d time.Duration) { now = begin.Add(d) }
}

func refresh(t *testing.T, l *Leaf) bool {
	t.Helper()
	changed, err := l.Refresh()
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

// TestLeafLivesOn: a certificate that is in use is replaced before it expires, year after year, on disk and in memory,
// and shortly before the authority's own end no more.
func TestLeafLivesOn(t *testing.T) {
	for _, dir := range []string{t.TempDir(), ""} {
		authority, set := clocked(t, dir, leafLife)
		leaf, err := authority.ServerLeaf("apiserver", server())
		if err != nil {
			t.Fatal(err)
		}
		for at, want := range map[time.Duration]bool{day: false, 200 * day: false} {
			set(at)
			if got := refresh(t, leaf); got != want {
				t.Errorf("in %q on day %d: renewed %t, want %t", dir, at/day, got, want)
			}
		}
		renewals := 0
		for at := time.Duration(0); at < caLife; at += day {
			set(at)
			due := leaf.Due()
			if now := authority.now(); refresh(t, leaf) {
				renewals++
				if now.Sub(due) < 0 || now.Sub(due) > day {
					t.Errorf("in %q on day %d: renewed %s after it was due", dir, at/day, now.Sub(due))
				}
			}
			cert, err := leaf.Serve(nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := cert.Leaf.Verify(x509.VerifyOptions{
				DNSName:     "localhost",
				Roots:       authority.Pool(),
				CurrentTime: authority.now(),
			}); err != nil {
				t.Fatalf("in %q on day %d: %v", dir, at/day, err)
			}
		}
		if renewals < 13 || renewals > 17 {
			t.Errorf("in %q: %d renewals in ten years, want one in 219 to 243 days", dir, renewals)
		}
		if dir != "" {
			stored, err := readPair(dir, "apiserver")
			if err != nil || !bytes.Equal(stored.CertPEM, leaf.Pair().CertPEM) {
				t.Errorf("the stored certificate is another one than the current: %v", err)
			}
		}
	}
}

// TestLeafOfTwoProcesses: of processes with one directory one renews, and the others take its certificate.
func TestLeafOfTwoProcesses(t *testing.T) {
	dir := t.TempDir()
	var leaves []*Leaf
	var set []func(time.Duration)
	for range 8 {
		authority, move := clocked(t, dir, leafLife)
		leaf, err := authority.ServerLeaf("apiserver", server())
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leaf)
		set = append(set, move)
	}
	for _, move := range set {
		move(245 * day)
	}
	var all sync.WaitGroup
	for _, l := range leaves {
		all.Go(func() {
			if changed, err := l.Refresh(); !changed || err != nil {
				t.Errorf("renewed %t, %v", changed, err)
			}
		})
	}
	all.Wait()
	for i, l := range leaves {
		if !bytes.Equal(l.Pair().CertPEM, leaves[0].Pair().CertPEM) {
			t.Errorf("process %d has another certificate than process 0", i)
		}
	}
}

// TestLeafNotStored: a certificate that cannot be stored is used, and stored later.
func TestLeafNotStored(t *testing.T) {
	dir := t.TempDir()
	authority, set := clocked(t, dir, leafLife)
	leaf, err := authority.ClientLeaf("admin", Subject{Name: "admin"})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "admin.crt")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(path, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	old := leaf.Pair()
	set(250 * day)
	if err := os.Remove(filepath.Join(dir, "admin.key")); err != nil {
		t.Fatal(err)
	}
	if changed, err := leaf.Refresh(); !changed || err == nil || bytes.Equal(leaf.Pair().CertPEM, old.CertPEM) {
		t.Fatalf("renewed %t, %v, want a new certificate and an error", changed, err)
	}
	now := leaf.Pair()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if refresh(t, leaf) || !bytes.Equal(leaf.Pair().CertPEM, now.CertPEM) {
		t.Error("it was issued again")
	}
	if stored, err := readPair(dir, "admin"); err != nil || !bytes.Equal(stored.CertPEM, now.CertPEM) {
		t.Errorf("it is not stored: %v", err)
	}
}

// TestValidFrom: a certificate is valid where clocks are slow or were fast, and a short one is renewed in its life.
func TestValidFrom(t *testing.T) {
	for life, want := range map[time.Duration]time.Duration{
		caLife:           day,
		leafLife:         day,
		day:              time.Hour,
		time.Hour:        5 * time.Minute,
		10 * time.Minute: 5 * time.Minute,
		time.Minute:      30 * time.Second,
	} {
		authority, _ := clocked(t, t.TempDir(), life)
		leaf, err := authority.ServerLeaf("apiserver", server())
		if err != nil {
			t.Fatal(err)
		}
		cert := leaf.Certificate().Leaf
		now := authority.now()
		end := min(life, caLife)
		if got := now.Sub(cert.NotBefore); got != want || cert.NotAfter.Sub(now) != end {
			t.Errorf("of a life of %s: valid from %s ago for %s, want %s and %s", life, got, cert.NotAfter.Sub(now), want,
				end)
		}
		if got := Issued(cert); !got.Equal(now) {
			t.Errorf("of a life of %s: issued %s, want %s", life, got, now)
		}
		if at := renewAt(cert).Sub(now); at < life/1000*599 || at > life/1000*667 {
			t.Errorf("of a life of %s: renewed after %s", life, at)
		}
	}
}

// TestIssued: the time of issue is in the certificates that this version signs, also by request; others are as
// Kubernetes', and as earlier versions'.
func TestIssued(t *testing.T) {
	authority, _ := clocked(t, t.TempDir(), leafLife)
	now := authority.now()
	key, err := ServiceAccountKey("")
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "n"}},
		key)
	if err != nil {
		t.Fatal(err)
	}
	req, err := x509.ParseCertificateRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := authority.Sign(req, x509.KeyUsageDigitalSignature, nil, leafLife)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(signed, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	if got := Issued(pair.Leaf); !got.Equal(now) || now.Sub(pair.Leaf.NotBefore) != day {
		t.Errorf("by request: issued %s, valid from %s, want %s", got, pair.Leaf.NotBefore, now)
	}
	for name, number := range map[string]*big.Int{
		"an earlier version's": new(big.Int).Lsh(big.NewInt(1), 126),
		"Kubernetes'":          new(big.Int).Lsh(big.NewInt(1), 127),
		"another time's":       new(big.Int).Lsh(big.NewInt(now.Unix()+int64(25*time.Hour/time.Second)), randomBits),
		"a long random one":    new(big.Int).Lsh(big.NewInt(0x7fffffffffffff), randomBits),
	} {
		for _, isCA := range []bool{false, true} {
			c := &x509.Certificate{
				SerialNumber: number,
				NotBefore:    now,
				NotAfter:     now.AddDate(10, 0, 0),
				IsCA:         isCA,
			}
			if got, want := Issued(c), now.Add(5*time.Minute); !got.Equal(want) {
				t.Errorf("serial number of %s, CA %t: issued %s, want %s", name, isCA, got, want)
			}
		}
	}
}

// TestAuthorityOfAWrongClock: an authority that was made, or renewed, while the clock was years ahead is valid when the
// clock is right, as it is where a clock starts in 1970; what it issued is issued again.
func TestAuthorityOfAWrongClock(t *testing.T) {
	authority, set := clocked(t, t.TempDir(), leafLife)
	set(2 * 365 * day)
	leaf, err := authority.ServerLeaf("apiserver", server())
	if err != nil {
		t.Fatal(err)
	}
	set(0)
	if !refresh(t, leaf) {
		t.Error("a certificate that is not valid yet was kept")
	}
	for _, at := range []time.Time{authority.now(), time.Unix(1, 0)} {
		chain, err := Certificates(authority.CertPEM())
		if err != nil {
			t.Fatal(err)
		}
		if at.Before(chain[0].NotBefore) {
			t.Errorf("at %s the authority is not valid: from %s", at, chain[0].NotBefore)
		}
	}
}
