// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"fmt"
	"net/netip"
	"testing"

	"keelson/network"
	"keelson/network/nettest"
	"keelson/network/nft"
)

// TestSharedServices: a cluster finds others on its machine that serve addresses of its Services' ranges.
func TestSharedServices(t *testing.T) {
	m := nettest.New(t, "machine")
	m.Must(func() error {
		for name, ip := range map[string]string{
			"keelson-own-svc":   "10.96.0.1",
			"keelson-same-svc":  "10.96.0.10",
			"keelson-other-svc": "10.97.0.1",
			"svc":               "10.96.0.1",
		} {
			writer, err := nft.Open(nft.Config{Name: name})
			if err != nil {
				return err
			}
			table := nft.NewTable(name)
			table.AddSet(nft.Set{Name: "cluster-ips4", Key: []nft.Type{nft.IPv4}})
			table.AddSet(nft.Set{Name: "cluster-ips6", Key: []nft.Type{nft.IPv6}})
			table.Put("cluster-ips4", nft.Addr(netip.MustParseAddr(ip)), "")
			if name == "keelson-other-svc" {
				table.Put("cluster-ips6", nft.Addr(netip.MustParseAddr("fd00:96::1")), "")
			}
			if err := writer.Write(table); err != nil {
				return err
			}
			if err := writer.Close(); err != nil {
				return err
			}
		}
		for ranges, want := range map[string]string{
			"10.96.0.0/16":  "[keelson-same-svc]",
			"10.98.0.0/16":  "[]",
			"fd00:96::/112": "[keelson-other-svc]",
		} {
			got, err := network.SharedServices("own", []netip.Prefix{netip.MustParsePrefix(ranges)})
			if err != nil || fmt.Sprint(got) != want {
				t.Errorf("%s: %v, %v, want %s", ranges, got, err, want)
			}
		}
		return nil
	})
}
