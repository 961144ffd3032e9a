// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// leases is the book of who has which address and host port of this node. It survives a restart of the program. The
// life of an address:
//
//	take    a sandbox has it; that is on disk
//	drop    the sandbox's link has it, which is still to be deleted; the record is gone
//	free    no pod has it
type leases struct {
	records leaseRecords

	mu    sync.Mutex // guards all fields below
	byID  map[string]*lease
	addrs addresses
	ports hostPorts
}

// openLeases reads the leases in dir. It deletes those of an earlier boot or another range, and damaged ones.
func openLeases(dir string, names names, families families, log *slog.Logger) (*leases, error) {
	book := &leases{
		records: leaseRecords{
			dir:      filepath.Join(dir, "leases"),
			damaged:  filepath.Join(dir, "damaged"),
			names:    names,
			families: families,
			log:      log,
		},
		byID:  map[string]*lease{},
		addrs: newAddresses(families),
		ports: hostPorts{pods: map[portKey]string{}, node: map[uint16]string{}},
	}
	ids, err := book.records.ids()
	if err != nil {
		return nil, fmt.Errorf("read address leases: %w", err)
	}
	boot := bootID()
	var newest time.Time
	for _, id := range ids {
		lease, at, err := book.records.read(id)
		// Its ports may be reserved for the node by now: then the rules give the node precedence.
		if err == nil && lease.Boot == boot && book.enterLocked(id, lease, false) == nil {
			if at.After(newest) {
				newest = at
				book.addrs.handedOut(lease.Addrs)
			}
			continue
		}
		log.Info("dropping address lease", "sandbox", id, "error", err)
		if err := book.records.remove(id); err != nil {
			return nil, fmt.Errorf("drop address lease: %w", err)
		}
	}
	return book, nil
}

// enterLocked adds a lease to the book; it refuses an address or port in use.
func (b *leases) enterLocked(id string, l *lease, fresh bool) error {
	if err := b.addrs.checkFree(l.Addrs); err != nil {
		return err
	}
	if err := b.ports.checkFree(l.keys, fresh); err != nil {
		return err
	}
	b.addrs.give(l.Addrs, id)
	b.ports.give(l.keys, id)
	b.byID[id] = l
	return nil
}

// forgetLocked removes a lease from the book. Its addresses are free.
func (b *leases) forgetLocked(id string, l *lease) {
	b.addrs.takeBack(l.Addrs, id)
	b.ports.takeBack(l.keys, id)
	delete(b.byID, id)
}

// take returns the lease of a sandbox. It makes one if there is none. fresh: the ports are not open yet.
func (b *leases) take(id, netns string, ports []PortMapping) (l *lease, fresh bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if have, ok := b.byID[id]; ok {
		if have.Netns == netns && slices.Equal(have.Ports, ports) {
			return have, false, nil
		}
		return nil, false, fmt.Errorf("attached to %s already; detach it first", have.Netns)
	}
	for _, p := range ports {
		if ip := p.hostIP(); ip.IsValid() && !b.addrs.families.has(ip.Is4()) {
			return nil, false, fmt.Errorf("host IP %s: the pod network of this node does not have its IP family", ip)
		}
	}
	addrs, err := b.addrs.pick()
	if err != nil {
		return nil, false, err
	}
	keys, err := keysOf(ports)
	if err != nil {
		return nil, false, err
	}
	l = &lease{
		Addrs: addrs,
		Link:  b.records.names.link(id),
		Netns: netns,
		Ports: ports,
		Boot:  bootID(),
		keys:  keys,
	}
	if err := b.enterLocked(id, l, true); err != nil {
		return nil, false, err
	}
	if err := b.records.write(id, l); err != nil {
		b.forgetLocked(id, l)
		return nil, false, err
	}
	b.addrs.handedOut(addrs)
	return l, true, nil
}

// drop ends a lease, on disk first. Its ports are free; its addresses are once free is called for its link.
func (b *leases) drop(id string, l *lease) error {
	if err := b.records.remove(id); err != nil {
		return fmt.Errorf("drop lease: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forgetLocked(id, l)
	b.addrs.give(l.Addrs, "link "+l.Link)
	return nil
}

// free frees the addresses of a deleted link.
func (b *leases) free(link string, addrs []netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addrs.takeBack(addrs, "link "+link)
}

// of returns the lease of a sandbox, nil if there is none.
func (b *leases) of(id string) *lease {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.byID[id]
}

// ids returns the sandboxes with a lease.
func (b *leases) ids() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.AppendSeq(make([]string, 0, len(b.byID)), maps.Keys(b.byID))
}

// byLink returns all leases by the names of their links.
func (b *leases) byLink() map[string]*lease {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[string]*lease, len(b.byID))
	for _, l := range b.byID {
		out[l.Link] = l
	}
	return out
}

// removeAll forgets all leases, also on disk.
func (b *leases) removeAll() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.byID)
	clear(b.addrs.users)
	clear(b.ports.pods)
	return b.records.removeAll()
}

// reserve keeps a port of this node for a listener of the node, which what names.
func (b *leases) reserve(port uint16, what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ports.node[port] = what
}

// reserved returns the ports of the node's own listeners.
func (b *leases) reserved() []uint16 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Keys(b.ports.node))
}
