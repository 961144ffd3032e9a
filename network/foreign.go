// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// foreignChains are the chains of iptables-nft that firewalls set to policy drop, with the rules that the pods' links
// need there. A packet must be accepted by every base chain, not only by this network's.
func (n *Network) foreignChains() map[string][][]expr.Any {
	accept := []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	in := expr.MetaKeyIIFNAME
	out := expr.MetaKeyOIFNAME
	return map[string][][]expr.Any{
		"FORWARD": {
			append(linkNamed(in, n.bridge), accept...), append(linkNamed(out, n.bridge), accept...),
			append(linkPrefixed(in, n.linkPrefix()), accept...), append(linkPrefixed(out, n.linkPrefix()), accept...),
		},
		"INPUT": {append(linkNamed(in, n.bridge), accept...), append(linkPrefixed(in, n.linkPrefix()), accept...)},
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

// openForeignChains inserts rules at the start of chains that would drop the pods' packets. The caller holds nftMu.
func (n *Network) openForeignChains(k *kernel) error {
	dropping, err := n.foreignBaseChains(k)
	if err != nil {
		return err
	}
	for _, ch := range dropping {
		if ch.Policy == nil || *ch.Policy != nftables.ChainPolicyDrop {
			continue
		}
		if err := n.removeForeignRules(k, ch); err != nil {
			return err
		}
		for _, exprs := range slices.Backward(n.foreignChains()[ch.Name]) {
			k.nft.InsertRule(&nftables.Rule{
				Table:    ch.Table,
				Chain:    ch,
				Exprs:    exprs,
				UserData: n.mark(),
			})
		}
		if err := k.nft.Flush(); err != nil {
			return fmt.Errorf("open chain %s for the pod network: %w", ch.Name, err)
		}
		n.log.Info("opened a dropping firewall chain for the pod network", "table", ch.Table.Name, "chain", ch.Name)
	}
	return nil
}

// mark is the comment by which this network finds its rules again.
func (n *Network) mark() []byte {
	return append([]byte{0, byte(len(n.table) + 1)}, append([]byte(n.table), 0)...)
}

// foreignBaseChains lists the base chains of iptables-nft.
func (n *Network) foreignBaseChains(k *kernel) ([]*nftables.Chain, error) {
	var out []*nftables.Chain
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		chains, err := k.nft.ListChainsOfTableFamily(family)
		if err != nil && family == nftables.TableFamilyIPv6 {
			continue // the kernel does not have the family
		}
		if err != nil {
			return nil, fmt.Errorf("list nftables chains: %w", err)
		}
		for _, ch := range chains {
			if _, ours := n.foreignChains()[ch.Name]; ours && ch.Table != nil && ch.Table.Name == "filter" &&
				ch.Hooknum != nil {
				ch.Table.Family = family
				out = append(out, ch)
			}
		}
	}
	return out, nil
}

func (n *Network) removeForeignRules(k *kernel, ch *nftables.Chain) error {
	rules, err := k.nft.GetRules(ch.Table, ch)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list rules of chain %s: %w", ch.Name, err)
	}
	found := false
	for _, r := range rules {
		if string(r.UserData) != string(n.mark()) {
			continue
		}
		found = true
		if err := k.nft.DelRule(r); err != nil {
			return fmt.Errorf("delete rule of chain %s: %w", ch.Name, err)
		}
	}
	if !found {
		return nil
	}
	if err := k.nft.Flush(); err != nil {
		return fmt.Errorf("delete rules of chain %s: %w", ch.Name, err)
	}
	return nil
}
