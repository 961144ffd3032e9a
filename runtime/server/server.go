// SPDX-License-Identifier: Apache-2.0

// Package server is the CRI face of the runtime: it makes the parts of which a runtime consists, in a straight line,
// and turns CRI requests into calls of them. Package runtime makes a Server; the kubelet calls it through package cri.
// It never calls the API server, and does by itself nothing that one of its parts could do.
//
//	         server
//	   +-------+-------+---------+---------+
//	sandbox -> container      stream     stats     what CRI's verbs are about
//	   |       |       |         |         |
//	podnet  userns  sealed  supervisor  cgroup     what they need of the machine
//	   +-------+-------+---------+---------+
//	             pods, events                      what is known, and who learns of it
//
// Invariants:
//  1. A part gets what it needs as arguments of its constructor; arrows go down only, and no part knows this package.
//  2. The records of sandboxes and containers, and the order of their locks, are those of package pods. The supervisor
//     knows which containers run. loader compares the two at the start, before ready is called.
//  3. A verb checks nothing that its part checks too. Errors have their gRPC codes from the part (package fault).
package server

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/event"
	"keelson/lib/linux"
	"keelson/lib/logrotate"
	"keelson/runtime/cgroup"
	"keelson/runtime/container"
	"keelson/runtime/events"
	"keelson/runtime/image"
	"keelson/runtime/podnet"
	"keelson/runtime/pods"
	"keelson/runtime/sandbox"
	"keelson/runtime/sealed"
	"keelson/runtime/shim"
	"keelson/runtime/snapshot"
	"keelson/runtime/stats"
	"keelson/runtime/stream"
	"keelson/runtime/supervisor"
	"keelson/runtime/userns"
)

// Config is what a Server needs.
type Config struct {
	// Dir holds the records of sandboxes and containers and the supervisor's state.
	Dir string
	// Shim is the path of the shim program.
	Shim string
	// CgroupParent ("/keelson-<id>") is the parent cgroup of the supervisor, and of pods whose sandbox names no cgroup.
	CgroupParent string
	Images       *image.Store
	Snapshots    *snapshot.Store
	// Network may be nil: pods then have a loopback interface only.
	Network podnet.Network
	// Connected, unless nil, is called with a pod's addresses before its containers can be created. An error fails
	// RunPodSandbox.
	Connected func(ctx context.Context, pod *runtimeapi.PodSandboxConfig, addrs []netip.Addr) error
	// Logs bounds each container's log; zero fields mean Kubernetes' defaults.
	Logs  logrotate.Policy
	Marks *event.Recorder
	Log   *slog.Logger
	// StreamTCP also serves exec, attach and port-forward streams on a loopback port with TLS, for clients in other
	// processes. Otherwise only DialStreams reaches them.
	StreamTCP bool
	// CDIDirs hold the CDI specifications; empty: /etc/cdi and /var/run/cdi.
	CDIDirs []string
	// HostPath returns where the path that a CDI specification names as the source of a mount is on this machine; nil:
	// there. It is called once for each mount.
	HostPath func(string) string
}

// Server implements cri.Server. Its methods may be called while Run runs.
type Server struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	images

	host       linux.Facts
	table      *pods.Table
	cgroups    *cgroup.Tree
	supervisor *supervisor.Supervisor
	specs      *sealed.Specs
	events     *events.Broker
	network    *podnet.Connector
	users      *userns.Support
	containers *container.Service
	sandboxes  *sandbox.Service
	streams    *stream.Service
	stats      *stats.Reader
	loader     *loader
}

// New reads what the machine can do and makes the parts of a Server. It starts nothing, and reads no record.
func New(cfg Config) (*Server, error) {
	host, err := linux.Detect()
	if err != nil {
		return nil, err
	}
	table := pods.NewTable(cfg.Dir, cfg.Log)
	broker := events.New(table)
	cgroups := cgroup.New(host.Cgroups, cfg.CgroupParent, cfg.Log)
	supervised := supervisor.New(cfg.Dir, cfg.Shim, cgroups, cfg.Logs, cfg.Log)
	specs := sealed.New(cfg.Dir)
	streams, err := stream.New(table, specs, supervised.Client(), cfg.StreamTCP, cfg.Log)
	if err != nil {
		return nil, err
	}
	network := podnet.New(cfg.Network, cfg.Connected, broker, cfg.Marks, cfg.Log)
	users := userns.New(cfg.Shim, table, cfg.Snapshots, cfg.Log)
	containers := container.New(container.Config{
		Table:     table,
		Shim:      supervised.Client(),
		Specs:     specs,
		Images:    cfg.Images,
		Snapshots: cfg.Snapshots,
		Users:     users,
		Cgroups:   cgroups,
		Events:    broker,
		Host:      host,
		Log:       cfg.Log,
		CDIDirs:   cfg.CDIDirs,
		HostPath:  cfg.HostPath,
	})
	sandboxes := sandbox.New(sandbox.Config{
		Table:      table,
		Containers: containers,
		Shim:       supervised.Client(),
		Network:    network,
		Users:      users,
		Cgroups:    cgroups,
		Events:     broker,
		Log:        cfg.Log,
	})
	return &Server{
		images:     images{store: cfg.Images, marks: cfg.Marks},
		host:       host,
		table:      table,
		cgroups:    cgroups,
		supervisor: supervised,
		specs:      specs,
		events:     broker,
		network:    network,
		users:      users,
		containers: containers,
		sandboxes:  sandboxes,
		streams:    streams,
		stats:      stats.New(table, cgroups, cfg.Snapshots, cfg.Dir),
		loader: &loader{
			table:      table,
			supervisor: supervised,
			containers: containers,
			sandboxes:  sandboxes,
			network:    network,
			cgroups:    cgroups,
			log:        cfg.Log,
		},
	}, nil
}

// Run loads the sandboxes and containers of earlier runs, calls ready and serves until ctx is done. Containers keep
// running after it.
func (s *Server) Run(ctx context.Context, ready func()) error {
	if err := s.table.MakeDirs(); err != nil {
		return err
	}
	if err := s.specs.Open(); err != nil {
		return err
	}
	if err := s.supervisor.Ensure(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	stopStreams, err := s.streams.Serve(ctx, &wg)
	if err != nil {
		return err
	}
	known := s.network.Watch(ctx, &wg)
	loaded := make(chan error, 1)
	wg.Go(func() {
		s.supervisor.Watch(ctx, supervisor.Observer{
			Load:      func(all []shim.State) error { return s.loader.load(ctx, all) },
			Reconcile: s.loader.reconcile,
			Exited:    s.loader.exited,
		}, loaded)
	})
	select {
	case err = <-loaded:
	case <-ctx.Done():
	}
	if err == nil && ctx.Err() == nil {
		known()
		ready()
		<-ctx.Done()
	}
	stopStreams()
	wg.Wait()
	return err
}

// Purge ends all containers and the supervisor, and removes all that they have in the kernel, and all records. It needs
// only the data directory: the supervisor may be dead or hang. Processes that do not end in time are killed through
// their cgroup; it is an error if that does not end them either. Run must not be running. Purge is idempotent. waiting,
// which may be nil, is called with what Purge waits for when that takes long.
func (s *Server) Purge(ctx context.Context, waiting func(what string)) error {
	if waiting == nil {
		waiting = func(string) {}
	}
	err := s.supervisor.End(ctx, waiting)
	if err != nil && ctx.Err() != nil {
		return err
	}
	return errors.Join(err, s.sandboxes.Purge(ctx), s.containers.Purge(ctx), s.cgroups.Remove(s.cgroups.Parent()),
		s.specs.Close())
}
