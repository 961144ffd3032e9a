// SPDX-License-Identifier: Apache-2.0

// Package proxy makes Services reachable from this node and its pods: it watches Services and EndpointSlices through
// the client and maintains one nftables table, whose rules package services computes. cluster runs it next to the
// kubelet or as a process of its own, and calls Rules to show the rules of a Service (written.go). The kernel forwards
// the packets: the proxy never handles one. It never runs another program, never changes other nftables tables, and
// does nothing while nothing changes. NetworkPolicies are enforced by package policy, in a table and a role of their
// own.
//
// The path of a change: informers -> changetracker.go -> Proxy.loop -> services.State.Update, which returns the
// difference -> one nftables transaction -> marks, events, and stale conntrack entries of UDP (conntrack.go). health.go
// answers the health checks of load balancers.
//
// Invariants:
//  1. One goroutine owns the state and writes the table. Informers only record what changed; all changes recorded
//     during a transaction form the next one, which starts at once.
//  2. The first transaction, and the one after any failure or damage, is the whole table. After a change of the node's
//     zone or address ranges the table is computed again, and the difference is written.
//  3. The table stays when the process ends, so Services work while it restarts. Purge deletes it.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"keelson/client"
	"keelson/event"
	"keelson/lib/run"
	"keelson/lib/signal"
	"keelson/network/nft"
	"keelson/proxy/services"
)

// Config configures a Proxy.
type Config struct {
	Client   *client.Client
	NodeName string
	// Table is the name of the nftables table.
	Table string
	// PodCIDRs are the node's pod ranges until its Node object has some.
	PodCIDRs []netip.Prefix
	// PodGroup is the group of the links of this cluster's pods on this node; 0: unknown.
	PodGroup uint32
	Options  Options
	// NetNS is the descriptor of a network namespace; 0: the process's.
	NetNS int
	// Servers are the addresses by which this process reaches the API server; Reserved are the ports of this node's own
	// programs, with their names. No Service gets them.
	Servers  []netip.AddrPort
	Reserved map[services.HostPort]string
	// Taken reports whether a process on this node listens on an address and port; nil: ask the kernel.
	Taken func(addr netip.Addr, proto uint8, port uint16) bool
	// Pages serves /statusz and /flagz; nil: they are not served.
	Pages http.Handler
	// Metrics counts what the proxy does; nil: metrics that are not exported.
	Metrics *Metrics
	Marks   *event.Recorder
	Log     *slog.Logger
}

// Proxy serves the Services of one node.
type Proxy struct {
	cfg     Config
	log     *slog.Logger
	writer  *nft.Writer
	tracker changeTracker
	health  *healthChecks
	live    *liveness
	events  *client.Events
	// written holds the Services' parts that are in the kernel.
	written written

	// Used by the loop only.
	node  services.Node
	state *services.State // nil until the first write
	// changes in state that are not in the kernel yet; after the write they cause marks, events and conntrack deletions
	pending *services.Change
	pace    pace
}

// New checks the configuration. It starts nothing.
func New(cfg Config) (*Proxy, error) {
	if cfg.Client == nil || cfg.NodeName == "" || cfg.Table == "" {
		return nil, errors.New("the service proxy needs a client, the node's name and a table")
	}
	if err := cfg.Options.Validate(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics()
	}
	if cfg.Taken == nil {
		cfg.Taken = listening
	}
	p := &Proxy{
		cfg:    cfg,
		log:    cfg.Log,
		live:   &liveness{},
		health: &healthChecks{log: cfg.Log, own: net.InterfaceAddrs},
		events: cfg.Client.Events("kube-proxy", cfg.NodeName, cfg.Log),
	}
	p.health.live = p.live
	p.tracker.init(cfg.NodeName)
	return p, nil
}

// Run maintains the table until ctx is done; the table stays. It calls ready when the first rules are in the kernel.
func (p *Proxy) Run(ctx context.Context, ready func()) error {
	writer, err := nft.Open(nft.Config{Name: p.cfg.Table, NetNS: p.cfg.NetNS, Log: p.log})
	if err != nil {
		return err
	}
	defer func() { _ = writer.Close() }()
	p.writer = writer
	damaged := signal.New()
	return run.Together(nil,
		run.Part{Name: "informers", Run: p.runInformers},
		run.Part{Name: "events", Run: p.events.Run},
		run.Part{
			Name: "rules",
			Run: func(ctx context.Context, ready func()) error {
				return p.loop(ctx, damaged.C(), ready)
			},
		},
		run.Part{
			Name: "watch of rules",
			Run: func(ctx context.Context, ready func()) error {
				ready()
				return writer.Watch(ctx, damaged.Notify)
			},
		},
		run.Part{Name: "health checks", Run: p.health.run},
		run.Part{
			Name: "healthz",
			Run: func(ctx context.Context, ready func()) error {
				return p.serveHealthz(ctx, ready)
			},
		},
		run.Part{Name: "metrics", Run: p.serveMode},
	)(ctx, ready)
}

// Purge deletes the table from the kernel. A missing table is not an error.
func Purge(table string) error {
	w, err := nft.Open(nft.Config{Name: table})
	if err != nil {
		return err
	}
	return errors.Join(w.Delete(), w.Close())
}

// loop writes the changes of the tracker, and repairs the table after damage or a failed write.
func (p *Proxy) loop(ctx context.Context, damaged <-chan struct{}, ready func()) error {
	started := sync.OnceFunc(ready)
	timer := time.NewTimer(0)
	if !timer.Stop() {
		<-timer.C
	}
	defer timer.Stop()
	broken := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.tracker.wake.C():
		case <-damaged:
			broken = true
			p.log.Warn("the rules of services were changed by another program", "table", p.cfg.Table)
		case <-timer.C:
		}
		if wait := p.pace.wait(); broken && wait > 0 {
			timer.Reset(wait)
			continue
		}
		err := p.sync(broken)
		if err != nil {
			p.live.failed()
			p.cfg.Metrics.failures.Inc()
			p.log.Error("write the rules of services", "err", err)
			broken = true
			p.pace.tried()
			timer.Reset(p.pace.wait())
			continue
		}
		if broken {
			p.pace.tried()
		}
		broken = false
		if p.state != nil {
			p.live.wrote()
			started()
		}
	}
}

// wrote reports whether rules were written for the batch. There are none if only the node was listed again.
func (b *changeBatch) wrote(full, broken bool) bool { return full || broken || len(b.services) > 0 }

// sync takes the changes and writes them.
func (p *Proxy) sync(broken bool) error {
	batch := p.tracker.take()
	if batch == nil && !broken {
		return nil
	}
	begun := time.Now()
	full := false
	err := error(nil)
	if batch == nil {
		batch = &changeBatch{}
		err = p.writer.Repair()
	} else {
		full, err = p.write(batch, broken)
		p.health.set(p.state, p.node.NodePortCIDRs)
		p.cfg.Metrics.observe(batch, time.Since(begun), full)
	}
	if err == nil && batch.wrote(full, broken) {
		p.log.Info("rules written", "services", len(batch.services), "table", full, "repaired", broken, "took",
			time.Since(begun).Round(10*time.Microsecond))
	}
	if err != nil {
		return fmt.Errorf("%d services: %w", len(batch.services), err)
	}
	if p.pending != nil {
		p.written.note(*p.pending, time.Now())
		p.deleteFlows(*p.pending)
		p.emitMarks(batch, *p.pending, begun, full)
		p.pending = nil
	}
	return nil
}

// write applies a batch to state and kernel, and adds the changes to pending. full: it wrote the whole table.
func (p *Proxy) write(batch *changeBatch, broken bool) (full bool, err error) {
	node := p.facts(batch.node)
	var change services.Change
	full = p.state == nil || !sameNode(p.node, node)
	if full {
		var t *nft.Table
		t, p.state, change = services.Table(p.cfg.Table, node, p.tracker.all())
		p.node = node
		err = p.writer.Write(t)
	} else {
		change = p.update(batch.services)
		if err = p.writer.Change(&change.Delta); err == nil && broken {
			err = p.writer.Repair()
		}
	}
	if p.pending == nil {
		p.pending = &change
	} else {
		p.pending.Join(change)
	}
	return full, err
}

// update updates the state with the changed Services, and with those that waited for a frontend that became free.
func (p *Proxy) update(names map[types.NamespacedName]seen) services.Change {
	in := make(map[types.NamespacedName]services.Input, len(names))
	for n := range names {
		in[n] = p.tracker.input(n)
	}
	change := p.state.Update(in)
	for len(change.Freed) > 0 {
		again := map[types.NamespacedName]services.Input{}
		for _, n := range change.Freed {
			again[n] = p.tracker.input(n)
		}
		more := p.state.Update(again)
		change.Join(more)
		change.Freed = more.Freed
		if len(more.Freed) >= len(again) {
			break // Services that compete for the same frontends: stop
		}
	}
	return change
}

// pace is the back-off of repairs, for the case that another program changes the table after each repair.
type pace struct {
	last time.Time
	gap  time.Duration
}

const (
	minGap = 100 * time.Millisecond
	maxGap = 30 * time.Second
)

func (p *pace) wait() time.Duration {
	if p.last.IsZero() {
		return 0
	}
	return max(0, p.gap-time.Since(p.last))
}

func (p *pace) tried() {
	now := time.Now()
	if now.Sub(p.last) > 2*maxGap {
		p.gap = 0
	}
	p.gap = min(max(2*p.gap, minGap), maxGap)
	p.last = now
}
