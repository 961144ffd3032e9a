// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
)

// pkiFiles are the contents of the files in pki/, by name, without kubeconfigs: those change with the port.
func pkiFiles(t *testing.T, dir datadir.Dir) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir.Sub("pki"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".kubeconfig") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir.Sub("pki"), e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = string(b)
	}
	return out
}

// newCluster prepares a cluster in a directory and gives back what it took: its keys stay.
func newCluster(dir datadir.Dir) error {
	c, err := New(config(string(dir)))
	if err == nil {
		c.Close()
	}
	return err
}

func madeDir(t *testing.T) datadir.Dir {
	t.Helper()
	dir := datadir.Dir(filepath.Join(t.TempDir(), "data"))
	if err := newCluster(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// damages are what may happen to a file with the content b; other is the same file of another cluster. nil: it is
// removed.
var damages = map[string]func(b, other []byte) []byte{
	"removed":        func([]byte, []byte) []byte { return nil },
	"emptied":        func([]byte, []byte) []byte { return []byte{} },
	"truncated":      func(b, _ []byte) []byte { return b[:len(b)/2] },
	"garbage":        func(b, _ []byte) []byte { return bytes.Repeat([]byte{0xa5}, len(b)) },
	"of another one": func(_, other []byte) []byte { return other },
	"a changed byte": func(b, _ []byte) []byte {
		b = bytes.Clone(b)
		b[len(b)/2] ^= 1
		return b
	},
	"without its end": func(b, _ []byte) []byte { return b[:len(b)-30] },
}

// damage does to the file at path what how says.
func damage(t *testing.T, path, other string, how func(b, other []byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	o, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	if b = how(b, o); b == nil {
		err = os.Remove(path)
	} else {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestIdentitiesAreNotMadeAnew: whatever happens to one of the files by which clients know the cluster, the next start
// says which it is and how to put it back, and changes nothing; when the file is back, the cluster starts unchanged.
func TestIdentitiesAreNotMadeAnew(t *testing.T) {
	other := madeDir(t)
	for _, file := range []string{"ca.crt", "ca.key", "sa.key", "front-proxy-ca.crt", "front-proxy-ca.key"} {
		for what, how := range damages {
			t.Run(file+" "+what, func(t *testing.T) {
				dir := madeDir(t)
				before := pkiFiles(t, dir)
				damage(t, dir.Sub("pki/"+file), other.Sub("pki/"+file), how)
				damaged := pkiFiles(t, dir)
				err := newCluster(dir)
				if err == nil {
					if what == "a changed byte" {
						return // of the public key next to the private one, which no one reads; the key is the same
					}
					t.Fatal("the cluster starts")
				}
				for _, want := range []string{dir.Sub("pki/" + file), "backup", "keelson restore"} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%q does not say %q", err, want)
					}
				}
				if strings.Contains(err.Error(), "\n") {
					t.Errorf("%q is more than a line", err)
				}
				if after := pkiFiles(t, dir); !maps.Equal(damaged, after) {
					t.Errorf("the refused start changed pki/: %v, before %v", slices.Sorted(maps.Keys(after)),
						slices.Sorted(maps.Keys(damaged)))
				}
				if err := os.WriteFile(dir.Sub("pki/"+file), []byte(before[file]), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := newCluster(dir); err != nil {
					t.Errorf("with the file back: %v", err)
				}
				if after := pkiFiles(t, dir); !maps.Equal(before, after) {
					t.Error("with the file back, other files changed")
				}
			})
		}
	}
}

// TestIdentitiesOfAnotherCluster: a whole authority of another cluster is refused, although its files fit each other.
func TestIdentitiesOfAnotherCluster(t *testing.T) {
	dir := madeDir(t)
	other := madeDir(t)
	for _, file := range []string{"ca.crt", "ca.key"} {
		damage(t, dir.Sub("pki/"+file), other.Sub("pki/"+file), damages["of another one"])
	}
	if err := newCluster(dir); err == nil || !strings.Contains(err.Error(), "of another cluster") ||
		!strings.Contains(err.Error(), dir.Sub("pki/ca.crt")) {
		t.Errorf("New = %v, want that ca.crt is of another cluster", err)
	}
	if err := os.Remove(dir.Sub("pki/" + credentials.FingerprintsFile)); err != nil { // as who changes the authority on purpose
		t.Fatal(err)
	}
	if err := newCluster(dir); err != nil {
		t.Errorf("after its fingerprint was removed: %v", err)
	}
	if got, want := pkiFiles(t, dir), pkiFiles(t, other); got["ca.key"] != want["ca.key"] {
		t.Error("the authority was changed")
	}
}

// TestIdentitiesWithoutFingerprints: an older directory has none; they are noted, and what such a directory always had
// is not made again.
func TestIdentitiesWithoutFingerprints(t *testing.T) {
	for _, gone := range [][]string{
		{},
		{"ca.crt"},
		{"ca.key"},
		{"sa.key"},
		{"ca.crt", "ca.key", "sa.key"},
		{"front-proxy-ca.crt", "front-proxy-ca.key"},
	} {
		for _, sign := range []string{"kubeconfig", "store"} {
			t.Run(fmt.Sprint(gone, sign), func(t *testing.T) {
				dir := madeDir(t)
				if sign == "store" { // of a server whose kubeconfig somebody removed
					if err := os.Rename(dir.Kubeconfig(), dir.Sub("store")); err != nil {
						t.Fatal(err)
					}
				}
				before := pkiFiles(t, dir)
				for _, file := range append(gone, credentials.FingerprintsFile) {
					if err := os.Remove(dir.Sub("pki/" + file)); err != nil {
						t.Fatal(err)
					}
				}
				err := newCluster(dir)
				if len(gone) == 0 || gone[0] == "front-proxy-ca.crt" { // which not every version made
					if err != nil {
						t.Fatal(err)
					}
					if after := pkiFiles(t, dir); after["ca.key"] != before["ca.key"] || after[credentials.FingerprintsFile] == "" {
						t.Errorf("afterwards there are %v", slices.Sorted(maps.Keys(after)))
					}
					return
				}
				if err == nil || !strings.Contains(err.Error(), dir.Sub("pki/"+gone[0])) {
					t.Errorf("New = %v, want that %s is missing", err, gone[0])
				}
			})
		}
	}
	t.Run("all of pki", func(t *testing.T) {
		dir := madeDir(t)
		if err := os.RemoveAll(dir.Sub("pki")); err != nil {
			t.Fatal(err)
		}
		if err := newCluster(dir); err == nil || !strings.Contains(err.Error(), "ca.key") {
			t.Errorf("New = %v, want that ca.key is missing", err)
		}
	})
}

// TestFingerprintsDamaged: the list itself is never trusted in part.
func TestFingerprintsDamaged(t *testing.T) {
	other := madeDir(t)
	for what, how := range damages {
		dir := madeDir(t)
		path := dir.Sub("pki/" + credentials.FingerprintsFile)
		damage(t, path, other.Sub("pki/"+credentials.FingerprintsFile), how)
		if err := newCluster(dir); what == "removed" {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: New = %v, want a sentence that names %s", what, err, path)
		}
	}
}

// TestLeavesAreMadeAnew: certificates that the authority can sign again are, whatever happened to them.
func TestLeavesAreMadeAnew(t *testing.T) {
	dir := madeDir(t)
	other := madeDir(t)
	ca := pkiFiles(t, dir)["ca.key"]
	identity := []string{"ca.crt", "ca.key", "sa.key", "front-proxy-ca.crt", "front-proxy-ca.key", credentials.FingerprintsFile}
	for file := range pkiFiles(t, dir) {
		if slices.Contains(identity, file) || strings.HasSuffix(file, "-ca.crt") || strings.HasSuffix(file, "-ca.key") {
			continue
		}
		for what, how := range damages {
			damage(t, dir.Sub("pki/"+file), other.Sub("pki/"+file), how)
			if err := newCluster(dir); err != nil {
				t.Fatalf("%s %s: %v", file, what, err)
			}
			cluster, err := New(config(string(dir)))
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range cluster.keys.Leaves(cluster.cfg.realNode()) {
				if string(l.Pair().CertPEM) != pkiFiles(t, dir)[l.Name()+".crt"] {
					t.Errorf("%s %s: %s.crt is not what is used", file, what, l.Name())
				}
			}
			cluster.Close()
		}
	}
	if pkiFiles(t, dir)["ca.key"] != ca {
		t.Error("the authority was changed")
	}
}

// TestSecretsStayPrivate: a start takes back rights that others were given to private keys.
func TestSecretsStayPrivate(t *testing.T) {
	dir := madeDir(t)
	open := map[string]os.FileMode{dir.Kubeconfig(): 0o644, dir.Sub("pki"): 0o755}
	for _, path := range append(credentials.SecretFiles(dir), dir.Sub("pki/scheduler.kubeconfig")) {
		if open[path] == 0 {
			open[path] = 0o666
		}
	}
	for _, file := range []string{"ca.key", "sa.key", "admin.key", "kubelet.kubeconfig"} {
		if open[dir.Sub("pki/"+file)] == 0 {
			t.Errorf("%s is not among the secrets", file)
		}
	}
	for path, mode := range open {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := newCluster(dir); err != nil {
		t.Fatal(err)
	}
	for path, mode := range open {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := st.Mode().Perm(), mode&0o700; got != want {
			t.Errorf("%s: mode %o, want %o", path, got, want)
		}
	}
	log, err := os.ReadFile(dir.Log())
	if err != nil || !strings.Contains(string(log), "others could read private keys") {
		t.Errorf("the log does not say so: %v", err)
	}
}

// TestRefusedStartKeepsWhatWasThere: keys of another server, copied into a new directory, and static pods outlive a
// start that fails.
func TestRefusedStartKeepsWhatWasThere(t *testing.T) {
	from := madeDir(t)
	dir := datadir.Dir(filepath.Join(t.TempDir(), "data"))
	copyKeys(t, from, dir)
	if err := os.MkdirAll(dir.Sub("manifests"), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := config(string(dir))
	c, err := New(config(string(from)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Sscanf(c.URL(), "https://127.0.0.1:%d", &cfg.Port); err != nil {
		t.Fatal(err)
	}
	if refused, err := New(cfg); err == nil {
		refused.Close()
		t.Fatal("the port is used, and New succeeds")
	}
	if got, want := pkiFiles(t, dir)["ca.key"], pkiFiles(t, from)["ca.key"]; got != want {
		t.Error("ca.key is not what was copied there")
	}
	if !datadir.Exists(dir.Sub("manifests")) {
		t.Error("the static pods are gone")
	}
}

// FuzzParseFingerprints: what is read is written again the same.
func FuzzParseFingerprints(f *testing.F) {
	sum := "sha256:" + strings.Repeat("0a", 32)
	f.Add([]byte("ca " + sum + "\nsa " + sum + "\n"))
	f.Add([]byte(credentials.NoFingerprints))
	f.Add([]byte("ca " + sum))
	f.Add([]byte("../ca " + sum + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := credentials.ParseFingerprints(b)
		if err != nil {
			return
		}
		again, err := credentials.ParseFingerprints(credentials.FormatFingerprints(m))
		if err != nil || !maps.Equal(m, again) {
			t.Errorf("%q: %v, then %v, %v", b, m, again, err)
		}
	})
}
