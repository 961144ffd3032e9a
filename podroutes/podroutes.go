// SPDX-License-Identifier: Apache-2.0

package podroutes

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/api/networking/wireguard"
	"keelson/client"
	"keelson/lib/signal"
	"keelson/network/mesh"
)

const (
	// AnnotationVTEP is the MAC address of a node's VXLAN tunnel endpoint. Each node writes its own.
	AnnotationVTEP = "keelson.dev/vtep"
	// annotationFake is on fake nodes.
	annotationFake = "keelson.dev/simulated-by"
)

// Pauses before a retry after an error of the kernel.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// PodNetwork is this node's pod network.
type PodNetwork interface {
	// SetCluster sets the destinations without masquerading.
	SetCluster(ranges []netip.Prefix) error
	// SetMTU sets the MTU of new pods.
	SetMTU(mtu int)
}

// Config configures an Agent.
type Config struct {
	Client   *client.Client
	NodeName string
	// ID is the cluster's short id on this machine, Network its identity on all machines.
	ID, Network string
	// PodCIDRs are this node's pod ranges.
	PodCIDRs []netip.Prefix
	Mode     mesh.Mode
	Port     int // of the tunnel; 0: the mode's default
	// Encryption is this node's WireGuard configuration. Cluster are the known pod ranges of the cluster: with
	// WireGuard, packets to them are never sent unencrypted.
	Encryption mesh.Encryption
	Cluster    []netip.Prefix
	Pods       PodNetwork
	Log        *slog.Logger
}

// Agent maintains the routes and the tunnel.
type Agent struct {
	cfg       Config
	wake      signal.Signal // something may have changed
	unreached string        // the nodes without a route, as last logged
	warned    bool          // about WireGuard in this process
}

// New builds the agent.
func New(cfg Config) *Agent {
	if cfg.Mode == "" {
		cfg.Mode = mesh.Auto
	}
	if cfg.Port == 0 {
		cfg.Port = cfg.Mode.DefaultPort()
	}
	return &Agent{cfg: cfg, wake: signal.New()}
}

// Run is a run.Func. It is ready at once: the routes of an earlier process are used until the nodes are listed.
func (a *Agent) Run(ctx context.Context, ready func()) error {
	kernel, err := mesh.Open(a.cfg.ID, a.cfg.Network, a.cfg.NodeName, a.cfg.Port, a.cfg.Encryption)
	if err != nil {
		return err
	}
	defer kernel.Close()
	if a.cfg.Mode == mesh.WireGuard {
		if err := kernel.Begin(a.cfg.PodCIDRs, mesh.Families(a.cfg.PodCIDRs, a.cfg.Cluster)); err != nil {
			return err
		}
	}
	nodes := coreinformers.New(a.cfg.Client.Informers(0, client.Scope{}).Scoped()).Nodes().Informer()
	_, err = nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { a.wake.Notify() },
		UpdateFunc: func(before, after any) {
			old, ok := before.(*corev1.Node)
			cur, ok2 := after.(*corev1.Node)
			if !ok || !ok2 || !same(a.machine(old), a.machine(cur)) {
				a.wake.Notify()
			}
		},
		DeleteFunc: func(any) { a.wake.Notify() },
	})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	var background sync.WaitGroup
	defer background.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	background.Go(func() { nodes.Run(ctx.Done()) })
	if err := a.watchLinks(ctx, kernel, &background); err != nil {
		return err
	}
	ready()
	if !cache.WaitForCacheSync(ctx.Done(), nodes.HasSynced) {
		return nil
	}
	a.loop(ctx, func() error { return a.sync(kernel, nodes.GetStore()) })
	return nil
}

// watchLinks wakes up the loop when links change. Subscriptions belong to the network namespace of the calling thread.
func (a *Agent) watchLinks(ctx context.Context, k *mesh.Kernel, background *sync.WaitGroup) error {
	follow, err := k.Watch(ctx.Done(), a.wake.Notify)
	if err != nil {
		return err
	}
	background.Go(follow)
	if a.cfg.Mode != mesh.WireGuard {
		return nil
	}
	background.Go(func() {
		if err := k.WatchSeal(ctx, a.wake.Notify); err != nil && ctx.Err() == nil {
			a.cfg.Log.Error("changes of the rules against unencrypted packets by other programs are not detected",
				"err", err)
		}
	})
	return nil
}

func (a *Agent) loop(ctx context.Context, sync func() error) {
	retry := time.NewTimer(0)
	defer retry.Stop()
	wait := firstRetry
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake.C():
		case <-retry.C:
		}
		if err := sync(); err != nil {
			a.cfg.Log.Error("set up routes to other nodes", "err", err, "retry", wait)
			retry.Reset(wait)
			wait = min(2*wait, lastRetry)
			continue
		}
		wait = firstRetry
	}
}

// sync computes the routes from nodes and links, and writes them to the kernel.
func (a *Agent) sync(kernel *mesh.Kernel, store cache.Store) error {
	self := mesh.Machine{Name: a.cfg.NodeName, Pods: a.cfg.PodCIDRs}
	if a.cfg.Mode == mesh.WireGuard {
		self.Key = a.cfg.Encryption.Private.PublicKey()
	}
	var others []mesh.Machine
	for _, obj := range store.List() {
		n, ok := obj.(*corev1.Node)
		if !ok || n.Annotations[annotationFake] != "" {
			continue
		}
		if n.Name == a.cfg.NodeName {
			self.Addrs = a.machine(n).Addrs
			continue
		}
		others = append(others, a.machine(n))
	}
	links, err := kernel.Links()
	if err != nil {
		return err
	}
	plan := mesh.New(a.cfg.Mode, self, links, others, a.cfg.Cluster)
	if unreached := strings.Join(plan.Unreached, "; "); unreached != a.unreached {
		a.unreached = unreached
		if unreached != "" {
			a.cfg.Log.Warn("no way to the pods of some nodes", "nodes", unreached)
		}
	}
	if err := kernel.Apply(plan); err != nil {
		return err
	}
	if kernel.InProcess() && !a.warned {
		a.warned = true
		a.cfg.Log.Warn("this kernel has no WireGuard: this process encrypts, and pods of other nodes are unreachable " +
			"while it is not running")
	}
	if plan.PodMTU > 0 {
		a.cfg.Pods.SetMTU(plan.PodMTU)
	}
	return a.cfg.Pods.SetCluster(plan.Cluster)
}

// maxAddresses is the maximum number of addresses of a node that count.
const maxAddresses = 64

// machine converts a Node to the input of mesh. A node writes its Node itself. Its VXLAN endpoint counts only if it is
// the one that follows from its name: with another node's MAC address it would get that node's packets.
func (a *Agent) machine(node *corev1.Node) mesh.Machine {
	m := mesh.Machine{Name: node.Name, Since: node.CreationTimestamp.Time}
	for _, address := range node.Status.Addresses {
		if address.Type != corev1.NodeInternalIP || len(m.Addrs) == maxAddresses {
			continue
		}
		if ip, err := netip.ParseAddr(address.Address); err == nil && ip.Zone() == "" {
			m.Addrs = append(m.Addrs, ip.Unmap())
		}
	}
	for _, text := range node.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			m.Pods = append(m.Pods, p.Masked())
		}
	}
	own := mesh.VTEP(a.cfg.Network, node.Name)
	if mac, err := net.ParseMAC(node.Annotations[AnnotationVTEP]); err == nil && slices.Equal(mac, own) {
		m.VTEP = own
	}
	if key, port, ok := wireguard.End(node); ok {
		m.Key = key
		m.Port = port
		m.Start = wireguard.Start(node)
	}
	return m
}

func same(a, b mesh.Machine) bool {
	return a.Since.Equal(b.Since) && slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.Pods, b.Pods) &&
		slices.Equal(a.VTEP, b.VTEP) && a.Key == b.Key && a.Port == b.Port && a.Start == b.Start
}
