// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// SharedServices returns the Service tables of other clusters on this machine with cluster IPs in the ranges:
// connections of the machine itself to such an IP reach one of the clusters only. id is this cluster's. It changes
// nothing.
func SharedServices(id string, ranges []netip.Prefix) ([]string, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open a socket to nftables: %w", err)
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w", err)
	}
	var out []string
	for _, t := range tables {
		if t.Name == "keelson-"+id+"-svc" || !strings.HasPrefix(t.Name, "keelson-") ||
			!strings.HasSuffix(t.Name, "-svc") {
			continue
		}
		shared, err := serves(conn, t, ranges)
		if err != nil {
			return out, err
		}
		if shared {
			out = append(out, t.Name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// serves reports whether a table of the proxy has a cluster IP in the ranges.
func serves(conn *nftables.Conn, t *nftables.Table, ranges []netip.Prefix) (bool, error) {
	for name, typ := range map[string]nftables.SetDatatype{
		"cluster-ips4": nftables.TypeIPAddr,
		"cluster-ips6": nftables.TypeIP6Addr,
	} {
		els, err := conn.GetSetElements(&nftables.Set{Table: t, Name: name, KeyType: typ})
		if errors.Is(err, unix.ENOENT) {
			continue // it was just deleted
		}
		if err != nil {
			return false, fmt.Errorf("list nftables set %s of %s: %w", name, t.Name, err)
		}
		for _, e := range els {
			a, ok := netip.AddrFromSlice(e.Key)
			if ok && slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) }) {
				return true, nil
			}
		}
	}
	return false, nil
}
