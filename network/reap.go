// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"net/netip"
)

// deleteUnleased deletes this network's links without a lease: an Attach or Detach was interrupted.
func (n *Network) deleteUnleased(k *kernel) error {
	links, err := n.links(k)
	if err != nil {
		return err
	}
	n.mu.Lock()
	known := map[string]bool{}
	for _, l := range n.leases {
		known[l.Link] = true
	}
	n.mu.Unlock()
	for _, name := range links {
		if !known[name] {
			n.deleteLater(name)
		}
	}
	return nil
}

// deleteLater queues a link for deleteLinks; its addresses stay in use until it is deleted.
func (n *Network) deleteLater(name string, addrs ...netip.Addr) {
	n.mu.Lock()
	n.waiting = append(n.waiting, name)
	n.going[name] = addrs
	for _, a := range addrs {
		n.used[a] = "link " + name
	}
	n.mu.Unlock()
	n.wake.Notify()
}

// deleteLinks deletes queued links until ctx is done.
func (n *Network) deleteLinks(ctx context.Context, k *kernel) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake.C():
			n.deleteWaiting(k)
		}
	}
}

// deleteWaiting deletes the queued links; false when there were none.
func (n *Network) deleteWaiting(k *kernel) bool {
	n.mu.Lock()
	names := n.waiting
	n.waiting = nil
	n.mu.Unlock()
	for _, name := range names {
		n.finishDelete(k, name)
	}
	return len(names) > 0
}

// finishDelete deletes one queued link, unless that was done, and frees its addresses.
func (n *Network) finishDelete(k *kernel, name string) {
	n.mu.Lock()
	addrs, still := n.going[name]
	n.mu.Unlock()
	if !still {
		return
	}
	if err := k.remove(name); err != nil {
		n.log.Warn("link not deleted", "link", name, "error", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.going, name)
	for _, a := range addrs {
		if n.used[a] == "link "+name {
			delete(n.used, a)
		}
	}
}
