// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"keelson/auth"
	"keelson/auth/authn"
	"keelson/auth/authz"
	"keelson/lib/linux"
	"keelson/lib/run"
)

// liveFiles are configuration files that are read again when they change. A file that is wrong then is logged, counted, and changes
// nothing.
type liveFiles struct {
	log   *slog.Logger
	files []*liveFile
	// told is called when the authorities of clients are others; it tells aggregated servers.
	told func(context.Context) error
}

// liveFile is one of them.
type liveFile struct {
	path  string
	last  []byte // what was read last, right or wrong
	apply func(ctx context.Context, b []byte) error

	// Metrics are of those that Kubernetes counts; the others have none.
	reloads *prometheus.CounterVec
	at      *prometheus.GaugeVec
	info    *prometheus.GaugeVec
	server  string
}

// add reads the file at path for the first time. name is the metrics' word for it.
func (l *liveFiles) add(path, name string) (*liveFile, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read %s configuration: %w", name, err)
	}
	prefix := "apiserver_" + name + "_config_controller_"
	f := &liveFile{
		path: path, last: b, server: hashOf([]byte(serverName())),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "automatic_reloads_total", Help: "How often the " + name + " configuration was read again, by how that went.",
		}, []string{"status", "apiserver_id_hash"}),
		at: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "automatic_reload_last_timestamp_seconds", Help: "When the " + name + " configuration was read again last, by how that went.",
		}, []string{"status", "apiserver_id_hash"}),
		info: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "last_config_info", Help: "The hash of the " + name + " configuration in use.",
		}, []string{"apiserver_id_hash", "hash"}),
	}
	f.info.WithLabelValues(f.server, hashOf(b)).Set(1)
	l.files = append(l.files, f)
	return f, nil
}

// again has apply called with what the file at path holds whenever that is something else than last, which is in use. Errors are logged.
func (l *liveFiles) again(path string, last []byte, apply func(ctx context.Context, b []byte) error) {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	l.files = append(l.files, &liveFile{path: path, last: last, apply: apply})
}

// serverName is this API server's name among others.
func serverName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return "apiserver-" + host
}

func hashOf(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

// issuers are those of the AuthenticationConfiguration at path.
func (l *liveFiles) issuers(path string, taken []string) (*authn.Live, error) {
	f, err := l.add(path, "authentication")
	if err != nil {
		return nil, err
	}
	live, err := authn.NewLive(f.last, taken)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f.apply = live.Apply
	return live, nil
}

// authorizers are those of the AuthorizationConfiguration at path.
func (l *liveFiles) authorizers(path string, node, rbac auth.Authorizer) (*authz.Live, error) {
	f, err := l.add(path, "authorization")
	if err != nil {
		return nil, err
	}
	live, err := authz.NewLive(f.last, node, rbac)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f.apply = func(_ context.Context, b []byte) error { return live.Apply(b) }
	return live, nil
}

// collectors are the metrics of how often files were read again.
func (l *liveFiles) collectors() []prometheus.Collector {
	var out []prometheus.Collector
	for _, f := range l.files {
		if f.reloads != nil {
			out = append(out, f.reloads, f.at, f.info)
		}
	}
	return out
}

// part watches the files; nil: there are none.
func (l *liveFiles) part() run.Func {
	if len(l.files) == 0 {
		return nil
	}
	return func(ctx context.Context, ready func()) error {
		ready()
		group, ctx := errgroup.WithContext(ctx)
		for _, f := range l.files {
			group.Go(func() error { return linux.WatchFile(ctx, f.path, func() { l.look(ctx, f) }) })
		}
		return group.Wait()
	}
}

// look reads f again, and applies it if it is another one than before.
func (l *liveFiles) look(ctx context.Context, f *liveFile) {
	b, err := os.ReadFile(f.path)
	if err == nil {
		if bytes.Equal(b, f.last) {
			return
		}
		f.last = b
		err = f.apply(ctx, b)
	}
	status := "success"
	if err != nil {
		status = "failure"
		l.log.Error("file is not read again, what it held before stays in use", "file", f.path, "error", err)
	} else {
		l.log.Info("file read again", "file", f.path)
	}
	if f.reloads == nil {
		return
	}
	if err == nil {
		f.info.Reset()
		f.info.WithLabelValues(f.server, hashOf(b)).Set(1)
	}
	f.reloads.WithLabelValues(status, f.server).Inc()
	f.at.WithLabelValues(status, f.server).SetToCurrentTime()
}
