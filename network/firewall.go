// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"strings"

	"github.com/google/nftables"
)

// Firewall is a base chain of another program with policy drop through which the pods' packets pass.
type Firewall struct {
	Family, Table, Chain string
	// Opened: rules that accept the pods' links are at its start.
	Opened bool
	links  string // the links that have to be accepted
}

// String describes the chain and what an administrator can do.
func (f Firewall) String() string {
	chain := fmt.Sprintf("chain %s of table %s %s drops by policy", f.Chain, f.Family, f.Table)
	switch {
	case f.Opened:
		return chain + "; it is opened for pods"
	case iptables(f.Table, f.Chain):
		return chain + ", also pods' packets: its rules were replaced after Keelson started; restart Keelson"
	}
	return chain + ", also pods' packets unless one of its rules accepts them: accept packets from and to the links " +
		f.links
}

// iptables reports whether a chain is one of those that Run opens.
func iptables(table, chain string) bool {
	return table == "filter" && (chain == "FORWARD" || chain == "INPUT")
}

// Firewalls lists the firewalls that affect the cluster with the id. It changes nothing.
func Firewalls(id string) ([]Firewall, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open a socket to nftables: %w", err)
	}
	names := namesOf(id)
	var out []Firewall
	for _, family := range []struct {
		name string
		is   nftables.TableFamily
	}{{"ip", nftables.TableFamilyIPv4}, {"ip6", nftables.TableFamilyIPv6}, {"inet", nftables.TableFamilyINet}} {
		chains, err := conn.ListChainsOfTableFamily(family.is)
		if err != nil {
			return out, fmt.Errorf("list nftables chains: %w", err)
		}
		for _, ch := range chains {
			if ch.Table == nil || strings.HasPrefix(ch.Table.Name, "keelson-") || ch.Policy == nil ||
				*ch.Policy != nftables.ChainPolicyDrop || !affectsPods(ch) {
				continue
			}
			firewall := Firewall{
				Family: family.name,
				Table:  ch.Table.Name,
				Chain:  ch.Name,
				links:  names.linkPrefix + "* and " + names.bridge,
			}
			ch.Table.Family = family.is
			rules, err := conn.GetRules(ch.Table, ch)
			if err != nil {
				return out, fmt.Errorf("list rules of chain %s: %w", ch.Name, err)
			}
			for _, r := range rules {
				firewall.Opened = firewall.Opened || string(r.UserData) == string(names.mark())
			}
			out = append(out, firewall)
		}
	}
	return out, nil
}

func affectsPods(ch *nftables.Chain) bool {
	return ch.Hooknum != nil && (*ch.Hooknum == *nftables.ChainHookForward || *ch.Hooknum == *nftables.ChainHookInput)
}
