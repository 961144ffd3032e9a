// SPDX-License-Identifier: Apache-2.0

package noderoles

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"keelson/api/networking/wireguard"
	"keelson/cluster/datadir"
	"keelson/cluster/nodehost"
	"keelson/controllers/framework"
	"keelson/network/mesh"
	"keelson/podroutes"
)

// TestWireGuardKey: a node has one key for life, which only it can read; the annotations of the other tunnel go.
func TestWireGuardKey(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	node := &Node{Config: Config{
		Dir:      dir,
		NodeName: "n",
		Options:  Options{PodRoutes: nodehost.PodRouteOptions{Mode: mesh.WireGuard}},
		RootCA:   framework.FixedBundle([]byte("ca")),
	}}
	first, err := node.tunnelAnnotations()
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
	node.PodRoutes.Mode = mesh.Auto
	if plain, err := node.tunnelAnnotations(); err != nil || plain[wireguard.AnnotationKey] != "" ||
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
	if err := (nodehost.PodRouteOptions{Mode: mesh.WireGuard}).Validate(true); err == nil {
		t.Error("--tunnel=wireguard and --cni: want a refusal, as nothing would be encrypted")
	}
}
