// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"keelson/api/networking/wireguard"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/cluster/nodehost"
	"keelson/controllers/framework"
	"keelson/network/mesh"
	"keelson/pki"
	"keelson/podroutes"
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
		server := &site{signers: credentials.Signers{RootCA: ca.Bundle}}
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

// TestWireGuardKey: a node has one key for life, which only it can read; the annotations of the other tunnel go.
func TestWireGuardKey(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	s := &site{
		dir:     dir,
		cfg:     Config{NodeName: "n", Options: Options{PodRoutes: nodehost.PodRouteOptions{Mode: mesh.WireGuard}}},
		signers: credentials.Signers{RootCA: framework.FixedBundle([]byte("ca"))},
	}
	first, err := s.tunnelAnnotations()
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(dir.Sub(datadir.WireGuardKeyFile)); err != nil || fi.Mode() != 0o600 {
		t.Errorf("the key's file: %v, %v, want 0600", fi, err)
	}
	key, err := nodehost.WireGuardKey(dir)
	if err != nil || first[wireguard.AnnotationKey] != key.PublicKey().String() ||
		strings.Contains(fmt.Sprint(first), key.String()) {
		t.Errorf("the node says %v, its public key is %s (%v)", first, key.PublicKey(), err)
	}
	if first[wireguard.AnnotationPort] != "51820" || first[podroutes.AnnotationVTEP] != "" {
		t.Errorf("the node says %v, want port 51820 and no VTEP", first)
	}
	s.cfg.PodRoutes.Mode = mesh.Auto
	if plain, err := s.tunnelAnnotations(); err != nil || plain[wireguard.AnnotationKey] != "" ||
		plain[podroutes.AnnotationVTEP] == "" {
		t.Errorf("without WireGuard the node says %v, %v", plain, err)
	}
	for _, damaged := range []string{"", "AAAA", strings.Repeat("A", 43) + "="} {
		if err := os.WriteFile(dir.Sub(datadir.WireGuardKeyFile), []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := nodehost.WireGuardKey(dir); err == nil || !strings.Contains(err.Error(), "delete it") {
			t.Errorf("a key %q: %v, want an error that says what to do", damaged, err)
		}
	}
	if err := (nodehost.PodRouteOptions{Mode: mesh.WireGuard}).Validate(
		Config{Options: Options{CNI: nodehost.CNIOptions{On: true}}}.foreignNetwork()); err == nil {
		t.Error("--tunnel=wireguard and --cni: want a refusal, as nothing would be encrypted")
	}
}
