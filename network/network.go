// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"regexp"
	"sync"

	"keelson/lib/keylock"
)

// Config says which network this node has.
type Config struct {
	// ID is the cluster's short id, at most 12 of a-z, 0-9 and "-": the bridge is kl-<ID>, the nftables table keelson-<ID>.
	ID string
	// Dir keeps the leases.
	Dir string
	// RunDir keeps what must not outlive a restart of the machine, for all clusters on it; /run/keelson when empty.
	RunDir string
	// PodCIDRs are this node's ranges of pod addresses, one or one of each IP family. The first address of each is the pods'
	// gateway. IPv4 from /30 to /8, IPv6 from /126 to /32.
	PodCIDRs []netip.Prefix
	// Plugins says that CNI plugins attach pods, in ranges that this network does not know. It then is the node's address as pods see it,
	// and serves the pods that it attached before.
	Plugins bool
	// MTU of the pods' links; 0 means 1500.
	MTU int
	Log *slog.Logger
}

// PortMapping forwards a port of the node to a port of the pod.
type PortMapping struct {
	Protocol      string     `json:"protocol"` // TCP, UDP, SCTP; empty means TCP
	HostIP        netip.Addr `json:"hostIP"`   // zero or unspecified: every address of the node, 127.0.0.1 included
	HostPort      uint16     `json:"hostPort"`
	ContainerPort uint16     `json:"containerPort"`
}

// Network is this node's pod network. Its methods are safe for concurrent use.
type Network struct {
	cfg      Config
	families []family
	bridge   string
	group    uint32 // of the bridge and the pods' links
	table    string
	log      *slog.Logger

	turns   keylock.Locks // by sandbox
	mu      sync.Mutex    // guards all below
	leases  map[string]*lease
	used    map[netip.Addr]string // address -> id
	ports   map[portKey]string    // host port -> id
	cluster []netip.Prefix        // where pods are known by their addresses
	own     map[uint16]string     // ports that the node itself listens on -> what does
	last    map[int]netip.Addr    // handed out last, by the family's place
	kernel  *kernel               // nil while not running
	started chan struct{}         // closed once Run has set the network up, or could not
	mtu     int                   // of pods' links that are made from now on
	begun   func()                // closes started
	waiting []string              // links to be deleted
	wake    chan struct{}         // capacity 1: something waits
	// going are the links in waiting or being deleted, each with the addresses that rest until it is gone.
	going map[string][]netip.Addr
}

var idPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,11}$`)

// New checks the configuration and reads the leases. It changes nothing in the kernel.
func New(cfg Config) (*Network, error) {
	if !idPattern.MatchString(cfg.ID) {
		return nil, fmt.Errorf("network id %q: want 1 to 12 of a-z, 0-9 and -", cfg.ID)
	}
	families, err := familiesOf(cfg.PodCIDRs)
	if err != nil {
		return nil, err
	}
	if cfg.RunDir == "" {
		cfg.RunDir = "/run/keelson"
	}
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	n := &Network{
		cfg: cfg, mtu: cfg.MTU, families: families, log: cfg.Log,
		bridge: "kl-" + cfg.ID, group: GroupOf(cfg.ID), table: "keelson-" + cfg.ID,
		leases: map[string]*lease{}, used: map[netip.Addr]string{}, last: map[int]netip.Addr{}, ports: map[portKey]string{}, own: map[uint16]string{},
		wake: make(chan struct{}, 1), started: make(chan struct{}), going: map[string][]netip.Addr{},
	}
	n.begun = sync.OnceFunc(func() { close(n.started) })
	if err := n.readLeases(); err != nil {
		return nil, err
	}
	return n, nil
}

// Bridge is the name of the link that has the gateway's addresses.
func (n *Network) Bridge() string { return n.bridge }

// Group is the group of every link that leads to a pod of this node (nft's iifgroup and oifgroup).
func (n *Network) Group() uint32 { return n.group }

// Gateway is the pods' default gateway, in the first family: the node as its pods see it.
func (n *Network) Gateway() netip.Addr { return n.families[0].gateway }

// SetMTU is the longest packet of pods that are attached from now on. Those from before keep theirs: the kernel tells them when a packet is
// too long for a tunnel. It may be called at any time.
func (n *Network) SetMTU(mtu int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mtu = mtu
}

// Run sets the network up, calls ready, and deletes detached links in the background until ctx is done. Pods stay
// attached when it returns: the next Run finds them as they are.
func (n *Network) Run(ctx context.Context, ready func()) error {
	defer n.begun()
	k, err := openKernel()
	if err != nil {
		return err
	}
	if err := n.setUp(k); err != nil {
		k.close()
		return errors.Join(err, n.undo(ctx))
	}
	n.mu.Lock()
	n.kernel = k
	n.mu.Unlock()
	if err := n.writeOwn(k); err != nil { // those of after the set-up
		n.log.Error("host ports of the node", "err", err)
	}
	n.begun()
	ready()
	n.deleteLinks(ctx, k)
	n.mu.Lock()
	n.kernel = nil
	n.mu.Unlock()
	n.deleteWaiting(k)
	k.close()
	return nil
}

// undo takes back a start that failed, unless pods are attached: they keep what works.
func (n *Network) undo(ctx context.Context) error {
	if len(n.Attached()) > 0 {
		return nil
	}
	return n.Purge(context.WithoutCancel(ctx))
}

// Attach gives the namespace at netnsPath a lo that is up, an eth0 with an address of this node, and a default route, and
// opens the host ports. Before Run has set the network up, it waits. It returns the pod's addresses, the same ones whenever it is called
// again for id.
func (n *Network) Attach(ctx context.Context, id, netnsPath string, ports []PortMapping) ([]netip.Addr, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	defer n.turns.Lock(id)()
	k, err := n.running(ctx)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("attach %s: %w", id, err)
	}
	l, fresh, err := n.lease(k, id, netnsPath, ports)
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", id, err)
	}
	if fresh {
		err = n.vacant(ctx, l.Ports)
	}
	if err == nil {
		err = n.connect(k, l)
	}
	if err == nil && fresh {
		err = n.openPorts(k, l)
	}
	if err != nil {
		err = fmt.Errorf("attach %s: %w", id, err)
		if fresh {
			err = errors.Join(err, n.detach(k, id, l))
		}
		return nil, err
	}
	return l.Addrs, nil
}

// Detach takes away what Attach gave. It returns when the ports may be used again; the link is deleted in the background,
// since the kernel takes its time over that, and the address is free once it is gone. It is idempotent.
func (n *Network) Detach(ctx context.Context, id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	defer n.turns.Lock(id)()
	n.mu.Lock()
	l := n.leases[id]
	n.mu.Unlock()
	if l == nil {
		return nil
	}
	k, err := n.running(ctx)
	if err != nil {
		return err
	}
	if err := n.detach(k, id, l); err != nil {
		return fmt.Errorf("detach %s: %w", id, err)
	}
	return nil
}

func (n *Network) detach(k *kernel, id string, l *lease) error {
	if err := n.closePorts(k, l); err != nil {
		return err
	}
	if err := n.drop(id, l); err != nil {
		return err
	}
	n.deleteLater(l.Link, l.Addrs...)
	return nil
}

// Attached lists the ids that have an address, so that their owner can detach those it does not know.
func (n *Network) Attached() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]string, 0, len(n.leases))
	for id := range n.leases {
		out = append(out, id)
	}
	return out
}

var errNotRunning = errors.New("the pod network is not running")

// running waits until Run has set the network up: the runtime starts at the same time, and may have pods to detach at once.
func (n *Network) running(ctx context.Context) (*kernel, error) {
	select {
	case <-n.started:
	case <-ctx.Done():
		return nil, errNotRunning
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kernel == nil {
		return nil, errNotRunning
	}
	return n.kernel, nil
}

var podPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$`)

func checkID(id string) error {
	if !podPattern.MatchString(id) {
		return fmt.Errorf("sandbox id %q is not usable as a file name", id)
	}
	return nil
}

// linkName is the host's end of a pod's link: unique to cluster and pod within the kernel's 15 characters.
func (n *Network) linkName(id string) string {
	sum := sha256.Sum256([]byte(n.cfg.ID + "/" + id))
	return n.linkPrefix() + hex.EncodeToString(sum[:4])
}

// linkPrefix is what the names of this cluster's links begin with, for firewalls that know links by name.
func (n *Network) linkPrefix() string {
	sum := sha256.Sum256([]byte(n.cfg.ID))
	return "kv" + hex.EncodeToString(sum[:2]) + "-"
}

// bridgedName is the link's name in versions that plugged it into the bridge.
func (n *Network) bridgedName(id string) string {
	sum := sha256.Sum256([]byte(n.cfg.ID + "/" + id))
	return "kv-" + hex.EncodeToString(sum[:6])
}

// GroupOf is the group of every link that leads to a pod of the network with the ID.
func GroupOf(id string) uint32 {
	sum := sha256.Sum256([]byte(id))
	return binary.BigEndian.Uint32(sum[:]) | 1<<16 // beyond what people number by hand
}

func (n *Network) leasePath(elem ...string) string {
	return filepath.Join(append([]string{n.cfg.Dir, "leases"}, elem...)...)
}
