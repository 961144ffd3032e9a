// SPDX-License-Identifier: Apache-2.0

package cluster

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

	"keelson/pki"
)

// identities are the keys that clients know the cluster by: its certificate authorities and the key of service-account tokens. A new
// one in the place of one that is gone would lock every client out, so each is made once. fingerprintsFile remembers which were
// made, and their public keys; whatever is listed there must be there and be the same.
//
// A directory without that file is new, or of a version that did not write it: then alwaysMade must be there if an API server has run.
type identities struct {
	dir   string // pki/
	known map[string]string
	found map[string]string
	older bool // an API server has run here, but fingerprintsFile is not there
}

// fingerprintsFile holds a line "NAME sha256:HEX" for each identity, which is kubeadm's way to name a public key; noneYet where the
// objects came from elsewhere and the keys are still to be made. It is never empty.
const (
	fingerprintsFile = "fingerprints"
	noneYet          = "none yet\n"
)

// alwaysMade are the identities that every version has made.
var alwaysMade = []string{"ca", tokenIdentity}

const tokenIdentity = "sa"

func openIdentities(dir DataDir) (*identities, error) {
	i := &identities{dir: dir.Sub("pki"), found: map[string]string{}}
	if err := os.MkdirAll(i.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory for keys: %w", err)
	}
	b, err := os.ReadFile(i.path(fingerprintsFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		i.older = dir.served()
		return i, nil
	case err != nil:
		return nil, fmt.Errorf("read fingerprints of keys: %w", err)
	}
	if i.known, err = parseFingerprints(b); err != nil {
		return nil, fmt.Errorf("%s is damaged (%w): put it back from a backup, or delete it if the other files in %s are this cluster's", i.path(fingerprintsFile), err, i.dir)
	}
	return i, nil
}

func (i *identities) path(file string) string { return filepath.Join(i.dir, file) }

// parseFingerprints is the inverse of formatFingerprints.
func parseFingerprints(b []byte) (map[string]string, error) {
	out := map[string]string{}
	if string(b) == noneYet {
		return out, nil
	}
	if len(b) == 0 {
		return nil, errors.New("it is empty")
	}
	for line := range strings.Lines(string(b)) {
		name, sum, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if name == "" || name != filepath.Base(name) || !strings.HasPrefix(sum, "sha256:") || len(sum) != len("sha256:")+64 || !strings.HasSuffix(line, "\n") {
			return nil, fmt.Errorf("line %.100q is not of the form NAME sha256:HEX", line)
		}
		out[name] = sum
	}
	return out, nil
}

func formatFingerprints(m map[string]string) []byte {
	if len(m) == 0 {
		return []byte(noneYet)
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%s %s\n", name, m[name])
	}
	return []byte(b.String())
}

// mustExist reports whether name was made before, so that making it now would replace it.
func (i *identities) mustExist(name string) bool {
	if i.older {
		return slices.Contains(alwaysMade, name)
	}
	return i.known[name] != ""
}

// authority opens the certificate authority called name; it is made if it never was.
func (i *identities) authority(name string) (*pki.Authority, error) {
	files := []string{name + ".crt", name + ".key"}
	if err := i.present(name, files); err != nil {
		return nil, err
	}
	a, err := pki.Open(i.dir, name)
	if err != nil {
		return nil, i.lost(files, "unusable ("+err.Error()+")")
	}
	cert, _ := a.Signer()
	return a, i.same(name, files, cert.PublicKey)
}

// tokenKey opens the key that signs service-account tokens; it is made if it never was.
func (i *identities) tokenKey() (crypto.Signer, error) {
	files := []string{tokenIdentity + ".key"}
	if err := i.present(tokenIdentity, files); err != nil {
		return nil, err
	}
	key, err := pki.ServiceAccountKey(i.dir)
	if err != nil {
		return nil, i.lost(files, "unusable ("+err.Error()+")")
	}
	return key, i.same(tokenIdentity, files, key.Public())
}

// present refuses an identity that was made before and is not there any more.
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
		return i.lost(missing, "missing")
	}
	return nil
}

// same refuses an identity that is not the one that was made, and remembers it otherwise.
func (i *identities) same(name string, files []string, key crypto.PublicKey) error {
	sum, err := pki.Fingerprint(key)
	if err != nil {
		return err
	}
	if want := i.known[name]; want != "" && want != sum {
		return i.lost(files, fmt.Sprintf("of another cluster (the public key is %s, %s says %s)", sum, i.path(fingerprintsFile), want))
	}
	i.found[name] = sum
	return nil
}

// lost says in one sentence what is wrong with files and how to put them back.
func (i *identities) lost(files []string, what string) error {
	paths, they := i.path(files[0]), "it"
	if len(files) > 1 {
		paths, they = paths+" and "+i.path(files[1]), "them"
	}
	return fmt.Errorf("%s: %s; copy %s back from a backup (`keelson restore FILE --data-dir OTHER` writes OTHER/pki/%s), because a new one would "+
		"lock out every client; docs/store.md, \"Keys\", says what to do without a backup", paths, what, they, files[0])
}

// authorityIfAny is authority; nil where there never was one, as beside a server on another machine.
func (i *identities) authorityIfAny(name string) (*pki.Authority, error) {
	if i.known[name] == "" && !exists(i.path(name+".key")) {
		return nil, nil //nolint:nilnil // absence is an answer here
	}
	return i.authority(name)
}

// tokenKeyIfAny is tokenKey; nil where there never was one.
func (i *identities) tokenKeyIfAny() (crypto.Signer, error) {
	if i.known[tokenIdentity] == "" && !exists(i.path(tokenIdentity+".key")) {
		return nil, nil //nolint:nilnil // absence is an answer here
	}
	return i.tokenKey()
}

// remember writes down what was found or made, if that is not what is written already. The files that it speaks of are on disk then.
func (i *identities) remember() error {
	all := maps.Clone(i.known)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, i.found)
	for name := range all { // also one that this version does not know
		if !exists(i.path(name + ".key")) {
			return fmt.Errorf("%s names %q, but there is no %s: put the list or the key back from a backup", i.path(fingerprintsFile), name, i.path(name+".key"))
		}
	}
	if i.known != nil && maps.Equal(all, i.known) {
		return nil
	}
	if err := errors.Join(syncDir(i.dir), syncDir(filepath.Dir(i.dir))); err != nil {
		return fmt.Errorf("bring keys to disk: %w", err)
	}
	if err := pki.WriteFile(i.path(fingerprintsFile), formatFingerprints(all), 0o600); err != nil {
		return err
	}
	return syncDir(i.dir)
}

// noIdentitiesYet lets the next start make the keys of a cluster whose objects came from elsewhere without them. Keys that are there
// stay.
func noIdentitiesYet(dir string) error {
	sub := filepath.Join(dir, "pki")
	if left, err := os.ReadDir(sub); err != nil && !errors.Is(err, fs.ErrNotExist) || len(left) > 0 {
		return err
	}
	if err := os.MkdirAll(sub, 0o700); err != nil {
		return err
	}
	return pki.WriteFile(filepath.Join(sub, fingerprintsFile), formatFingerprints(nil), 0o600)
}

// keepSecret makes files that hold private keys readable by their owner only, and tells which were not. What others have read
// meanwhile stays read.
func keepSecret(files ...string) (opened []string, err error) {
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

// secretFiles are the files of dir that hold private keys, and the directory that most of them are in.
func secretFiles(dir DataDir) []string {
	out := []string{dir.Kubeconfig(), dir.Sub("pki")}
	for _, pattern := range []string{"*.key", "*.kubeconfig", "*.pem"} {
		found, err := filepath.Glob(dir.Sub("pki/" + pattern))
		if err != nil {
			continue // the patterns are good
		}
		out = append(out, found...)
	}
	return out
}
