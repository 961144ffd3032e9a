// SPDX-License-Identifier: Apache-2.0

// Package assets takes the place of the programs that test harnesses start: envtest of controller-runtime, and those
// like it. Install makes a directory of them. RunAPIServer is kube-apiserver as a harness starts it: flags of that
// program, objects in the etcd that it names, no data directory, and no controllers, as suites expect. cli calls both.
// The etcd is a small program of its own (store/etcdapi/etcd).
package assets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"k8s.io/klog/v2"

	"keelson/cluster"
	"keelson/cluster/storage"
	"keelson/cluster/version"
	"keelson/event/eventlog"
	"keelson/lib/log"
	"keelson/lib/memory"
	"keelson/lib/parent"
	"keelson/lib/run"
)

// APIServer is the name of kube-apiserver's program.
const APIServer = "kube-apiserver"

// RunAPIServer runs kube-apiserver with its arguments until ctx ends, or the process that started this one. It writes
// help and version to out, and its log to errs.
func RunAPIServer(ctx context.Context, args []string, out, errs io.Writer) error {
	var set settings
	if err := set.parse(args, out, errs); err != nil || set.printed {
		return err
	}
	controllers, err := controllersOf(os.Getenv(Extras))
	if err != nil {
		return err
	}
	ctx, done, err := parent.Follow(ctx)
	if err != nil {
		return err
	}
	defer done()
	level := slog.LevelInfo
	if set.verbose() {
		level = slog.LevelDebug
	}
	logger := slog.New(log.Fold(slog.NewTextHandler(errs, &slog.HandlerOptions{Level: level})))
	klog.SetSlogLogger(slog.New(log.Demote(logger.Handler())).With(eventlog.Key, eventlog.Libraries))
	defer memory.Pace(storage.MemoryLimit())()
	return set.run(ctx, controllers, logger)
}

// run serves the API until ctx ends.
func (s *settings) run(ctx context.Context, controllers []string, logger *slog.Logger) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(s.bind(), strconv.Itoa(s.port)))
	if err != nil {
		return fmt.Errorf("listen for the API: %w", err)
	}
	defer func() { _ = listener.Close() }()
	st, err := s.role.Etcd.Open(ctx, logger.With(eventlog.Key, eventlog.Store))
	if err != nil {
		return err
	}
	defer func() { _ = st.Close() }()
	server, err := cluster.NewInMemory(cluster.InMemoryConfig{
		Store:    st,
		Listener: listener,
		API:      s.role.API,
		Services: s.role.Services,
		Gates:    s.role.Gates,
		Listen:   s.role.Options.Listen,
		Log:      logger,
	})
	if err != nil {
		return err
	}
	group := &run.Group{}
	group.Add("API server", server.Run)
	if len(controllers) > 0 {
		group.Add("controllers", server.Controllers(cluster.ControllerOptions{Controllers: controllers}, server.Direct))
	}
	return group.Run(ctx, func() {
		logger.Info("ready", "version", version.Kubernetes, "api", listener.Addr())
	})
}

// certificate makes the files of --cert-dir those of the serving certificate, where a harness has put them.
func (s *settings) certificate() {
	if s.certDir == "" || s.role.API.Serving.CertFile != "" {
		return
	}
	cert, key := filepath.Join(s.certDir, "apiserver.crt"), filepath.Join(s.certDir, "apiserver.key")
	if _, err := os.Stat(cert); errors.Is(err, os.ErrNotExist) {
		return // Kubernetes makes one that no client can know either
	}
	s.role.API.Serving.CertFile, s.role.API.Serving.KeyFile = cert, key
}
