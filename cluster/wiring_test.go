// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"keelson/cluster/datadir"
	"keelson/cluster/nodehost"
	"keelson/cluster/scheduling"
	"keelson/cluster/storage"
)

// TestServerOfANode: a node in a process of its own takes the address of its network towards the server, which its
// kubeconfig names, or that of its bootstrap token; a server on this machine, or one with a name, says nothing.
func TestServerOfANode(t *testing.T) {
	write := func(url string) string {
		c := clientcmdapi.NewConfig()
		c.Clusters["c"] = &clientcmdapi.Cluster{Server: url}
		c.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "abcdef.0123456789abcdef"}
		c.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
		c.CurrentContext = "x"
		file := filepath.Join(t.TempDir(), "kubeconfig")
		if err := clientcmd.WriteToFile(*c, file); err != nil {
			t.Fatal(err)
		}
		return file
	}
	none := filepath.Join(t.TempDir(), "none")
	for _, test := range []struct {
		kubeconfig, bootstrap, want string
	}{
		{write("https://192.0.2.1:6443"), none, "192.0.2.1"},
		{none, write("https://[2001:db8::1]:6443"), "2001:db8::1"},
		{write("https://192.0.2.1:6443"), write("https://192.0.2.2:6443"), "192.0.2.1"},
		{write("https://127.0.0.1:6443"), write("https://192.0.2.2:6443"), "192.0.2.2"},
		{write("https://api.test:6443"), none, ""},
		{none, none, ""},
	} {
		role := RoleConfig{DataDir: datadir.Dir(t.TempDir()), Kubeconfig: test.kubeconfig, Bootstrap: test.bootstrap}
		got := role.serverAt()
		if got.IsValid() != (test.want != "") || got.IsValid() && got.String() != test.want {
			t.Errorf("%s and %s: got %v, want %q", test.kubeconfig, test.bootstrap, got, test.want)
		}
	}
	role := RoleConfig{
		DataDir:    datadir.Dir(t.TempDir()),
		Kubeconfig: write("https://192.0.2.1:6443"),
		Bootstrap:  write("https://192.0.2.2:6443"),
	}
	for _, want := range []string{"https://192.0.2.1:6443", "https://192.0.2.2:6443"} {
		if got := role.knownServers(); !slices.Contains(got, want) {
			t.Errorf("the known servers are %q, want %s among them", got, want)
		}
	}
}

// TestClusterRanges: a node knows the cluster's pod addresses by --cluster-cidr, by the server in its process, or by
// its own range, when that is of the default.
func TestClusterRanges(t *testing.T) {
	other := []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16")}
	part := netip.PrefixFrom(nodehost.DefaultClusterCIDR.Addr(), 24)
	known := Config{PodCIDRs: other}
	known.Controllers.PodRanges.Cluster = other
	for name, test := range map[string]struct {
		config     Config
		serverHere bool
		want       []netip.Prefix
	}{
		"--cluster-cidr":     {known, true, other},
		"the server is here": {Config{}, true, []netip.Prefix{nodehost.DefaultClusterCIDR}},
		"part of the usual":  {Config{PodCIDRs: []netip.Prefix{part}}, false, []netip.Prefix{nodehost.DefaultClusterCIDR}},
		"another range":      {Config{PodCIDRs: other}, false, nil},
	} {
		if got := test.config.clusterRanges(test.serverHere); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

// TestAgentsHere: an agent certainly runs in a process that is the whole control plane, unless a flag leaves it out.
func TestAgentsHere(t *testing.T) {
	etcd := storage.Config{Servers: []string{"http://127.0.0.1:2379"}}
	for name, test := range map[string]struct {
		config                 Config
		controllers, scheduler bool
	}{
		"up":                {Config{}, true, true},
		"no scheduler":      {Config{Options: Options{Without: []string{schedulerChoice}}}, true, false},
		"others on an etcd": {Config{Etcd: etcd}, false, false},
		"API server alone":  {Config{NoAgents: true}, false, false},
	} {
		got := (&Cluster{cfg: test.config}).agentsHere()
		if got[controllersLease] != test.controllers || got[scheduling.Lease] != test.scheduler {
			t.Errorf("%s: got %v, want controllers %t, scheduler %t", name, got, test.controllers, test.scheduler)
		}
	}
}

// TestStepsOf: an agent's marks are taken from its user, and from its service account next to a kubelet.
func TestStepsOf(t *testing.T) {
	got := stepsOf(table())
	for _, user := range []string{
		"system:kube-controller-manager",
		"system:kube-scheduler",
		"system:kube-proxy",
		"system:serviceaccount:kube-system:keelson-proxy",
		"system:serviceaccount:kube-system:keelson-dns",
	} {
		if len(got[user]) == 0 {
			t.Errorf("%s may send no marks: %v", user, got)
		}
	}
}
