// SPDX-License-Identifier: Apache-2.0

// Package server is Keelson's container runtime as the kubelet sees it: CRI v1, a file per verb. package runtime assembles it; it
// knows images, snapshots, the supervisor and the pod network by their interfaces, and nothing of Kubernetes beyond CRI.
//
// There is no pause process. A pod's network, IPC and UTS namespaces are held by mounts below the pod's directory; a PID namespace that
// containers share cannot be, because it ends with its first process, so such a pod (and no other) has a holder of a few hundred kB.
//
// Invariants:
//  1. Every sandbox and container is on disk before it has anything in the kernel, and leaves the disk after it has nothing there.
//     So whatever a crash leaves half done is found, and undone, at the next start.
//  2. The supervisor knows which containers run; the files say what they are. A restart joins the two.
//  3. Stop and Remove may be repeated, and of what does not exist they are done already.
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

	"keelson/lib/linux"
	"keelson/lib/logrotate"
	"keelson/lib/mark"
	"keelson/runtime/image"
	"keelson/runtime/shim"
	"keelson/runtime/snapshot"
)

// Config is what a Server needs.
type Config struct {
	// Dir holds sandboxes, containers and the supervisor's state.
	Dir string
	// Shim is the path of the shim program.
	Shim string
	// CgroupParent is where pods go whose sandbox names no cgroup, and the supervisor itself: "/keelson-<id>".
	CgroupParent string
	Images       *image.Store
	Snapshots    *snapshot.Store
	// Network may be nil: pods then have a loopback interface only.
	Network Network
	// Connected, unless nil, is told of a pod's addresses before its containers can be made. An error ends the sandbox.
	Connected func(ctx context.Context, pod *runtimeapi.PodSandboxConfig, addrs []netip.Addr) error
	// Logs bounds each container's log; what is zero is Kubernetes' default.
	Logs  logrotate.Policy
	Marks *mark.Recorder
	Log   *slog.Logger
	// StreamTCP offers streams on a port of the loopback, with TLS, for clients in other processes; else DialStreams is the only way.
	StreamTCP bool
	// CDIDirs hold the specifications of devices that containers name; empty: /etc/cdi and /var/run/cdi.
	CDIDirs []string
}

// Server implements cri.Server. Its verbs work while Run does.
type Server struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	cfg    Config
	log    *slog.Logger
	host   linux.Facts
	shim   *shim.Client
	events *broker
	stream streaming.Server
	base   *url.URL // of stream's addresses; its host is known once Run listens
	pairs  *pairs

	users   usersCheck
	network networkState

	mu         sync.RWMutex
	sandboxes  map[string]*sandbox
	containers map[string]*container
	names      map[string]string // what may exist once -> id
}

// New prepares a Server. It starts nothing and reads nothing.
func New(cfg Config) (*Server, error) {
	s := &Server{
		cfg: cfg, log: cfg.Log, events: newBroker(), base: &url.URL{}, pairs: newPairs(),
		sandboxes: map[string]*sandbox{}, containers: map[string]*container{}, names: map[string]string{},
	}
	sc := streaming.DefaultConfig
	sc.BaseURL = s.base
	var err error
	if s.stream, err = streaming.NewServer(sc, streams{s}); err != nil {
		return nil, fmt.Errorf("make streaming server: %w", err)
	}
	return s, nil
}

// Run finds what earlier runs left, calls ready and serves until ctx is done. Containers go on running after it.
func (s *Server) Run(ctx context.Context, ready func()) error {
	if err := s.open(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	stopStreams, err := s.serveStreams(ctx, &wg)
	if err != nil {
		return err
	}
	known := s.watchNetwork(ctx, &wg)
	loaded := make(chan error, 1)
	wg.Go(func() { s.follow(ctx, loaded) })
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

// open makes the directories, learns the machine's facts and makes sure of a supervisor.
func (s *Server) open(ctx context.Context) error {
	for _, d := range []string{s.shimDir(), s.path("sandboxes"), s.path("containers")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return fmt.Errorf("make runtime directory: %w", err)
		}
	}
	var err error
	if s.host, err = linux.Detect(); err != nil {
		return err
	}
	s.shim, err = shim.Ensure(ctx, s.shimDir(), s.cfg.Shim, func(pid int) error {
		// Out of our own cgroup, which an init system would end together with us.
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

// sandbox finds a sandbox by id, or by a beginning of it that fits one only.
func (s *Server) sandbox(id string) (*sandbox, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return find(s.sandboxes, "pod sandbox", id)
}

func (s *Server) container(id string) (*container, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return find(s.containers, "container", id)
}

// reserve makes sure that what has this name exists once.
func (s *Server) reserve(name, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if have, ok := s.names[name]; ok {
		return exists("%s is %s already", name, have)
	}
	s.names[name] = id
	return nil
}

func (s *Server) unreserve(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.names, name)
}

// removeAll deletes a directory that must not be a mount point any more.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}
