// SPDX-License-Identifier: Apache-2.0

package credentials

import (
	"crypto"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"keelson/cluster/datadir"
	"keelson/pki"
)

// identities are the keys by which clients know the cluster: its certificate authorities and the key of service-account
// tokens. Replacing a lost one silently would lock every client out, so each is created once. FingerprintsFile lists
// the public keys; what it lists must exist and be the same.
//
// A directory without that file is new, or of a version that did not write it. In the second case alwaysMade must
// exist.
type identities struct {
	dir   string // pki/
	known map[string]string
	found map[string]string
	older bool // an API server has run here, but FingerprintsFile does not exist
	// life is that of the certificates that the authorities issue; 0: a year.
	life time.Duration
}

// FingerprintsFile holds a line "NAME sha256:HEX" for each identity, as kubeadm names a public key. It holds
// NoFingerprints after a restore without keys. It is never empty.
const (
	FingerprintsFile = "fingerprints"
	NoFingerprints   = "none yet\n"
)

// alwaysMade are the identities that every version has created.
var alwaysMade = []string{"ca", TokenIdentity}

// TokenIdentity is the name of the keys of service-account tokens.
const TokenIdentity = "sa"

func openIdentities(dir datadir.Dir) (*identities, error) {
	i := &identities{dir: dir.Sub("pki"), found: map[string]string{}}
	if err := os.MkdirAll(i.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory for keys: %w", err)
	}
	b, err := os.ReadFile(i.path(FingerprintsFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		i.older = dir.Served()
		return i, nil
	case err != nil:
		return nil, fmt.Errorf("read fingerprints of keys: %w", err)
	}
	if i.known, err = ParseFingerprints(b); err != nil {
		return nil, fmt.Errorf("%s is damaged (%w): put it back from a backup, or delete it if the other files in %s "+
			"are this cluster's", i.path(FingerprintsFile), err, i.dir)
	}
	return i, nil
}

func (i *identities) path(file string) string { return filepath.Join(i.dir, file) }

// ParseFingerprints is the inverse of FormatFingerprints.
func ParseFingerprints(b []byte) (map[string]string, error) {
	out := map[string]string{}
	if string(b) == NoFingerprints {
		return out, nil
	}
	if len(b) == 0 {
		return nil, errors.New("it is empty")
	}
	for line := range strings.Lines(string(b)) {
		name, sum, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if name == "" || name != filepath.Base(name) || !strings.HasPrefix(sum, "sha256:") ||
			len(sum) != len("sha256:")+64 || !strings.HasSuffix(line, "\n") {
			return nil, fmt.Errorf("line %.100q is not of the form NAME sha256:HEX", line)
		}
		out[name] = sum
	}
	return out, nil
}

// FormatFingerprints is the content of FingerprintsFile: a line for each name.
func FormatFingerprints(m map[string]string) []byte {
	if len(m) == 0 {
		return []byte(NoFingerprints)
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%s %s\n", name, m[name])
	}
	return []byte(b.String())
}

// mustExist reports whether name was created before, so that it must not be created again.
func (i *identities) mustExist(name string) bool {
	if i.older {
		return slices.Contains(alwaysMade, name)
	}
	return i.known[name] != ""
}

// authority opens the certificate authority name; the first time it creates it.
func (i *identities) authority(name string) (*pki.Authority, error) {
	files := []string{name + ".crt", name + ".key"}
	if err := i.present(name, files); err != nil {
		return nil, err
	}
	a, err := pki.OpenFor(i.dir, name, i.life)
	if err != nil {
		return nil, i.missingError(files, "unusable ("+err.Error()+")")
	}
	certs, err := pki.Certificates(a.CertPEM())
	if err != nil {
		return nil, err
	}
	var others []crypto.PublicKey
	for _, c := range certs {
		others = append(others, c.PublicKey)
	}
	cert, _ := a.Signer()
	return a, i.same(name, files, cert.PublicKey, others)
}

// tokenKeys opens the keys of service-account tokens; the first time it creates one.
func (i *identities) tokenKeys() (*pki.TokenKeys, error) {
	files := []string{TokenIdentity + ".key"}
	if err := i.present(TokenIdentity, files); err != nil {
		return nil, err
	}
	keys, err := pki.OpenTokenKeys(i.dir)
	if err != nil {
		return nil, i.missingError(files, "unusable ("+err.Error()+")")
	}
	return keys, i.same(TokenIdentity, files, keys.Signer().Public(), keys.Further())
}

// present returns an error if an identity was created before and its files are missing.
func (i *identities) present(name string, files []string) error {
	if !i.mustExist(name) {
		return nil
	}
	var missing []string
	for _, file := range files {
		if _, err := os.Stat(i.path(file)); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, file)
		}
	}
	if len(missing) > 0 {
		return i.missingError(missing, "missing")
	}
	return nil
}

// same returns an error if an identity is not the one that was created. Otherwise it records it. trusted are the keys
// that are trusted in addition to it: while a key is replaced, the known one may be one of them.
func (i *identities) same(name string, files []string, key crypto.PublicKey, trusted []crypto.PublicKey) error {
	sum, err := pki.Fingerprint(key)
	if err != nil {
		return err
	}
	want := i.known[name]
	if want != "" && !slices.ContainsFunc(append(slices.Clone(trusted), key), func(k crypto.PublicKey) bool {
		known, err := pki.Fingerprint(k)
		return err == nil && known == want
	}) {
		return i.missingError(files, fmt.Sprintf("of another cluster (the public key is %s, %s says %s)", sum,
			i.path(FingerprintsFile), want))
	}
	i.found[name] = sum
	return nil
}

// missingError is the error for missing or wrong files. It says how to restore them.
func (i *identities) missingError(files []string, what string) error {
	paths := i.path(files[0])
	they := "it"
	if len(files) > 1 {
		paths = paths + " and " + i.path(files[1])
		they = "them"
	}
	return fmt.Errorf("%s: %s; copy %s back from a backup (`keelson restore FILE --data-dir OTHER` writes "+
		"OTHER/pki/%s), because a new one would "+
		"lock out every client; docs/store.md, \"Keys\", says what to do without a backup", paths, what, they, files[0])
}

// authorityIfAny is authority, but nil where none was ever created, as on a machine without an API server.
func (i *identities) authorityIfAny(name string) (*pki.Authority, error) {
	if i.known[name] == "" && !datadir.Exists(i.path(name+".key")) {
		return nil, nil // absence is an answer here
	}
	return i.authority(name)
}

// tokenKeysIfAny is tokenKeys, but nil where none was ever created.
func (i *identities) tokenKeysIfAny() (*pki.TokenKeys, error) {
	if i.known[TokenIdentity] == "" && !datadir.Exists(i.path(TokenIdentity+".key")) {
		return nil, nil // absence is an answer here
	}
	return i.tokenKeys()
}

// save writes FingerprintsFile if it changed. The key files are synced to disk before.
func (i *identities) save() error {
	all := maps.Clone(i.known)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, i.found)
	for name := range all { // including names that this version does not know
		if !datadir.Exists(i.path(name + ".key")) {
			return fmt.Errorf("%s names %q, but there is no %s: put the list or the key back from a backup",
				i.path(FingerprintsFile), name, i.path(name+".key"))
		}
	}
	if i.known != nil && maps.Equal(all, i.known) {
		return nil
	}
	if err := errors.Join(datadir.SyncDir(i.dir), datadir.SyncDir(filepath.Dir(i.dir))); err != nil {
		return fmt.Errorf("bring keys to disk: %w", err)
	}
	if err := pki.WriteFile(i.path(FingerprintsFile), FormatFingerprints(all), 0o600); err != nil {
		return err
	}
	return datadir.SyncDir(i.dir)
}

// MarkWithoutIdentities lets the next start create keys for restored objects whose backup had none. Existing keys stay.
func MarkWithoutIdentities(dir string) error {
	sub := filepath.Join(dir, "pki")
	if left, err := os.ReadDir(sub); err != nil && !errors.Is(err, fs.ErrNotExist) || len(left) > 0 {
		return err
	}
	if err := os.MkdirAll(sub, 0o700); err != nil {
		return err
	}
	return pki.WriteFile(filepath.Join(sub, FingerprintsFile), FormatFingerprints(nil), 0o600)
}

// KeepSecret makes files with private keys readable by their owner only. opened are those that others could read.
func KeepSecret(files ...string) (opened []string, err error) {
	for _, path := range files {
		st, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return opened, err
		}
		if st.Mode().Perm()&0o077 == 0 {
			continue
		}
		if err := os.Chmod(path, st.Mode().Perm()&0o700); err != nil {
			return opened, err
		}
		opened = append(opened, fmt.Sprintf("%s (%04o)", path, st.Mode().Perm()))
	}
	return opened, nil
}

// SecretFiles are the files of dir with private keys, and the directory that holds most of them.
func SecretFiles(dir datadir.Dir) []string {
	out := []string{dir.Kubeconfig(), dir.Sub("pki")}
	for _, pattern := range []string{"*.key", "*.kubeconfig", "*.pem"} {
		found, err := filepath.Glob(dir.Sub("pki/" + pattern))
		if err != nil {
			continue // the patterns are valid
		}
		out = append(out, found...)
	}
	return out
}
