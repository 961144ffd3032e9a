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
	"net/url"
	"os"
	"path/filepath"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"

	"keelson/event"
	"keelson/lib/linux"
	"keelson/lib/logrotate"
	"keelson/runtime/image"
	"keelson/runtime/pods"
	"keelson/runtime/shim"
	"keelson/runtime/snapshot"
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
	Network Network
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

	cfg          Config
	log          *slog.Logger
	host         linux.Facts
	shim         *shim.Client
	seal         *seal // set by Run
	events       *broker
	stream       streaming.Server
	base         *url.URL // of the URLs that Exec, Attach and PortForward return; Run sets the host
	pairListener *pairListener

	userns  usernsCheck
	network networkState

	table *pods.Table
}

// New prepares a Server. It starts nothing and reads nothing.
func New(cfg Config) (*Server, error) {
	server := &Server{
		cfg:          cfg,
		log:          cfg.Log,
		events:       newBroker(),
		base:         &url.URL{},
		pairListener: newPairListener(),
		table:        pods.NewTable(cfg.Dir, cfg.Log),
	}
	sc := streaming.DefaultConfig
	sc.BaseURL = server.base
	var err error
	if server.stream, err = streaming.NewServer(sc, streams{server}); err != nil {
		return nil, fmt.Errorf("make streaming server: %w", err)
	}
	return server, nil
}

// Run loads the sandboxes and containers of earlier runs, calls ready and serves until ctx is done. Containers keep
// running after it.
func (s *Server) Run(ctx context.Context, ready func()) error {
	if err := s.ensureShim(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	stopStreams, err := s.serveStreams(ctx, &wg)
	if err != nil {
		return err
	}
	known := s.watchNetwork(ctx, &wg)
	loaded := make(chan error, 1)
	wg.Go(func() { s.watchShim(ctx, loaded) })
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

// ensureShim makes the directories, detects the machine's abilities and starts or upgrades the supervisor.
func (s *Server) ensureShim(ctx context.Context) error {
	if err := os.MkdirAll(s.shimDir(), 0o700); err != nil {
		return fmt.Errorf("make runtime directory: %w", err)
	}
	err := s.table.MakeDirs()
	if err != nil {
		return err
	}
	if s.host, err = linux.Detect(); err != nil {
		return err
	}
	if s.seal, err = openSeal(s.path(keyDir)); err != nil {
		return err
	}
	s.shim, err = shim.Ensure(ctx, s.shimDir(), s.cfg.Shim, func(pid int) error {
		// In a cgroup of its own, because an init system kills all processes in ours when this one stops.
		return linux.JoinCgroup(s.host.Cgroups, filepath.Join(s.cfg.CgroupParent, "supervisor"), pid)
	})
	if err != nil {
		return err
	}
	if err := s.shim.Configure(ctx, shim.Settings{Logs: s.cfg.Logs}); err != nil {
		return fmt.Errorf("configure container supervisor: %w", err)
	}
	return nil
}

func (s *Server) path(elem ...string) string {
	return filepath.Join(append([]string{s.cfg.Dir}, elem...)...)
}

func (s *Server) shimDir() string { return s.path("shim") }

// removeAll deletes a directory. The caller has unmounted everything in it.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}
