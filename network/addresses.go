// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net/netip"
)

// addresses are the pods' addresses in use, by whom. leases.mu guards it.
type addresses struct {
	families families
	users    map[netip.Addr]string // a sandbox id, or a link that is still to be deleted
	newest   []netip.Addr          // the last leased address, by index of the family
}

func newAddresses(families families) addresses {
	return addresses{
		families: families,
		users:    map[netip.Addr]string{},
		newest:   make([]netip.Addr, len(families)),
	}
}

var errNoAddress = errors.New("no free address")

// pick finds a free address of each family.
func (a *addresses) pick() ([]netip.Addr, error) {
	var out []netip.Addr
	for i, f := range a.families {
		addr, err := a.next(f, a.newest[i])
		if err != nil {
			return nil, err
		}
		out = append(out, addr)
	}
	return out, nil
}

// next finds the next free address after the last one, so that an address is reused as late as possible.
func (a *addresses) next(f family, last netip.Addr) (netip.Addr, error) {
	start := last
	if !usable(f.pods, start) {
		start = f.gateway
	}
	for addr := start; ; {
		addr = addr.Next()
		if !f.pods.Contains(addr) {
			addr = f.gateway
		}
		if _, taken := a.users[addr]; !taken && usable(f.pods, addr) {
			return addr, nil
		}
		if addr == start {
			return netip.Addr{}, fmt.Errorf("%w in %s: %d are in use", errNoAddress, f.pods, len(a.users))
		}
	}
}

// handedOut records the addresses of the newest lease.
func (a *addresses) handedOut(addrs []netip.Addr) {
	for i, f := range a.families {
		for _, addr := range addrs {
			if f.pods.Contains(addr) {
				a.newest[i] = addr
			}
		}
	}
}

func (a *addresses) checkFree(addrs []netip.Addr) error {
	for _, addr := range addrs {
		if user, taken := a.users[addr]; taken {
			return fmt.Errorf("address %s belongs to %s", addr, user)
		}
	}
	return nil
}

func (a *addresses) give(addrs []netip.Addr, user string) {
	for _, addr := range addrs {
		a.users[addr] = user
	}
}

// takeBack frees those of the addresses that the user has.
func (a *addresses) takeBack(addrs []netip.Addr, user string) {
	for _, addr := range addrs {
		if a.users[addr] == user {
			delete(a.users, addr)
		}
	}
}

// usable excludes the network address, the gateway and, for IPv4, the broadcast address.
func usable(cidr netip.Prefix, a netip.Addr) bool {
	if !cidr.Contains(a) || a == cidr.Addr() || a == cidr.Addr().Next() {
		return false
	}
	return a.Is6() || cidr.Contains(a.Next())
}
