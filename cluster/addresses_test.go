// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"keelson/auth"
)

// TestKeysOfConfig: certificates are for the names and addresses by which a server is reached, and for the users of the
// roles that have a kubeconfig.
func TestKeysOfConfig(t *testing.T) {
	cfg := Default()
	cfg.NodeName = "n1"
	cfg.Listen.Names = []string{"api.example.com", "192.0.2.7"}
	cfg.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.44.3.0/24")}
	cfg.keptServices = []netip.Prefix{netip.MustParsePrefix("10.90.0.0/16")}
	got, err := cfg.keys()
	if err != nil {
		t.Fatal(err)
	}
	if got.NodeName != "n1" || !slices.Equal(got.ServerNames, []string{"api.example.com"}) || got.API == nil {
		t.Errorf("node %q, names %v", got.NodeName, got.ServerNames)
	}
	// by loopback, from pods, as the Service kubernetes of the first start and of now, and by --tls-san
	for _, want := range []string{"127.0.0.1", "::1", "10.44.3.1", "10.90.0.1", "10.96.0.1", "192.0.2.7"} {
		if !slices.ContainsFunc(got.ServerIPs, net.ParseIP(want).Equal) {
			t.Errorf("the server's certificate lacks %s: %v", want, got.ServerIPs)
		}
	}
	users := map[string]*auth.User{}
	for _, a := range got.Agents {
		users[a.File] = a.User
	}
	if users["kubelet"] == nil || users["kubelet"].Name != "system:node:n1" ||
		!slices.Contains(users["kubelet"].Groups, auth.Nodes) {
		t.Errorf("the kubelet's user is %+v", users["kubelet"])
	}
	for _, r := range table() {
		if (r.file != "") != (users[r.file] != nil) {
			t.Errorf("role %s with the kubeconfig %q: user %+v", r.name, r.file, users[r.file])
		}
	}
}
