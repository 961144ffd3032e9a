// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"keelson/pki"
)

// TestTunnelModes: what is not there is refused in words, not taken for something else.
func TestTunnelModes(t *testing.T) {
	var m tunnelMode
	for text, want := range map[string]string{
		"auto": "", "vxlan": "", "none": "",
		"wireguard": "there is no WireGuard yet: the tunnel is VXLAN, which encrypts nothing; give one of [auto vxlan none]",
		"gre":       `"gre" is none of [auto vxlan none]`,
	} {
		got := ""
		if err := m.Set(text); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("--tunnel=%s: %q, want %q", text, got, want)
		}
	}
}

// TestNetworkIdentityOfAJoinedNode: the tunnel's number and ends follow from it, so that with another one no packet of the server's node arrives.
func TestNetworkIdentityOfAJoinedNode(t *testing.T) {
	identities := map[string]bool{}
	for range 2 {
		ca, err := pki.Open(t.TempDir(), "ca")
		if err != nil {
			t.Fatal(err)
		}
		server := &site{signers: signers{rootCA: ca.CertPEM()}}
		c := clientcmdapi.NewConfig()
		c.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1", CertificateAuthorityData: ca.CertPEM()}
		c.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "abcdef.0123456789abcdef"}
		c.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
		c.CurrentContext = "x"
		file := filepath.Join(t.TempDir(), "bootstrap")
		if err := clientcmd.WriteToFile(*c, file); err != nil {
			t.Fatal(err)
		}
		dir := DataDir(t.TempDir())
		got, err := RoleConfig{Bootstrap: file, DataDir: dir}.kubeletCertificates(Config{NodeName: "n"}, dir)
		if err != nil {
			t.Fatal(err)
		}
		node := RoleConfig{DataDir: dir}.nodeSite(Config{NodeName: "n"}, dir, got)
		if s, n := server.networkIdentity(), node.networkIdentity(); s != n {
			t.Errorf("the server's node says %s, the joined one %s", s, n)
		}
		identities[node.networkIdentity()] = true
	}
	if len(identities) != 2 {
		t.Errorf("two clusters have the same: %v", identities)
	}
}
