// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Purge removes everything of this network in the kernel and on disk: pods' links, bridge, rules and leases. It
// restores the forwarding settings. Attached pods lose their network. Run must not be running; nothing need exist.
func (n *Network) Purge(_ context.Context) error {
	k, err := openKernel()
	if err != nil {
		return err
	}
	defer k.close()
	return errors.Join(n.purgeLinks(k), n.purgeRules(k), n.settings.restore(), n.removeLeases())
}

func (n *Network) purgeLinks(k *kernel) error {
	n.mu.Lock()
	names := n.waiting
	n.waiting = nil
	for _, l := range n.leases {
		names = append(names, l.Link)
	}
	clear(n.going)
	n.mu.Unlock()
	bridge, err := k.rt.LinkByName(n.bridge)
	if err != nil && !isNoLink(err) {
		return fmt.Errorf("find bridge %s: %w", n.bridge, err)
	}
	if err == nil {
		k.bridge = bridge.Attrs().Index
	}
	more, err := n.links(k)
	if err != nil {
		return err
	}
	names = append(names, more...)
	var errs []error
	for _, name := range names {
		errs = append(errs, k.remove(name))
	}
	return errors.Join(append(errs, k.remove(n.bridge))...)
}

func (n *Network) purgeRules(k *kernel) error {
	k.nftMu.Lock()
	defer k.nftMu.Unlock()
	chains, err := n.foreignBaseChains(k)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil // without nftables there are no rules
	}
	if err != nil {
		return err
	}
	for _, ch := range chains {
		if err := n.removeForeignRules(k, ch); err != nil {
			return err
		}
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		t := k.nft.AddTable(&nftables.Table{Name: n.table, Family: family})
		k.nft.DelTable(t)
		if err := k.nft.Flush(); err != nil && family == nftables.TableFamilyIPv4 {
			return fmt.Errorf("delete nftables table %s: %w", n.table, err)
		}
	}
	return nil
}
