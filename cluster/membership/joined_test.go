// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"bytes"
	"crypto/x509"
	"log/slog"
	"path/filepath"
	"testing"

	"keelson/client/servers"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/pki"
)

// TestNodeFollowsRenewedAuthority: a joined node trusts a renewed authority and a new key that the old one vouches for.
func TestNodeFollowsRenewedAuthority(t *testing.T) {
	dir := t.TempDir()
	ca, err := pki.Open(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	known := ca.CertPEM()
	path := filepath.Join(t.TempDir(), "kubelet.kubeconfig")
	pair, err := ca.Client("node", pki.Subject{Name: "system:node:one"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := pki.Kubeconfig("kubelet", "https://127.0.0.1:6443", "", known, pair)
	if err != nil {
		t.Fatal(err)
	}
	if err := pki.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.Renew(dir, []string{"ca"}, nil); err != nil {
		t.Fatal(err)
	}
	renewed, err := pki.Open(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.Open(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []func(string, string) error{pki.Trust, pki.Use} {
		if err := step(dir, "ca"); err != nil {
			t.Fatal(err)
		}
	}
	rotated, err := pki.Open(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	var preferred []*x509.Certificate
	node := &Joined{
		dir:        datadir.Dir(t.TempDir()),
		kubeconfig: path,
		ca:         credentials.NewBundle(known),
		servers:    servers.New(servers.Config{}),
		prefer:     func(certs []*x509.Certificate) { preferred = certs },
		log:        slog.New(slog.DiscardHandler),
	}
	for _, step := range []struct{ ca, cross, want []byte }{
		{nil, nil, known},
		{other.CertPEM(), nil, known},
		{append(bytes.Clone(known), other.CertPEM()...), rotated.CrossPEM(), known},
		{renewed.CertPEM(), nil, renewed.CertPEM()},
		{rotated.CertPEM(), nil, renewed.CertPEM()}, // a key without the word of the old one
		{rotated.CertPEM(), rotated.CrossPEM(), rotated.CertPEM()},
	} {
		if err := node.follow(map[string]string{"ca.crt": string(step.ca), credentials.CrossKey: string(step.cross)}); err != nil {
			t.Fatal(err)
		}
		to, err := LoadKubeconfig(path)
		if err != nil {
			t.Fatal(err)
		}
		if now, _ := node.ca.Get(); !bytes.Equal(to.CAData, step.want) || !bytes.Equal(now, step.want) {
			t.Errorf("after\n%s\nthe node trusts\n%s\nwant\n%s", step.ca, to.CAData, step.want)
		}
	}
	signer, _ := rotated.Signer()
	if len(preferred) < 2 || !preferred[0].Equal(signer) {
		t.Errorf("certificates of the previous key are not requested again: %d CAs", len(preferred))
	}
}
