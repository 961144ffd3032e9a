// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"regexp"
	"sync"
	"sync/atomic"

	"keelson/lib/keylock"
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

// Network is this node's pod network. Its methods are safe for concurrent use.
type Network struct {
	cfg      Config
	names    names
	families families
	leases   *leases
	exempt   *exempt
	mtu      atomic.Int64  // of new pods' links
	turns    keylock.Locks // by sandbox id

	started chan struct{}         // closed once Run has set the network up, or could not
	begun   func()                // closes started
	running atomic.Pointer[parts] // nil while not running
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
	names := namesOf(cfg.ID)
	leases, err := openLeases(cfg.Dir, names, families, cfg.Log)
	if err != nil {
		return nil, err
	}
	network := &Network{
		cfg:      cfg,
		names:    names,
		families: families,
		leases:   leases,
		exempt:   &exempt{},
		started:  make(chan struct{}),
	}
	network.mtu.Store(int64(cfg.MTU))
	network.begun = sync.OnceFunc(func() { close(network.started) })
	return network, nil
}

// SetMTU sets the MTU of pods that are attached from now on. Others keep theirs: the kernel sends them an ICMP error
// when a packet is too long for a tunnel. It may be called at any time.
func (n *Network) SetMTU(mtu int) { n.mtu.Store(int64(mtu)) }

// SetCluster sets the destinations to which pods send with their own addresses: the pod ranges of all nodes and the
// nodes' addresses. Packets to other destinations are masqueraded. This node's range is always included. It may be
// called at any time.
func (n *Network) SetCluster(ranges []netip.Prefix) error {
	n.exempt.set(ranges)
	if parts := n.running.Load(); parts != nil {
		return parts.tables.writeExempt()
	}
	return nil // Run writes it
}

// Reserve reserves a port of this node for a listener of the node itself; what names it ("the API server"). No pod gets
// it as a host port, and packets to the port always reach the node, even if an earlier pod has it as a host port. It
// may be called at any time.
func (n *Network) Reserve(port uint16, what string) error {
	n.leases.reserve(port, what)
	if parts := n.running.Load(); parts != nil {
		return parts.tables.writeReserved()
	}
	return nil // Run writes it
}

// Run sets up the network, calls ready, and deletes detached links in the background until ctx is done. Pods stay
// attached when it returns.
func (n *Network) Run(ctx context.Context, ready func()) error {
	defer n.begun()
	parts, err := n.open()
	if err != nil {
		return err
	}
	if err := n.setUp(parts); err != nil {
		parts.kernel.close()
		return errors.Join(err, n.undo(ctx))
	}
	n.running.Store(parts)
	// What was set during the setup, when the tables were written already.
	if err := errors.Join(parts.tables.writeReserved(), parts.tables.writeExempt()); err != nil {
		n.cfg.Log.Error("addresses and ports of the node", "err", err)
	}
	n.begun()
	ready()
	parts.reaper.run(ctx)
	n.running.Store(nil)
	parts.reaper.deleteWaiting()
	parts.kernel.close()
	return nil
}

// parts are what a network has in the kernel, in the network namespace in which they were opened.
type parts struct {
	kernel *kernel
	links  *podLinks
	tables *tables
	reaper *reaper
}

func (n *Network) open() (*parts, error) {
	kernel, err := openKernel()
	if err != nil {
		return nil, err
	}
	links := &podLinks{rt: kernel.rt, names: n.names, families: n.families}
	return &parts{
		kernel: kernel,
		links:  links,
		tables: newTables(kernel.nft, n.names, n.families, n.cfg.Plugins, n.leases, n.exempt, n.cfg.Log),
		reaper: newReaper(links.remove, n.leases, n.cfg.Log),
	}, nil
}

// setUp makes or corrects bridge, sysctls, rules and routes, and finds what an earlier process left.
func (n *Network) setUp(p *parts) error {
	gateway := &gateway{
		rt:       p.kernel.rt,
		names:    n.names,
		families: n.families,
		plugins:  n.cfg.Plugins,
		mtu:      n.cfg.MTU,
	}
	if err := gateway.setUp(); err != nil {
		return err
	}
	forwarding := &forwarding{
		rt:       p.kernel.rt,
		names:    n.names,
		families: n.families,
		plugins:  n.cfg.Plugins,
		settings: n.settings(),
		log:      n.cfg.Log,
	}
	if err := forwarding.setUp(); err != nil {
		return err
	}
	if err := p.tables.setUp(); err != nil {
		return err
	}
	forwarding.setUpConntrack() // the rules have loaded the kernel's connection table
	links, err := p.links.list()
	if err != nil {
		return err
	}
	p.reaper.deleteUnleased(links)
	return p.links.repairRoutes(n.leases.byLink())
}

func (n *Network) settings() settings { return settings{runDir: n.cfg.RunDir, id: n.names.id} }

// undo removes what a failed start made, unless pods are attached.
func (n *Network) undo(ctx context.Context) error {
	if len(n.Attached()) > 0 {
		return nil
	}
	return n.Purge(context.WithoutCancel(ctx))
}

// Purge removes everything of this network in the kernel and on disk: pods' links, bridge, rules and leases. It
// restores the forwarding settings. Attached pods lose their network. Run must not be running; nothing need exist.
func (n *Network) Purge(_ context.Context) error {
	parts, err := n.open()
	if err != nil {
		return err
	}
	defer parts.kernel.close()
	return errors.Join(
		parts.links.purge(n.leases.byLink()),
		parts.tables.purge(),
		n.settings().restore(),
		n.leases.removeAll(),
	)
}

// Attach sets lo up in the namespace at netnsPath, adds an eth0 with addresses and a default route, and opens the host
// ports. It waits until Run has set up the network. It returns the pod's addresses; a repeated call for id returns the
// same ones.
func (n *Network) Attach(ctx context.Context, id, netnsPath string, ports []PortMapping) ([]netip.Addr, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	defer n.turns.Lock(id)()
	parts, err := n.awaitRun(ctx)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("attach %s: %w", id, err)
	}
	lease, fresh, err := n.leases.take(id, netnsPath, ports)
	if errors.Is(err, errNoAddress) && parts.reaper.deleteWaiting() { // that has freed addresses
		lease, fresh, err = n.leases.take(id, netnsPath, ports)
	}
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", id, err)
	}
	if fresh {
		err = checkPortsFree(ctx, n.families, lease.Ports)
	}
	if err == nil {
		parts.reaper.finish(lease.Link) // an old link of this sandbox
		err = parts.links.connect(lease, int(n.mtu.Load()))
	}
	if err == nil && fresh {
		err = parts.tables.openPorts(lease)
	}
	if err != nil {
		err = fmt.Errorf("attach %s: %w", id, err)
		if fresh {
			err = errors.Join(err, n.detach(parts, id, lease))
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
	lease := n.leases.of(id)
	if lease == nil {
		return nil
	}
	parts, err := n.awaitRun(ctx)
	if err != nil {
		return err
	}
	if err := n.detach(parts, id, lease); err != nil {
		return fmt.Errorf("detach %s: %w", id, err)
	}
	return nil
}

func (n *Network) detach(parts *parts, id string, lease *lease) error {
	if err := parts.tables.closePorts(lease); err != nil {
		return err
	}
	if err := n.leases.drop(id, lease); err != nil {
		return err
	}
	parts.reaper.deleteLater(lease.Link, lease.Addrs...)
	return nil
}

// Attached returns the ids with a lease, so that the caller can detach those without a sandbox.
func (n *Network) Attached() []string { return n.leases.ids() }

var errNotRunning = errors.New("the pod network is not running")

// awaitRun waits until Run has set up the network: the runtime starts at the same time.
func (n *Network) awaitRun(ctx context.Context) (*parts, error) {
	select {
	case <-n.started:
	case <-ctx.Done():
		return nil, errNotRunning
	}
	parts := n.running.Load()
	if parts == nil {
		return nil, errNotRunning
	}
	return parts, nil
}

// podPattern has no {0,199}: such a pattern takes a third of a millisecond of every process's start.
var podPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// longestID is the length of a sandbox's ID that is a file name with room for more.
const longestID = 200

func checkID(id string) error {
	if len(id) > longestID || !podPattern.MatchString(id) {
		return fmt.Errorf("sandbox id %q is not usable as a file name", id)
	}
	return nil
}
