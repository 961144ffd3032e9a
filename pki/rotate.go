// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A key of a CA, or of service-account tokens, is replaced in steps. Between them both keys are trusted:
//
//	none --trust--> trust --use--> use --finish--> none
//	none <-cancel-- trust <-trust- use
//
// The files of the directory are the state, and each step is decided by one rename, so that a step that was interrupted
// is completed by the next run of it:
//
//	NAME.key        signs; which of the certificates in NAME.crt is the CA's is decided by this key
//	NAME.crt        all certificates that are trusted
//	NAME-next.key   the new key, before it signs
//	NAME-old.key    the old key, after that
//	NAME-cross.pem  the new key's certificate from the old one: clients that know the old one only trust what the new
//	                one signs; removed by finish and cancel
//	NAME-retired.pem  certificates that are no longer trusted, so that they can be removed where they were published

// Step is how far the replacement of a key has come.
type Step string

// The steps. The names are those of the commands.
const (
	// StepNone: one key, which signs.
	StepNone Step = "none"
	// StepTrust: the old key signs, both are trusted.
	StepTrust Step = "trust"
	// StepUse: the new key signs, both are trusted.
	StepUse Step = "use"
)

// Rotation describes the replacement of a key for people.
type Rotation struct {
	Name string `json:"name"`
	Step Step   `json:"step"`
	// Text says what is so, and what the next commands are.
	Text string `json:"text"`
}

// Rotations are the keys in dir that are being replaced.
func Rotations(dir string) ([]Rotation, error) {
	found := map[string]bool{}
	for _, end := range []string{"-next.key", "-old.key"} {
		files, err := filepath.Glob(filepath.Join(dir, "*"+end))
		if err != nil {
			return nil, err
		}
		for _, path := range files {
			found[strings.TrimSuffix(filepath.Base(path), end)] = true
		}
	}
	var out []Rotation
	for _, name := range slices.Sorted(maps.Keys(found)) {
		step, err := StepOf(dir, name)
		if err != nil {
			return out, fmt.Errorf("key %s: %w", name, err)
		}
		if step != StepNone {
			out = append(out, Rotation{name, step, step.text(name)})
		}
	}
	return out, nil
}

func (s Step) text(name string) string {
	command := "`keelson certs rotate " + name + " "
	if s == StepTrust {
		return fmt.Sprintf("the key of %s is being replaced: the old one signs, both are trusted (step 1 of 3); next: "+
			"%suse`, or back: %scancel`", name, command, command)
	}
	return fmt.Sprintf("the key of %s is being replaced: the new one signs, both are trusted (step 2 of 3); next: "+
		"%sfinish`, or back: %strust`", name, command, command)
}

// TokenKey is the name of the key that signs service-account tokens.
const TokenKey = "sa"

// rotation is the replacement of one key.
type rotation struct {
	dir, name string
	// before is called before each change of a file, an error ends the step; nil except in tests.
	before func() error
}

func (r rotation) write(end string, b []byte, mode os.FileMode) error {
	if r.before != nil {
		if err := r.before(); err != nil {
			return err
		}
	}
	return WriteFile(r.file(end), b, mode)
}

// remove removes a file, which may be missing.
func (r rotation) remove(end string) error {
	if r.before != nil {
		if err := r.before(); err != nil {
			return err
		}
	}
	if err := os.Remove(r.file(end)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (r rotation) file(end string) string { return filepath.Join(r.dir, r.name+end) }

// StepOf is how far the replacement of the key of a name has come.
func StepOf(dir, name string) (Step, error) { return rotation{dir: dir, name: name}.step() }

func (r rotation) step() (Step, error) {
	next, err := keyIfAny(r.file("-next.key"))
	if err != nil {
		return "", err
	}
	old, err := keyIfAny(r.file("-old.key"))
	if err != nil || next == nil && old == nil {
		return StepNone, err
	}
	key, err := keyIfAny(r.file(".key"))
	switch {
	case err != nil:
		return "", err
	case key == nil:
		return "", fmt.Errorf("there is no %s", r.file(".key"))
	case next == nil || samePublic(next.Public(), key.Public()):
		return StepUse, nil
	}
	return StepTrust, nil
}

// TrustedKeys are the fingerprints of the keys of a name that are trusted.
func TrustedKeys(dir, name string) ([]string, error) {
	var keys []crypto.PublicKey
	if name == TokenKey {
		now, err := readTokenKeys(dir)
		if err != nil {
			return nil, err
		}
		keys = append(now.further, now.signer.Public())
	} else {
		now, err := readState(dir, name)
		if err != nil {
			return nil, err
		}
		for _, c := range now.roots {
			keys = append(keys, c.PublicKey)
		}
	}
	var out []string
	for _, key := range keys {
		sum, err := Fingerprint(key)
		if err != nil {
			return nil, err
		}
		out = append(out, sum)
	}
	return out, nil
}

// SigningKey is the fingerprint of the key of a name that signs.
func SigningKey(dir, name string) (string, error) {
	key, err := keyIfAny(filepath.Join(dir, name+".key"))
	switch {
	case err != nil:
		return "", err
	case key == nil:
		return "", fmt.Errorf("there is no key %s in %s", name, dir)
	}
	return Fingerprint(key.Public())
}

// SignsSince is when the new key of a name, whose old one is still trusted, began to sign.
func SignsSince(dir, name string) (time.Time, error) {
	st, err := os.Stat(rotation{dir: dir, name: name}.file("-old.key"))
	if err != nil {
		return time.Time{}, err
	}
	return st.ModTime(), nil
}

// OtherAuthorities are the certificates of a CA that are trusted in addition to those of the key that signs.
func OtherAuthorities(dir, name string) ([]*x509.Certificate, error) {
	now, err := readState(dir, name)
	if err != nil {
		return nil, err
	}
	return now.others(), nil
}

// keyIfAny reads a private key; nil if there is no file.
func keyIfAny(path string) (crypto.Signer, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // absence is an answer here
	}
	if err != nil {
		return nil, err
	}
	return parseSigner(path, b)
}

func samePublic(a, b crypto.PublicKey) bool {
	known, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && known.Equal(b)
}

// Trust makes a new key, which is trusted from now on and signs nothing yet. After Use it goes back: the old key signs
// again.
func Trust(dir, name string) error { return rotation{dir: dir, name: name}.trust() }

func (r rotation) trust() error {
	return r.change(func(step Step) error {
		if step == StepUse {
			return r.swap("-old.key", "-next.key")
		}
		if err := r.unswap("-old.key"); err != nil { // the end of the way back
			return err
		}
		key, err := r.nextKey()
		if err != nil || r.name == TokenKey {
			return err
		}
		return r.certify(key)
	})
}

// Use lets the new key sign.
func Use(dir, name string) error { return rotation{dir: dir, name: name}.use() }

func (r rotation) use() error {
	return r.change(func(step Step) error {
		switch step {
		case StepNone:
			return fmt.Errorf("there is no new key yet: run `keelson certs rotate %s trust` first", r.name)
		case StepUse:
			return r.complete()
		case StepTrust:
		}
		if r.name != TokenKey {
			key, err := r.nextKey()
			if err == nil {
				err = r.certify(key)
			}
			if err != nil {
				return err
			}
		}
		return r.swap("-next.key", "-old.key")
	})
}

// Finish ends the trust in the old key.
func Finish(dir, name string) error { return rotation{dir: dir, name: name}.finish() }

func (r rotation) finish() error {
	return r.change(func(step Step) error {
		switch step {
		case StepTrust:
			return fmt.Errorf("the new key does not sign yet: run `keelson certs rotate %s use` first, or cancel", r.name)
		case StepNone:
			return nil
		case StepUse:
		}
		if err := r.complete(); err != nil {
			return err
		}
		return r.drop("-old.key")
	})
}

// Cancel ends the trust in the new key, which has signed nothing.
func Cancel(dir, name string) error { return rotation{dir: dir, name: name}.cancel() }

func (r rotation) cancel() error {
	return r.change(func(step Step) error {
		switch step {
		case StepUse:
			return fmt.Errorf("the new key signs: go back by `keelson certs rotate %s trust` first", r.name)
		case StepNone:
			return nil
		case StepTrust:
		}
		if err := r.unswap("-old.key"); err != nil {
			return err
		}
		return r.drop("-next.key")
	})
}

// change calls do with the current step while no other process changes the directory.
func (r rotation) change(do func(Step) error) error {
	return locked(r.dir, func() error {
		key, err := keyIfAny(r.file(".key"))
		if err == nil && key == nil {
			err = errors.New("there is no such key")
		}
		var step Step
		if err == nil {
			step, err = r.step()
		}
		if err == nil {
			err = do(step)
		}
		if err != nil {
			return fmt.Errorf("replace key %s in %s: %w", r.name, r.dir, err)
		}
		return nil
	})
}

// nextKey returns the new key. It is made once.
func (r rotation) nextKey() (crypto.Signer, error) {
	if key, err := keyIfAny(r.file("-next.key")); key != nil || err != nil {
		return key, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	b, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return key, r.write("-next.key", b, 0o600)
}

// certify makes the certificates of the new key, unless they exist.
func (r rotation) certify(key crypto.Signer) error {
	now, err := readState(r.dir, r.name)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(now.roots, func(c *x509.Certificate) bool { return samePublic(c.PublicKey, key.Public()) })
	if i >= 0 && now.cross != nil {
		return nil
	}
	at := time.Now()
	if !at.Before(now.cert.NotAfter) {
		return fmt.Errorf("the old certificate has expired at %s: `keelson certs renew %s` renews it",
			now.cert.NotAfter.Format(time.RFC3339), r.name)
	}
	subject := pkix.Name{CommonName: caName(r.name) + at.UTC().Format("-20060102150405")}
	if i >= 0 {
		subject = now.roots[i].Subject
	}
	own := authorityTemplate(subject)
	own.NotAfter = at.Add(caLife)
	root, err := sign(own, own, key, key, at)
	if err != nil {
		return err
	}
	if i >= 0 {
		root.CertPEM = encodeCertificate(now.roots[i].Raw)
	}
	certs, err := Certificates(root.CertPEM)
	if err != nil {
		return err
	}
	cross := authorityTemplate(subject)
	cross.NotAfter = now.cert.NotAfter
	cross.SubjectKeyId = certs[0].SubjectKeyId
	signed, err := sign(cross, now.cert, key, now.key, at)
	if err != nil {
		return err
	}
	if err := r.write("-cross.pem", signed.CertPEM, 0o644); err != nil {
		return err
	}
	if i >= 0 {
		return nil
	}
	return r.write(".crt", slices.Concat(now.pem, root.CertPEM), 0o644)
}

// swap makes the key in the file with the end from the one that signs. The one that has signed so far is kept in the
// file with the end to.
func (r rotation) swap(from, to string) error {
	signs, err := os.ReadFile(r.file(".key"))
	if err != nil {
		return err
	}
	next, err := os.ReadFile(r.file(from))
	if err != nil {
		return err
	}
	if err := r.maySign(from); err != nil {
		return err
	}
	if err := r.write(to, signs, 0o600); err != nil {
		return err
	}
	if err := r.write(".key", next, 0o600); err != nil {
		return err
	}
	return r.unswapAndSort(from)
}

// maySign is an error if the key of a file has no certificate, because the trust in it has ended.
func (r rotation) maySign(from string) error {
	if r.name == TokenKey {
		return nil
	}
	key, err := keyIfAny(r.file(from))
	if err != nil {
		return err
	}
	now, err := readState(r.dir, r.name)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(now.roots, func(c *x509.Certificate) bool {
		return samePublic(c.PublicKey, key.Public())
	}) {
		return fmt.Errorf("the key in %s is no longer trusted: run `keelson certs rotate %s finish` again",
			r.file(from), r.name)
	}
	return nil
}

// complete is the end of a swap for StepUse.
func (r rotation) complete() error { return r.unswapAndSort("-next.key") }

func (r rotation) unswapAndSort(from string) error {
	if err := r.unswap(from); err != nil || r.name == TokenKey {
		return err
	}
	now, err := readState(r.dir, r.name)
	if err != nil {
		return err
	}
	// other programs take the first certificate for the one that signs
	sorted := now.with(func(*x509.Certificate) bool { return true })
	if bytes.Equal(sorted, now.pem) {
		return nil
	}
	return r.write(".crt", sorted, 0o644)
}

// unswap removes the file of a key that is in NAME.key.
func (r rotation) unswap(from string) error {
	key, err := keyIfAny(r.file(".key"))
	if err != nil {
		return err
	}
	copied, err := keyIfAny(r.file(from))
	if err != nil || copied == nil || !samePublic(copied.Public(), key.Public()) {
		return err
	}
	return r.remove(from)
}

// drop ends the trust in the key of a file.
func (r rotation) drop(end string) error {
	key, err := keyIfAny(r.file(end))
	if err != nil || key == nil {
		return err
	}
	retire := r.retire
	if r.name == TokenKey {
		retire = r.retireTokenKey
	}
	if err := retire(key.Public()); err != nil {
		return err
	}
	return r.remove(end)
}

// retireTokenKey lists a key as one that is no longer trusted.
func (r rotation) retireTokenKey(key crypto.PublicKey) error {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return err
	}
	retired, err := os.ReadFile(r.file("-retired.pem"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	if bytes.Contains(retired, text) {
		return nil
	}
	return r.write("-retired.pem", append(retired, text...), 0o644)
}

// retire removes the certificates of a key.
func (r rotation) retire(key crypto.PublicKey) error {
	now, err := readState(r.dir, r.name)
	if err != nil {
		return err
	}
	gone := now.with(func(c *x509.Certificate) bool { return samePublic(c.PublicKey, key) })
	if len(gone) > 0 {
		if err := r.write("-retired.pem", slices.Concat(now.retired, gone), 0o644); err != nil {
			return err
		}
		rest := now.with(func(c *x509.Certificate) bool { return !samePublic(c.PublicKey, key) })
		if err := r.write(".crt", rest, 0o644); err != nil {
			return err
		}
	}
	return r.remove("-cross.pem")
}

// authorityTemplate is a CA certificate without an end.
func authorityTemplate(subject pkix.Name) *x509.Certificate {
	return &x509.Certificate{
		Subject:               subject,
		NotBefore:             authorityFrom,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
