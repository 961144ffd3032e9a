// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"

	"keelson/network/nft"
	"keelson/proxy/services"
)

// ClearWay deletes the frontends of Services that stand between this machine and API servers from the rules that
// earlier processes left. Without it a proxy that cannot reach the API server could not replace them. Nothing that is
// missing is an error.
func ClearWay(netNS int, servers []netip.AddrPort) error {
	tables, err := nft.Tables(netNS, "keelson-", "-svc")
	if err != nil {
		return err
	}
	for _, name := range tables {
		if err := nft.Withdraw(netNS, services.Fronts(name, servers)); err != nil {
			return err
		}
	}
	return nil
}
