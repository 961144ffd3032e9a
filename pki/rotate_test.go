// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// rotating is a directory with a CA whose key is being replaced.
type rotating struct {
	t    *testing.T
	dir  string
	name string
}

func newRotating(t *testing.T, name string) rotating {
	t.Helper()
	r := rotating{t, t.TempDir(), name}
	if name == TokenKey {
		if _, err := ServiceAccountKey(r.dir); err != nil {
			t.Fatal(err)
		}
		return r
	}
	if _, err := Open(r.dir, name); err != nil {
		t.Fatal(err)
	}
	return r
}

// signer is the public key that signs.
func (r rotating) signer() crypto.PublicKey {
	r.t.Helper()
	key, err := keyIfAny(filepath.Join(r.dir, r.name+".key"))
	if err != nil || key == nil {
		r.t.Fatalf("key %s: %v", r.name, err)
	}
	return key.Public()
}

// trusts reports whether a key is trusted.
func (r rotating) trusts(key crypto.PublicKey) bool {
	r.t.Helper()
	if r.name == TokenKey {
		keys, err := OpenTokenKeys(r.dir)
		if err != nil {
			r.t.Fatal(err)
		}
		return slices.ContainsFunc(append(keys.Further(), r.signer()), func(k crypto.PublicKey) bool {
			return samePublic(k, key)
		})
	}
	a, err := Open(r.dir, r.name)
	if err != nil {
		r.t.Fatal(err)
	}
	certs, err := Certificates(a.CertPEM())
	if err != nil {
		r.t.Fatal(err)
	}
	return slices.ContainsFunc(certs, func(c *x509.Certificate) bool { return samePublic(c.PublicKey, key) })
}

func (r rotating) step() Step {
	r.t.Helper()
	step, err := StepOf(r.dir, r.name)
	if err != nil {
		r.t.Fatal(err)
	}
	return step
}

// check verifies that what the CA signs is trusted by those that have its bundle.
func (r rotating) check() {
	r.t.Helper()
	if r.name == TokenKey {
		return
	}
	a, err := Open(r.dir, r.name)
	if err != nil {
		r.t.Fatal(err)
	}
	leaf, err := a.ClientLeaf("leaf", Subject{Name: "leaf"})
	if err != nil {
		r.t.Fatal(err)
	}
	if err := verifies(leaf.Pair(), a.CertPEM()); err != nil {
		r.t.Errorf("in step %s the CA's bundle does not verify what it signs: %v", r.step(), err)
	}
}

// verifies checks a certificate with its chain against a bundle.
func verifies(p Pair, bundle []byte) error {
	roots, err := Authorities(bundle)
	if err != nil {
		return err
	}
	certs, err := Certificates(p.CertPEM)
	if err != nil {
		return err
	}
	between := x509.NewCertPool()
	for _, c := range certs[1:] {
		between.AddCert(c)
	}
	_, err = certs[0].Verify(x509.VerifyOptions{
		Roots:         roots,
		Intermediates: between,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	return err
}

func (r rotating) do(steps ...func(dir, name string) error) {
	r.t.Helper()
	for _, step := range steps {
		if err := step(r.dir, r.name); err != nil {
			r.t.Fatal(err)
		}
		r.check()
	}
}

// TestRotation: each step, twice, and the way back.
func TestRotation(t *testing.T) {
	for _, name := range []string{"ca", TokenKey} {
		t.Run(name, func(t *testing.T) {
			r := newRotating(t, name)
			first := r.signer()
			for _, refused := range []func(string, string) error{Use} {
				if err := refused(r.dir, r.name); err == nil {
					t.Error("a step is taken before the first one")
				}
			}
			r.do(Finish, Cancel) // nothing to do
			r.do(Trust, Trust)
			if r.step() != StepTrust || !samePublic(r.signer(), first) {
				t.Fatalf("step %s after trust, or another key signs", r.step())
			}
			if err := Finish(r.dir, r.name); err == nil {
				t.Error("finish before use is accepted")
			}
			r.do(Use, Use)
			second := r.signer()
			if r.step() != StepUse || samePublic(second, first) || !r.trusts(first) {
				t.Fatalf("step %s after use, or the old key signs or is not trusted", r.step())
			}
			if err := Cancel(r.dir, r.name); err == nil {
				t.Error("cancel after use is accepted")
			}
			r.do(Trust)
			if r.step() != StepTrust || !samePublic(r.signer(), first) || !r.trusts(second) {
				t.Fatalf("step %s on the way back, or the new key signs or is not trusted", r.step())
			}
			r.do(Use, Finish, Finish)
			if r.step() != StepNone || !samePublic(r.signer(), second) || r.trusts(first) {
				t.Fatalf("step %s after finish, or the old key signs or is trusted", r.step())
			}
			r.do(Trust, Cancel, Cancel)
			if r.step() != StepNone || !samePublic(r.signer(), second) {
				t.Fatalf("step %s after cancel, or another key signs", r.step())
			}
			left, err := filepath.Glob(filepath.Join(r.dir, "*-*.key"))
			if err != nil || len(left) > 0 {
				t.Errorf("left are %v, %v", left, err)
			}
		})
	}
}

// TestInterruptedRotation: a step that ends before any of its changes leaves a CA that works; the next run completes
// it, and the step before it can be run too.
func TestInterruptedRotation(t *testing.T) {
	steps := map[string]struct {
		before []func(string, string) error
		step   func(rotation) error
		back   func(string, string) error
		end    Step
	}{
		"trust":      {nil, rotation.trust, Cancel, StepTrust},
		"use":        {[]func(string, string) error{Trust}, rotation.use, Trust, StepUse},
		"trust back": {[]func(string, string) error{Trust, Use}, rotation.trust, Use, StepTrust},
		"finish":     {[]func(string, string) error{Trust, Use}, rotation.finish, nil, StepNone},
		"cancel":     {[]func(string, string) error{Trust}, rotation.cancel, nil, StepNone},
	}
	killed := errors.New("killed")
	for what, s := range steps {
		for _, name := range []string{"ca", TokenKey} {
			for _, back := range []bool{false, true} {
				t.Run(what+" "+name, func(t *testing.T) {
					if back && s.back == nil {
						return
					}
					for n := 0; ; n++ {
						r := newRotating(t, name)
						r.do(s.before...)
						left := n
						err := s.step(rotation{r.dir, name, func() error {
							left--
							if left < 0 {
								return killed
							}
							return nil
						}})
						if err == nil {
							if n == 0 {
								t.Fatal("the step changes nothing")
							}
							return
						}
						if !errors.Is(err, killed) {
							t.Fatalf("after %d changes: %v", n, err)
						}
						r.check()
						if back {
							r.do(s.back)
							continue
						}
						if err := s.step(rotation{dir: r.dir, name: name}); err != nil {
							t.Fatalf("again after %d changes: %v", n, err)
						}
						r.check()
						if got := r.step(); got != s.end {
							t.Fatalf("again after %d changes: step %s, want %s", n, got, s.end)
						}
					}
				})
			}
		}
	}
}

// TestFinishBegunCannotGoBack: a key that is not trusted any more does not sign again.
func TestFinishBegunCannotGoBack(t *testing.T) {
	r := newRotating(t, "ca")
	r.do(Trust, Use)
	old, err := os.ReadFile(filepath.Join(r.dir, "ca-old.key"))
	if err != nil {
		t.Fatal(err)
	}
	r.do(Finish)
	if err := os.WriteFile(filepath.Join(r.dir, "ca-old.key"), old, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Trust(r.dir, "ca"); err == nil {
		t.Error("a retired key signs again")
	}
	r.check()
	r.do(Finish)
}

// TestRotationIsTrusted: clients that know the old certificate only trust what the new key signs until the end, and
// nodes accept the new key because the old one vouches for it.
func TestRotationIsTrusted(t *testing.T) {
	r := newRotating(t, "ca")
	a, err := Open(r.dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	first := a.CertPEM()
	leaf, err := a.ServerLeaf("server", Subject{Name: "server", DNS: []string{"localhost"}})
	if err != nil {
		t.Fatal(err)
	}
	before := leaf.Pair()
	refresh := func(step func(string, string) error, changes bool) {
		t.Helper()
		r.do(step)
		if changed, err := a.Refresh(); err != nil || !changed {
			t.Fatalf("the CA is not read again: %v, %v", changed, err)
		}
		if changed, err := leaf.Refresh(); err != nil || changed != changes {
			t.Errorf("the certificate has changed: %v, %v, want %v", changed, err, changes)
		}
	}
	_, changed := a.Bundle()
	refresh(Trust, false)
	select {
	case <-changed:
	default:
		t.Error("followers of the bundle are not notified")
	}
	both := a.CertPEM()
	if Follows(first, both, nil) || !Follows(first, both, a.CrossPEM()) {
		t.Error("the new key is accepted without the word of the old one, or not with it")
	}
	other, err := Open(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	if Follows(other.CertPEM(), both, a.CrossPEM()) {
		t.Error("another cluster's node accepts the new key")
	}
	refresh(Use, true)
	for what, bundle := range map[string][]byte{"old": first, "both": both} {
		if err := verifies(leaf.Pair(), bundle); err != nil {
			t.Errorf("after use, with the certificate %s: %v", what, err)
		}
		if err := verifies(before, bundle); err != nil {
			t.Errorf("the certificate from the old key, with %s: %v", what, err)
		}
	}
	refresh(Finish, false)
	if verifies(before, a.CertPEM()) == nil {
		t.Error("what the old key has signed is trusted after finish")
	}
	if verifies(leaf.Pair(), a.CertPEM()) != nil || string(a.RetiredPEM()) != string(first) {
		t.Error("what the new key has signed is not trusted, or the old certificate is not listed as retired")
	}
}
