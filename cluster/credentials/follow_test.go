// SPDX-License-Identifier: Apache-2.0

package credentials

import (
	"log/slog"
	"path/filepath"
	"testing"

	"keelson/client/servers"
	"keelson/pki"
)

// TestKubeconfigWithoutCA: a server whose certificate the machine's CAs verify takes client certificates, too.
func TestKubeconfigWithoutCA(t *testing.T) {
	ca, err := pki.Open(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Client("role", pki.Subject{Name: "role"})
	if err != nil {
		t.Fatal(err)
	}
	const url = "https://api.example.com"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text, err := pki.Kubeconfig("role", url, "", nil, pair)
	if err != nil {
		t.Fatal(err)
	}
	if err := pki.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	kept, err := FollowKubeconfig(path, servers.New(servers.Config{Given: url}), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if kept.REST.Host != url || kept.REST.Transport == nil {
		t.Errorf("got a client of %q by %T", kept.REST.Host, kept.REST.Transport)
	}
}
