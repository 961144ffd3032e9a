// SPDX-License-Identifier: Apache-2.0

// Package configreload reloads configuration files when they change, counts the results, and keeps which files are not
// in use because they are wrong. cluster registers the files of the API server's options and of the scheduler. It never
// applies an invalid file: the previous content stays in use.
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

// Apply switches to the new content of a file. On an error the previous content stays in use.
type Apply func(ctx context.Context, content []byte) error

// Files are configuration files that are reloaded when they change. An invalid file is logged and counted, and changes
// nothing.
type Files struct {
	log      *slog.Logger
	rejected *Rejected
	files    []*file
}

type file struct {
	name  string // of the configuration
	path  string
	last  []byte // the last content read, valid or not
	lost  bool   // it could not be read after that
	apply Apply

	// The metrics exist only for files whose reloads Kubernetes counts.
	reloads   *prometheus.CounterVec
	timestamp *prometheus.GaugeVec
	info      *prometheus.GaugeVec
	server    string
}

// New returns an empty list of files. rejected gets those that are not in use; it may be nil.
func New(log *slog.Logger, rejected *Rejected) *Files { return &Files{log: log, rejected: rejected} }

// Configuration reads the file at path, a configuration whose reloads Kubernetes counts. use applies it and returns the
// function for later content; nil: no reloads. name is its name in the metrics.
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
		name:   name,
		path:   path,
		last:   b,
		apply:  apply,
		server: hashOf([]byte(serverName())),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "automatic_reloads_total",
			Help: "How often the " + name + " configuration was read again, by how that went.",
		}, []string{"status", "apiserver_id_hash"}),
		timestamp: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "automatic_reload_last_timestamp_seconds",
			Help: "When the " + name + " configuration was read again last, by how that went.",
		}, []string{"status", "apiserver_id_hash"}),
		info: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "last_config_info",
			Help: "The hash of the " + name + " configuration in use.",
		}, []string{"apiserver_id_hash", "hash"}),
	}
	f.info.WithLabelValues(f.server, hashOf(b)).Set(1)
	l.files = append(l.files, f)
	return nil
}

// Watch calls apply when the content of the file differs from last, the content in use. name is that of the
// configuration. If it has several files, apply must read all of them.
func (l *Files) Watch(name, path string, last []byte, apply Apply) {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	l.files = append(l.files, &file{
		name:  name,
		path:  path,
		last:  last,
		apply: apply,
	})
}

// serverName identifies this API server in metrics.
func serverName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return "apiserver-" + host
}

func hashOf(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

// Collectors are the reload metrics.
func (l *Files) Collectors() []prometheus.Collector {
	var out []prometheus.Collector
	for _, f := range l.files {
		if f.reloads != nil {
			out = append(out, f.reloads, f.timestamp, f.info)
		}
	}
	return out
}

// Part returns the part that watches the files; nil: there are none.
func (l *Files) Part() run.Func {
	if len(l.files) == 0 {
		return nil
	}
	return func(ctx context.Context, ready func()) error {
		ready()
		group, ctx := errgroup.WithContext(ctx)
		for _, f := range l.files {
			group.Go(func() error { return linux.WatchFile(ctx, f.path, func() { l.reload(ctx, f) }) })
		}
		return group.Wait()
	}
}

// reload reads f and applies a new content.
func (l *Files) reload(ctx context.Context, f *file) {
	b, err := os.ReadFile(f.path)
	if err == nil {
		if bytes.Equal(b, f.last) && !f.lost {
			return
		}
		f.last = b
		f.lost = false
		err = f.apply(ctx, b)
	} else {
		f.lost = true
	}
	l.rejected.set(f, err)
	status := "success"
	if err != nil {
		status = "failure"
		l.log.Error("reload file, the previous content stays in use", "file", f.path, "error", err)
	} else {
		l.log.Info("file reloaded", "file", f.path)
	}
	if f.reloads == nil {
		return
	}
	if err == nil {
		f.info.Reset()
		f.info.WithLabelValues(f.server, hashOf(b)).Set(1)
	}
	f.reloads.WithLabelValues(status, f.server).Inc()
	f.timestamp.WithLabelValues(status, f.server).SetToCurrentTime()
}
