// SPDX-License-Identifier: Apache-2.0

// Package server implements CRI v1, one file per verb. Package runtime makes a Server; the kubelet calls it through
// package cri. It uses image, snapshot and oci for what a container is made of, and the supervisor (package shim) to
// run it. It never calls the API server.
//
// There is no pause container. A pod's network, IPC and UTS namespaces are held by bind mounts below the pod's
// directory. A PID namespace ends with its first process, so only a pod whose containers share one has a holder
// process, of a few hundred kB.
//
// Invariants:
//  1. The record of a sandbox or container is written before anything is made in the kernel, and deleted after all of
//     that is removed. So the next start finds whatever a crash left incomplete, and removes it.
//  2. The supervisor knows which containers run; the records say what they are. load compares the two at the start.
//  3. Stop and Remove are idempotent; an unknown id is not an error.
package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/event"
	"keelson/lib/linux"
	"keelson/lib/logrotate"
	"keelson/runtime/cgroup"
	"keelson/runtime/events"
	"keelson/runtime/image"
	"keelson/runtime/podnet"
	"keelson/runtime/pods"
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
	runtimeapi.UnimplementedImageServiceServer

	cfg  Config
	log  *slog.Logger
	host linux.Facts

	table      *pods.Table
	cgroups    *cgroup.Tree
	supervisor *supervisor.Supervisor
	specs      *sealed.Specs
	events     *events.Broker
	network    *podnet.Connector
	users      *userns.Support

	shim    *shim.Client
	streams *stream.Service
	stats   *stats.Reader
}

// New reads what the machine can do and prepares a Server. It starts nothing, and reads no record.
func New(cfg Config) (*Server, error) {
	host, err := linux.Detect()
	if err != nil {
		return nil, err
	}
	table := pods.NewTable(cfg.Dir, cfg.Log)
	cgroups := cgroup.New(host.Cgroups, cfg.CgroupParent, cfg.Log)
	broker := events.New(table)
	supervised := supervisor.New(cfg.Dir, cfg.Shim, cgroups, cfg.Logs, cfg.Log)
	specs := sealed.New(cfg.Dir)
	streams, err := stream.New(table, specs, supervised.Client(), cfg.StreamTCP, cfg.Log)
	if err != nil {
		return nil, err
	}
	return &Server{
		cfg:        cfg,
		log:        cfg.Log,
		host:       host,
		table:      table,
		cgroups:    cgroups,
		supervisor: supervised,
		specs:      specs,
		events:     broker,
		network:    podnet.New(cfg.Network, cfg.Connected, broker, cfg.Marks, cfg.Log),
		users:      userns.New(cfg.Shim, table, cfg.Snapshots, cfg.Log),
		shim:       supervised.Client(),
		streams:    streams,
		stats:      stats.New(table, cgroups, cfg.Snapshots, cfg.Dir),
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
			Load:      func(all []shim.State) error { return s.load(ctx, all) },
			Reconcile: s.reconcile,
			Exited:    s.recordExit,
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
	errs := []error{err}
	for _, id := range dirNames(s.table.SandboxesDir()) {
		errs = append(errs, s.purgeSandbox(ctx, id))
	}
	for _, id := range dirNames(s.table.ContainersDir()) {
		errs = append(errs, removeAll(filepath.Join(s.table.ContainersDir(), id)))
	}
	// No record was loaded, so every snapshot is one without a container.
	errs = append(errs, s.sweepSnapshots(ctx), s.cgroups.Remove(s.cgroups.Parent()), s.specs.Close())
	return errors.Join(errs...)
}

func dirNames(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // it does not exist
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func (s *Server) purgeSandbox(ctx context.Context, id string) error {
	sb := s.table.NewSandbox(pods.SandboxRecord{ID: id})
	kinds := []linux.Namespace{
		linux.NetworkNamespace, linux.IPCNamespace, linux.UTSNamespace, linux.UserNamespace, pods.PIDNamespace,
	}
	err := errors.Join(s.network.Detach(ctx, id), linux.Release(sb.NS(""), kinds), linux.Unmount(sb.Shm()))
	if err != nil {
		return err
	}
	return removeAll(sb.Dir)
}

// removeAll deletes a directory. The caller has unmounted everything in it.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}
