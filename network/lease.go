// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"keelson/lib/record"
)

// lease holds the addresses and ports of one sandbox. It is stored in a file named by the sandbox id, and is immutable.
type lease struct {
	Addrs []netip.Addr  `json:"addrs"`
	Link  string        `json:"link"` // the host's end
	Netns string        `json:"netns"`
	Ports []PortMapping `json:"ports,omitempty"`
	Boot  string        `json:"boot"` // boot id: leases do not survive a reboot
}

// portKey is a host port in use. A zero ip stands for all addresses.
type portKey struct {
	proto byte
	ip    netip.Addr
	port  uint16
}

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// readLeases reads the leases from disk. It deletes those of an earlier boot or another range, and damaged ones.
func (n *Network) readLeases() error {
	if err := os.MkdirAll(n.leasePath(), 0o700); err != nil {
		return fmt.Errorf("read address leases: %w", err)
	}
	entries, err := os.ReadDir(n.leasePath())
	if err != nil {
		return fmt.Errorf("read address leases: %w", err)
	}
	boot := bootID()
	var newest time.Time
	var ids []string
	for _, e := range entries {
		ids = append(ids, record.Of(e.Name())) // the record may be missing while its copy exists
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		l, at, err := n.readLease(id)
		if err == nil && l.Boot == boot && n.takeLocked(id, l, false) == nil {
			if at.After(newest) {
				newest = at
				n.handedOutLocked(l.Addrs)
			}
			continue
		}
		n.log.Info("dropping address lease", "sandbox", id, "error", err)
		if err := record.Remove(n.leasePath(id)); err != nil {
			return fmt.Errorf("drop address lease: %w", err)
		}
	}
	return nil
}

func (n *Network) readLease(id string) (*lease, time.Time, error) {
	if err := checkID(id); err != nil {
		return nil, time.Time{}, err // the temporary file of a writer that was killed
	}
	var l *lease
	damage, err := record.Read(n.leasePath(id), func(b []byte) (err error) {
		l, err = decodeLease(b, n.families)
		if err == nil && l.Link != n.linkName(id) && l.Link != n.bridgedName(id) {
			err = fmt.Errorf("lease names link %q", l.Link)
		}
		return err
	})
	if err != nil {
		return nil, time.Time{}, err
	}
	if damage != nil {
		kept, aerr := record.SetAside(n.leasePath(id), filepath.Join(n.cfg.Dir, "damaged"))
		n.log.Error("damaged address lease restored from its copy", "sandbox", id, "kept", kept, "error",
			errors.Join(damage, aerr))
		if err := n.writeLease(id, l); err != nil {
			return nil, time.Time{}, err
		}
	}
	fi, err := os.Stat(n.leasePath(id))
	if err != nil {
		return nil, time.Time{}, err
	}
	return l, fi.ModTime(), nil
}

// decodeLease decodes a lease. It may have fewer families than the network, to which a second one was added later.
func decodeLease(b []byte, families []family) (*lease, error) {
	var l lease
	if err := json.Unmarshal(b, &l); err != nil {
		return nil, fmt.Errorf("decode lease: %w", err)
	}
	found := 0
	for _, f := range families {
		for _, a := range l.Addrs {
			if usable(f.pods, a) {
				found++
				break
			}
		}
	}
	if len(l.Addrs) == 0 || found != len(l.Addrs) {
		return nil, fmt.Errorf("lease of %v is not in the pod ranges", l.Addrs)
	}
	if _, err := keysOf(l.Ports); err != nil {
		return nil, err
	}
	return &l, nil
}

// takeLocked adds a lease to the maps; it refuses an address or port in use. A lease that is not fresh was read from
// disk: its ports may be reserved for the node by now, and then the rules give the node precedence.
func (n *Network) takeLocked(id string, l *lease, fresh bool) error {
	for _, a := range l.Addrs {
		if owner, taken := n.used[a]; taken {
			return fmt.Errorf("address %s belongs to %s", a, owner)
		}
	}
	keys, err := keysOf(l.Ports)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if what, taken := n.own[k.port]; taken && fresh {
			return fmt.Errorf("host port %d/%s belongs to %s of this node; choose another one", k.port,
				protoName(k.proto), what)
		}
		if owner, taken := n.ports[k]; taken {
			return fmt.Errorf("host port %d/%s is taken by sandbox %s", k.port, protoName(k.proto), owner)
		}
	}
	for _, a := range l.Addrs {
		n.used[a] = id
	}
	for _, k := range keys {
		n.ports[k] = id
	}
	n.leases[id] = l
	return nil
}

// keysOf checks port mappings; one port twice within a pod is an error too.
func keysOf(ports []PortMapping) ([]portKey, error) {
	var out []portKey
	seen := make(map[portKey]bool, len(ports))
	for _, portMapping := range ports {
		proto, err := protoNumber(portMapping.Protocol)
		if err != nil {
			return nil, err
		}
		if portMapping.HostPort == 0 || portMapping.ContainerPort == 0 {
			return nil, fmt.Errorf("port mapping %d to %d: ports begin at 1", portMapping.HostPort,
				portMapping.ContainerPort)
		}
		k := portKey{proto: proto, port: portMapping.HostPort}
		if ip := portMapping.HostIP.Unmap(); ip.IsValid() && !ip.IsUnspecified() {
			k.ip = ip
		}
		if seen[k] {
			return nil, fmt.Errorf("host port %d/%s is mapped twice", portMapping.HostPort, protoName(proto))
		}
		seen[k] = true
		out = append(out, k)
	}
	return out, nil
}

// lease returns the lease of id. It makes one if there is none. fresh: the ports are not open yet.
func (n *Network) lease(k *kernel, id, netns string, ports []PortMapping) (l *lease, fresh bool, err error) {
	l, fresh, err = n.tryLease(id, netns, ports)
	if errors.Is(err, errNoAddress) && n.deleteWaiting(k) { // that has freed addresses
		return n.tryLease(id, netns, ports)
	}
	return l, fresh, err
}

var errNoAddress = errors.New("no free address")

func (n *Network) tryLease(id, netns string, ports []PortMapping) (l *lease, fresh bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if have, ok := n.leases[id]; ok {
		if have.Netns == netns && slices.Equal(have.Ports, ports) {
			return have, false, nil
		}
		return nil, false, fmt.Errorf("attached to %s already; detach it first", have.Netns)
	}
	for _, p := range ports {
		if ip := p.HostIP.Unmap(); ip.IsValid() && !ip.IsUnspecified() && !n.has(ip.Is4()) {
			return nil, false, fmt.Errorf("host IP %s: the pod network of this node does not have its IP family", ip)
		}
	}
	addrs, err := n.pickLocked()
	if err != nil {
		return nil, false, err
	}
	l = &lease{
		Addrs: addrs,
		Link:  n.linkName(id),
		Netns: netns,
		Ports: ports,
		Boot:  bootID(),
	}
	if err := n.takeLocked(id, l, true); err != nil {
		return nil, false, err
	}
	if err := n.writeLease(id, l); err != nil {
		n.forgetLocked(id, l)
		return nil, false, err
	}
	n.handedOutLocked(addrs)
	return l, true, nil
}

// handedOutLocked records the addresses of the newest lease.
func (n *Network) handedOutLocked(addrs []netip.Addr) {
	for i, f := range n.families {
		for _, a := range addrs {
			if f.pods.Contains(a) {
				n.last[i] = a
			}
		}
	}
}

// pickLocked finds a free address of each family.
func (n *Network) pickLocked() ([]netip.Addr, error) {
	var out []netip.Addr
	for i, f := range n.families {
		a, err := n.nextLocked(f, n.last[i])
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}

// nextLocked finds the next free address after the last one, so that an address is reused as late as possible.
func (n *Network) nextLocked(f family, last netip.Addr) (netip.Addr, error) {
	start := last
	if !usable(f.pods, start) {
		start = f.gateway
	}
	for a := start; ; {
		a = a.Next()
		if !f.pods.Contains(a) {
			a = f.gateway
		}
		if _, taken := n.used[a]; !taken && usable(f.pods, a) {
			return a, nil
		}
		if a == start {
			return netip.Addr{}, fmt.Errorf("%w in %s: %d are in use", errNoAddress, f.pods, len(n.used))
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

// writeLease does not sync: leases do not survive a reboot.
func (n *Network) writeLease(id string, l *lease) error {
	b, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encode lease: %w", err)
	}
	return record.Write(n.leasePath(id), b)
}

// drop deletes a lease, on disk first.
func (n *Network) drop(id string, l *lease) error {
	if err := record.Remove(n.leasePath(id)); err != nil {
		return fmt.Errorf("drop lease: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forgetLocked(id, l)
	return nil
}

func (n *Network) forgetLocked(id string, l *lease) {
	for _, a := range l.Addrs {
		if n.used[a] == id {
			delete(n.used, a)
		}
	}
	keys, err := keysOf(l.Ports)
	if err == nil { // they were valid in takeLocked
		for _, k := range keys {
			if n.ports[k] == id {
				delete(n.ports, k)
			}
		}
	}
	delete(n.leases, id)
}

func (n *Network) removeLeases() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.leases)
	clear(n.used)
	clear(n.ports)
	files, err := filepath.Glob(n.leasePath("*"))
	if err != nil {
		return fmt.Errorf("remove leases: %w", err)
	}
	half, err := filepath.Glob(n.leasePath(".[!.]*"))
	if err != nil {
		return fmt.Errorf("remove leases: %w", err)
	}
	for _, f := range append(files, half...) {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove leases: %w", err)
		}
	}
	return nil
}
