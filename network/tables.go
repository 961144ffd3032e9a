// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"keelson/network/mesh"
)

// tables are this network's nftables tables, one for each IP family. Their content comes from the leases and the exempt
// ranges, which are read while the transaction is made: the last writer writes the newest state.
type tables struct {
	names    names
	families families
	plugins  bool
	leases   *leases
	exempt   *exempt

	mu      sync.Mutex // guards all fields below; one transaction at a time
	nft     *nftables.Conn
	foreign foreignChains
	cluster []netip.Prefix // the exempt ranges in the kernel
}

func newTables(
	nft *nftables.Conn, names names, families families, plugins bool, leases *leases, exempt *exempt, log *slog.Logger,
) *tables {
	return &tables{
		names:    names,
		families: families,
		plugins:  plugins,
		leases:   leases,
		exempt:   exempt,
		nft:      nft,
		foreign:  foreignChains{nft: nft, names: names, log: log},
	}
}

// setUp replaces the tables in one transaction, so packets see the old rules or the new ones.
func (t *tables) setUp() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropUnused()
	cluster := t.exempt.get()
	reserved := t.reservedElements()
	for _, family := range t.families {
		rules := rulesOf(t.names.table, family, true)
		t.nft.AddTable(rules.table) // deleting a missing table is an error
		t.nft.DelTable(rules.table)
		t.nft.AddTable(rules.table)
		var ports elements
		for _, l := range t.leases.byLink() {
			ports.add(elementsOf(family, l))
		}
		err := errors.Join(
			t.nft.AddSet(rules.any, ports.any),
			t.nft.AddSet(rules.one, ports.one),
			t.nft.AddSet(rules.hairpin, ports.hairpin),
			t.nft.AddSet(rules.own, reserved),
			t.nft.AddSet(rules.cluster, intervals(cluster, family)),
		)
		if err != nil {
			return fmt.Errorf("set up nftables: %w", err)
		}
		chains := chainMaker{
			rules:    rules,
			nft:      t.nft,
			family:   family,
			fromPods: groupIs(expr.MetaKeyIIFGROUP, t.names.group),
			toPods:   groupIs(expr.MetaKeyOIFGROUP, t.names.group),
		}
		chains.translate()
		chains.changeSources(t.masquerades())
		chains.filter(mesh.LinkName(t.names.id))
	}
	if err := t.nft.Flush(); err != nil {
		return describeNftError(t.nft, err)
	}
	t.cluster = cluster
	return t.foreign.open()
}

// masquerades reports whether this network masquerades its pods' packets: always, or with CNI plugins while pods of its
// own are attached.
func (t *tables) masquerades() bool { return !t.plugins || len(t.leases.ids()) > 0 }

// dropUnused removes the table of a family that the network does not have any more.
func (t *tables) dropUnused() {
	for _, f := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		if t.families.has(f == nftables.TableFamilyIPv4) {
			continue
		}
		_ = t.remove(f) // a kernel without the family has no such table
	}
}

// remove removes the table of a family; a missing one is not an error.
func (t *tables) remove(family nftables.TableFamily) error {
	table := t.nft.AddTable(&nftables.Table{Name: t.names.table, Family: family})
	t.nft.DelTable(table)
	return t.nft.Flush()
}

// describeNftError adds the missing kernel feature to an error, which the kernel does not report.
func describeNftError(conn *nftables.Conn, err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("set up nftables: not permitted (needs root): %w", err)
	}
	if missing := missingFeature(conn); missing != "" {
		return fmt.Errorf("this kernel has no %s, which the pod network needs: %w", missing, err)
	}
	return fmt.Errorf("set up nftables: %w", err)
}

// openPorts adds the pod's host ports.
func (t *tables) openPorts(l *lease) error {
	err := t.changePorts(l, t.nft.SetAddElements)
	if err != nil {
		return fmt.Errorf("open host ports: %w", err)
	}
	deleteFlows(l.Ports)
	return nil
}

// closePorts deletes the pod's host ports. Some may be missing if Attach failed.
func (t *tables) closePorts(l *lease) error {
	err := t.changePorts(l, t.nft.SetDeleteElements)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("close host ports: %w", err)
	}
	deleteFlows(l.Ports)
	return nil
}

func (t *tables) changePorts(l *lease, change func(*nftables.Set, []nftables.SetElement) error) error {
	if len(l.Ports) == 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.families {
		r := rulesOf(t.names.table, f, false)
		e := elementsOf(f, l)
		for _, c := range []struct {
			set *nftables.Set
			els []nftables.SetElement
		}{{r.any, e.any}, {r.one, e.one}, {r.hairpin, e.hairpin}} {
			if len(c.els) == 0 {
				continue
			}
			if err := change(c.set, c.els); err != nil {
				return err
			}
		}
	}
	return t.nft.Flush()
}

// writeReserved adds the node's own ports to the set of those. Existing elements are not an error.
func (t *tables) writeReserved() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	elements := t.reservedElements()
	if len(elements) == 0 {
		return nil
	}
	var err error
	for _, f := range t.families {
		err = errors.Join(err, t.nft.SetAddElements(rulesOf(t.names.table, f, false).own, elements))
	}
	if err == nil {
		err = t.nft.Flush()
	}
	if err != nil {
		return fmt.Errorf("reserve the node's own ports: %w", err)
	}
	return nil
}

func (t *tables) reservedElements() []nftables.SetElement {
	var out []nftables.SetElement
	for _, port := range t.leases.reserved() {
		out = append(out, nftables.SetElement{Key: binary.BigEndian.AppendUint16(nil, port)})
	}
	return out
}

// writeExempt replaces the destinations without masquerading in one transaction, if they have changed.
func (t *tables) writeExempt() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	ranges := t.exempt.get()
	if slices.Equal(ranges, t.cluster) {
		return nil
	}
	for _, f := range t.families {
		set := rulesOf(t.names.table, f, false).cluster
		t.nft.FlushSet(set)
		if err := t.nft.SetAddElements(set, intervals(ranges, f)); err != nil {
			return fmt.Errorf("write the cluster's addresses: %w", err)
		}
	}
	if err := t.nft.Flush(); err != nil {
		return fmt.Errorf("write the cluster's addresses: %w", err)
	}
	t.cluster = ranges
	return nil
}

// purge removes the tables, and this network's rules in chains of others.
func (t *tables) purge() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	chains, err := t.foreign.list()
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil // without nftables there are no rules
	}
	if err != nil {
		return err
	}
	for _, ch := range chains {
		if err := t.foreign.removeRules(ch); err != nil {
			return err
		}
	}
	if err := t.remove(nftables.TableFamilyIPv4); err != nil {
		return fmt.Errorf("delete nftables table %s: %w", t.names.table, err)
	}
	_ = t.remove(nftables.TableFamilyIPv6) // a kernel without IPv6 has no such table
	return nil
}
