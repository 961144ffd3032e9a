// SPDX-License-Identifier: Apache-2.0

// Package configreload reads configuration files again when they change, and counts how that went. The API server's options use it. It
// never applies a file that is wrong: what was read before stays in use.
package configreload

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

	"keelson/lib/linux"
	"keelson/lib/run"
)

// Apply takes the new content of a file. An error leaves what was there before in use.
type Apply func(ctx context.Context, content []byte) error

// Files are configuration files that are read again when they change. A file that is wrong then is logged, counted, and changes nothing.
type Files struct {
	log   *slog.Logger
	files []*file
}

type file struct {
	path  string
	last  []byte // what was read last, right or wrong
	apply Apply

	// Metrics are of those that Kubernetes counts; the others have none.
	reloads *prometheus.CounterVec
	at      *prometheus.GaugeVec
	info    *prometheus.GaugeVec
	server  string
}

// New watches no file yet.
func New(log *slog.Logger) *Files { return &Files{log: log} }

// Configuration reads the file at path, a configuration that Kubernetes counts reloads of, and has use make of its content what applies
// later ones; nil: none are applied. name is the metrics' word for it.
func (l *Files) Configuration(path, name string, use func(content []byte) (Apply, error)) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read %s configuration: %w", name, err)
	}
	apply, err := use(b)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	prefix := "apiserver_" + name + "_config_controller_"
	f := &file{
		path: path, last: b, apply: apply, server: hashOf([]byte(serverName())),
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
	return nil
}

// Watch has apply called with what the file at path holds whenever that is something else than last, which is in use.
func (l *Files) Watch(path string, last []byte, apply Apply) {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	l.files = append(l.files, &file{path: path, last: last, apply: apply})
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

// Collectors are the metrics of the configurations' reloads.
func (l *Files) Collectors() []prometheus.Collector {
	var out []prometheus.Collector
	for _, f := range l.files {
		if f.reloads != nil {
			out = append(out, f.reloads, f.at, f.info)
		}
	}
	return out
}

// Part watches the files; nil: there are none.
func (l *Files) Part() run.Func {
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
func (l *Files) look(ctx context.Context, f *file) {
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
