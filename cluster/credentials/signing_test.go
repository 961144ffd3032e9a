// SPDX-License-Identifier: Apache-2.0

package credentials

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	certv1 "k8s.io/api/certificates/v1"

	"keelson/cluster/datadir"
	"keelson/cluster/flags"
	"keelson/controllers/certificates"
	"keelson/controllers/framework"
	"keelson/pki"
)

// TestSigningFlags: which signers sign by which authority, and what is refused.
func TestSigningFlags(t *testing.T) {
	dir := t.TempDir()
	one, err := pki.Open(dir, "one")
	if err != nil {
		t.Fatal(err)
	}
	two, err := pki.Open(dir, "two")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := one.Client("jane", pki.Subject{Name: "jane"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args  string
		signs map[string]*pki.Authority
		wrong string
	}{
		{args: ""},
		{
			args: "--cluster-signing-cert-file=one.crt --cluster-signing-key-file=one.key",
			signs: map[string]*pki.Authority{
				certv1.KubeletServingSignerName:             one,
				certv1.KubeAPIServerClientKubeletSignerName: one,
				certv1.KubeAPIServerClientSignerName:        one,
				certificates.LegacyUnknown:                  one,
			},
		},
		{
			args: "--cluster-signing-kubelet-serving-cert-file=one.crt " +
				"--cluster-signing-kubelet-serving-key-file=one.key " +
				"--cluster-signing-kubelet-client-cert-file=two.crt --cluster-signing-kubelet-client-key-file=two.key",
			signs: map[string]*pki.Authority{
				certv1.KubeletServingSignerName:             one,
				certv1.KubeAPIServerClientKubeletSignerName: two,
			},
		},
		{
			args: "--cluster-signing-kube-apiserver-client-cert-file=two.crt " +
				"--cluster-signing-kube-apiserver-client-key-file=two.key " +
				"--cluster-signing-legacy-unknown-cert-file=one.crt --cluster-signing-legacy-unknown-key-file=one.key",
			signs: map[string]*pki.Authority{
				certv1.KubeAPIServerClientSignerName: two,
				certificates.LegacyUnknown:           one,
			},
		},
		{
			args:  "--cluster-signing-cert-file=one.crt",
			wrong: "--cluster-signing-cert-file and --cluster-signing-key-file must be given together",
		},
		{args: "--cluster-signing-cert-file=no.crt --cluster-signing-key-file=one.key", wrong: "no.crt: no such file"},
		{
			args:  "--cluster-signing-cert-file=one.crt --cluster-signing-key-file=two.key",
			wrong: "private key does not match public key",
		},
		{
			args: "--cluster-signing-legacy-unknown-cert-file=jane.crt " +
				"--cluster-signing-legacy-unknown-key-file=jane.key",
			wrong: `is the certificate of "jane", not of an authority`,
		},
		{
			args: "--cluster-signing-cert-file=one.crt --cluster-signing-key-file=one.key " +
				"--cluster-signing-kubelet-client-cert-file=two.crt --cluster-signing-kubelet-client-key-file=two.key",
			wrong: "--cluster-signing-cert-file is for all signers, --cluster-signing-kubelet-client-cert-file for " +
				"one: give the one or the other",
		},
	} {
		var signing Signing
		fl := pflag.NewFlagSet("", pflag.ContinueOnError)
		flags.Add(fl, signing.Rows())
		if err := fl.Parse(strings.Fields(strings.ReplaceAll(c.args, "-file=", "-file="+dir+"/"))); err != nil {
			t.Fatal(err)
		}
		err := signing.Validate()
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %v, want %q", c.args, err, c.wrong)
		}
		if c.wrong != "" {
			continue
		}
		got := signing.authorities()
		if a, b := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(c.signs)); !slices.Equal(a, b) {
			t.Errorf("%s: %v sign, want %v", c.args, a, b)
		}
		for signer, open := range got {
			if ca, err := open(); err != nil || !bytes.Equal(ca.CertPEM(), c.signs[signer].CertPEM()) {
				t.Errorf("%s: %s signs by another authority, %v", c.args, signer, err)
			}
		}
	}
}

// TestSigningFollowsTheFiles: an authority that was replaced signs the next certificate; no restart is needed.
func TestSigningFollowsTheFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"old", "new"} {
		if _, err := pki.Open(dir, name); err != nil {
			t.Fatal(err)
		}
	}
	o := Signing{All: AuthorityFiles{Cert: filepath.Join(dir, "old.crt"), Key: filepath.Join(dir, "old.key")}}
	open := o.authorities()[certv1.KubeletServingSignerName]
	before, err := open()
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []string{".crt", ".key"} {
		if err := os.Rename(filepath.Join(dir, "new"+end), filepath.Join(dir, "old"+end)); err != nil {
			t.Fatal(err)
		}
	}
	after, err := open()
	if err != nil || bytes.Equal(before.CertPEM(), after.CertPEM()) {
		t.Errorf("signs by the old authority still, %v", err)
	}
}

// TestRootCAFile: pods trust what the flag names, else what the kubeconfig trusts.
func TestRootCAFile(t *testing.T) {
	dir := t.TempDir()
	ca, err := pki.Open(dir, "root")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ file, want, wrong string }{
		{"", "of the kubeconfig", ""},
		{filepath.Join(dir, "root.crt"), string(ca.CertPEM()), ""},
		{filepath.Join(dir, "none"), "", "--root-ca-file: open "},
		{filepath.Join(dir, "root.key"), "", "it holds no certificate"},
	} {
		signers, err := Signing{RootCAFile: c.file}.Signers(datadir.Dir(filepath.Join(dir, "cluster")),
			framework.FixedBundle([]byte("of the kubeconfig")))
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: %v, want %s", c.file, err, c.wrong)
			}
			continue
		}
		if err != nil || string(signers.RootCA.PEM()) != c.want {
			t.Errorf("%s: %s, %v", c.file, signers.RootCA.PEM(), err)
		}
	}
	if _, err := (Signing{TokenKeyFile: "/nope"}).Signers(datadir.Dir(dir),
		framework.FixedBundle(nil)); err == nil || !strings.HasPrefix(err.Error(), "--service-account-private-key-file: ") {
		t.Errorf("a key that is not there: %v", err)
	}
}
