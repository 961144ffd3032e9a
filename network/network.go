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
	"keelson/lib/signal"
)

// Config configures a Network.
type Config struct {
	// ID is the cluster's short id, at most 12 of a-z, 0-9 and "-": the bridge is kl-<ID>, the nftables table
	// keelson-<ID>.
	ID string
	// Dir keeps the leases.
	Dir string
	// RunDir holds state that must not survive a reboot, of all clusters on this machine; /run/keelson when empty.
	RunDir string
	// PodCIDRs are this node's ranges of pod addresses, one or one of each IP family. The first address of each is the
	// pods' gateway. IPv4 from /30 to /8, IPv6 from /126 to /32.
	PodCIDRs []netip.Prefix
	// Plugins: CNI plugins attach pods, with addresses that this network does not know. It then only provides the
	// gateway address, and serves the pods that it attached before.
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
	settings settings
	bridge   string
	group    uint32 // of the bridge and the pods' links
	table    string
	log      *slog.Logger

	turns   keylock.Locks // by sandbox id
	mu      sync.Mutex    // guards all fields below
	leases  map[string]*lease
	used    map[netip.Addr]string // address -> id
	ports   map[portKey]string    // host port -> id
	cluster []netip.Prefix        // destinations without masquerading; see SetCluster
	own     map[uint16]string     // reserved ports of the node -> what listens; see Reserve
	last    map[int]netip.Addr    // the last leased address, by index of the family
	kernel  *kernel               // nil while not running
	started chan struct{}         // closed once Run has set the network up, or could not
	mtu     int                   // of new pods' links
	begun   func()                // closes started
	waiting []string              // links to be deleted
	wake    signal.Signal         // waiting is not empty
	// going are the links in waiting or being deleted, with the addresses that are free once the link is deleted.
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
	network := &Network{
		cfg:      cfg,
		mtu:      cfg.MTU,
		families: families,
		settings: settings{runDir: cfg.RunDir, id: cfg.ID},
		log:      cfg.Log,
		bridge:   "kl-" + cfg.ID,
		group:    GroupOf(cfg.ID),
		table:    "keelson-" + cfg.ID,
		leases:   map[string]*lease{},
		used:     map[netip.Addr]string{},
		last:     map[int]netip.Addr{},
		ports:    map[portKey]string{},
		own:      map[uint16]string{},
		wake:     signal.New(),
		started:  make(chan struct{}),
		going:    map[string][]netip.Addr{},
	}
	network.begun = sync.OnceFunc(func() { close(network.started) })
	if err := network.readLeases(); err != nil {
		return nil, err
	}
	return network, nil
}

// Bridge returns the name of the link with the gateway addresses.
func (n *Network) Bridge() string { return n.bridge }

// Group returns the group of all links of this node's pods (nft's iifgroup and oifgroup).
func (n *Network) Group() uint32 { return n.group }

// Gateway returns the pods' default gateway in the first family: the address of the node for its pods.
func (n *Network) Gateway() netip.Addr { return n.families[0].gateway }

// SetMTU sets the MTU of pods that are attached from now on. Others keep theirs: the kernel sends them an ICMP error
// when a packet is too long for a tunnel. It may be called at any time.
func (n *Network) SetMTU(mtu int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mtu = mtu
}

// Run sets up the network, calls ready, and deletes detached links in the background until ctx is done. Pods stay
// attached when it returns.
func (n *Network) Run(ctx context.Context, ready func()) error {
	defer n.begun()
	kernel, err := openKernel()
	if err != nil {
		return err
	}
	if err := n.setUp(kernel); err != nil {
		kernel.close()
		return errors.Join(err, n.undo(ctx))
	}
	n.mu.Lock()
	n.kernel = kernel
	n.mu.Unlock()
	if err := n.writeOwn(kernel); err != nil { // ports that were reserved during the setup
		n.log.Error("host ports of the node", "err", err)
	}
	n.begun()
	ready()
	n.deleteLinks(ctx, kernel)
	n.mu.Lock()
	n.kernel = nil
	n.mu.Unlock()
	n.deleteWaiting(kernel)
	kernel.close()
	return nil
}

// undo removes what a failed start made, unless pods are attached.
func (n *Network) undo(ctx context.Context) error {
	if len(n.Attached()) > 0 {
		return nil
	}
	return n.Purge(context.WithoutCancel(ctx))
}

// Attach sets lo up in the namespace at netnsPath, adds an eth0 with addresses and a default route, and opens the host
// ports. It waits until Run has set up the network. It returns the pod's addresses; a repeated call for id returns the
// same ones.
func (n *Network) Attach(ctx context.Context, id, netnsPath string, ports []PortMapping) ([]netip.Addr, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	defer n.turns.Lock(id)()
	kernel, err := n.running(ctx)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("attach %s: %w", id, err)
	}
	lease, fresh, err := n.lease(kernel, id, netnsPath, ports)
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", id, err)
	}
	if fresh {
		err = n.checkPortsFree(ctx, lease.Ports)
	}
	if err == nil {
		err = n.connect(kernel, lease)
	}
	if err == nil && fresh {
		err = n.openPorts(kernel, lease)
	}
	if err != nil {
		err = fmt.Errorf("attach %s: %w", id, err)
		if fresh {
			err = errors.Join(err, n.detach(kernel, id, lease))
		}
		return nil, err
	}
	return lease.Addrs, nil
}

// Detach undoes Attach. When it returns the ports are free. The link is deleted in the background, because that is
// slow, and then the addresses are free. It is idempotent.
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

// Attached returns the ids with a lease, so that the caller can detach those without a sandbox.
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

// running waits until Run has set up the network: the runtime starts at the same time.
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

// linkName returns the name of the host's end of a pod's link, unique to cluster and pod in the kernel's 15 characters.
func (n *Network) linkName(id string) string {
	sum := sha256.Sum256([]byte(n.cfg.ID + "/" + id))
	return n.linkPrefix() + hex.EncodeToString(sum[:4])
}

// linkPrefix returns the common prefix of this cluster's link names, for firewall rules by name.
func (n *Network) linkPrefix() string {
	sum := sha256.Sum256([]byte(n.cfg.ID))
	return "kv" + hex.EncodeToString(sum[:2]) + "-"
}

// bridgedName returns the link's name in versions that attached it to the bridge.
func (n *Network) bridgedName(id string) string {
	sum := sha256.Sum256([]byte(n.cfg.ID + "/" + id))
	return "kv-" + hex.EncodeToString(sum[:6])
}

// GroupOf returns the group of all links of the pods of the network with the ID.
func GroupOf(id string) uint32 {
	sum := sha256.Sum256([]byte(id))
	return binary.BigEndian.Uint32(sum[:]) | 1<<16 // above the groups that administrators use
}

func (n *Network) leasePath(elem ...string) string {
	return filepath.Join(append([]string{n.cfg.Dir, "leases"}, elem...)...)
}
