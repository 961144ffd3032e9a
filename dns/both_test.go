// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/cluster/clustertest"
	"keelson/dns"
)

// TestBothFamilies: with two IP families the service has an address of each, and the node a slice for each, at the same
// port.
func TestBothFamilies(t *testing.T) {
	var cfg clustertest.Config
	cfg.Services.ClusterIPRange = "10.96.0.0/16,fd00:96::/108"
	cluster := clustertest.Start(t, cfg)
	if _, err := cluster.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	server, err := dns.New(dns.Config{ // addresses that this machine need not have
		Client:    cluster.Client,
		NodeName:  "n",
		Listen:    netip.MustParseAddrPort("198.18.77.1:0"),
		Second:    netip.MustParseAddr("2001:db8:77::1"),
		ServiceIP: netip.MustParseAddr("10.96.0.10"),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx, func() {}) }() // ends with ctx
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	clustertest.Eventually(t, "a service and two slices", 30*time.Second, func() (bool, error) {
		svc, err := cluster.CoreV1().Services(metav1.NamespaceSystem).Get(t.Context(), dns.Service, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		slices := cluster.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem)
		four, err := slices.Get(t.Context(), "kube-dns-n", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		six, err := slices.Get(t.Context(), "kube-dns6-n", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		got := fmt.Sprintf("%d %s %s %s %s %s %t", len(svc.Spec.ClusterIPs), svc.Spec.ClusterIP, four.AddressType,
			four.Endpoints[0].Addresses, six.AddressType, six.Endpoints[0].Addresses,
			*four.Ports[0].Port == *six.Ports[0].Port)
		if want := "2 10.96.0.10 IPv4 [198.18.77.1] IPv6 [2001:db8:77::1] true"; got != want {
			return false, fmt.Errorf("got %s, want %s", got, want)
		}
		return true, nil
	})
}
