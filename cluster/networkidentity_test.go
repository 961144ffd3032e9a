// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"log/slog"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/cluster/noderoles"
	"keelson/pki"
)

// TestNetworkIdentityOfAJoinedNode: the tunnel's number and ends follow from it, so that with another one no packet of
// the server's node arrives.
func TestNetworkIdentityOfAJoinedNode(t *testing.T) {
	identities := map[string]bool{}
	for range 2 {
		ca, err := pki.Open(t.TempDir(), "ca")
		if err != nil {
			t.Fatal(err)
		}
		server := shared{signers: credentials.Signers{RootCA: ca.Bundle}, log: slog.New(slog.DiscardHandler)}
		c := clientcmdapi.NewConfig()
		c.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1", CertificateAuthorityData: ca.CertPEM()}
		c.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "abcdef.0123456789abcdef"}
		c.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
		c.CurrentContext = "x"
		file := filepath.Join(t.TempDir(), "bootstrap")
		if err := clientcmd.WriteToFile(*c, file); err != nil {
			t.Fatal(err)
		}
		dir := datadir.Dir(t.TempDir())
		got, err := RoleConfig{Bootstrap: file, DataDir: dir}.kubelet(Config{NodeName: "n"}, dir).Certificates()
		if err != nil {
			t.Fatal(err)
		}
		joined := nodeProcess{RoleConfig: RoleConfig{DataDir: dir}, dir: dir}
		var said []string
		for _, s := range []shared{server, joined.shared(Config{NodeName: "n"}, got, nil, nil)} {
			node, err := s.newNode(noderoles.Process{}, false, func(string) bool { return false })
			if err != nil {
				t.Fatal(err)
			}
			said = append(said, node.NetworkIdentity())
		}
		if said[0] != said[1] {
			t.Errorf("the server's node says %s, the joined one %s", said[0], said[1])
		}
		identities[said[0]] = true
	}
	if len(identities) != 2 {
		t.Errorf("two clusters have the same: %v", identities)
	}
}
