// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// foreignChains are the base chains of iptables-nft, which firewalls set to policy drop. A packet must be accepted by
// every base chain, not only by this network's. tables.mu guards it.
type foreignChains struct {
	nft   *nftables.Conn
	names names
	log   *slog.Logger
}

// accepting returns the rules that the pods' links need, by the chain's name.
func (c *foreignChains) accepting() map[string][][]expr.Any {
	accept := verdict(expr.VerdictAccept)
	bridge := func(key expr.MetaKey) []expr.Any { return append(linkNamed(key, c.names.bridge), accept...) }
	pods := func(key expr.MetaKey) []expr.Any { return append(linkPrefixed(key, c.names.linkPrefix), accept...) }
	in := expr.MetaKeyIIFNAME
	out := expr.MetaKeyOIFNAME
	return map[string][][]expr.Any{
		"FORWARD": {bridge(in), bridge(out), pods(in), pods(out)},
		"INPUT":   {bridge(in), pods(in)},
	}
}

// linkNamed and linkPrefixed match links as iptables does for -i NAME and -i PREFIX+, so that iptables can list the
// chain.
func linkNamed(key expr.MetaKey, name string) []expr.Any {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return []expr.Any{&expr.Meta{Key: key, Register: reg1}, &expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: b}}
}

func linkPrefixed(key expr.MetaKey, prefix string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: reg1}, &expr.Cmp{
		Op:       expr.CmpOpEq,
		Register: reg1,
		Data:     []byte(prefix),
	}}
}

// open inserts rules at the start of chains that would drop the pods' packets.
func (c *foreignChains) open() error {
	dropping, err := c.list()
	if err != nil {
		return err
	}
	for _, ch := range dropping {
		if ch.Policy == nil || *ch.Policy != nftables.ChainPolicyDrop {
			continue
		}
		if err := c.removeRules(ch); err != nil {
			return err
		}
		for _, exprs := range slices.Backward(c.accepting()[ch.Name]) {
			c.nft.InsertRule(&nftables.Rule{
				Table:    ch.Table,
				Chain:    ch,
				Exprs:    exprs,
				UserData: c.names.mark(),
			})
		}
		if err := c.nft.Flush(); err != nil {
			return fmt.Errorf("open chain %s for the pod network: %w", ch.Name, err)
		}
		c.log.Info("opened a dropping firewall chain for the pod network", "table", ch.Table.Name, "chain", ch.Name)
	}
	return nil
}

func (c *foreignChains) list() ([]*nftables.Chain, error) {
	var out []*nftables.Chain
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		chains, err := c.nft.ListChainsOfTableFamily(family)
		if err != nil && family == nftables.TableFamilyIPv6 {
			continue // the kernel does not have the family
		}
		if err != nil {
			return nil, fmt.Errorf("list nftables chains: %w", err)
		}
		for _, ch := range chains {
			if _, ours := c.accepting()[ch.Name]; ours && ch.Table != nil && ch.Table.Name == "filter" &&
				ch.Hooknum != nil {
				ch.Table.Family = family
				out = append(out, ch)
			}
		}
	}
	return out, nil
}

func (c *foreignChains) removeRules(ch *nftables.Chain) error {
	rules, err := c.nft.GetRules(ch.Table, ch)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list rules of chain %s: %w", ch.Name, err)
	}
	found := false
	for _, r := range rules {
		if string(r.UserData) != string(c.names.mark()) {
			continue
		}
		found = true
		if err := c.nft.DelRule(r); err != nil {
			return fmt.Errorf("delete rule of chain %s: %w", ch.Name, err)
		}
	}
	if !found {
		return nil
	}
	if err := c.nft.Flush(); err != nil {
		return fmt.Errorf("delete rules of chain %s: %w", ch.Name, err)
	}
	return nil
}
