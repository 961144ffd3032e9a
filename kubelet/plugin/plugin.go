// SPDX-License-Identifier: Apache-2.0

// Package plugin finds the plugins that run on the node. Each makes a socket in one directory, which is watched through
// inotify, and serves the plugin registration API of Kubernetes' kubelet there. Handlers know the types of plugins;
// this package knows none. The kubelet runs one Registry.
//
// Every socket has a goroutine of its own, so that a plugin that hangs does not delay others.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"keelson/lib/inroot"
	"keelson/lib/linux"
)

// Info is a plugin's answer to GetInfo. It is not trusted: a Handler checks it.
type Info struct {
	Socket   string // the name of its socket in the directory
	Name     string
	Endpoint string // empty: its own socket
	Versions []string
}

// Handler handles the plugins of one type.
type Handler interface {
	// Register adds a plugin; the plugin is notified of an error, and Register is retried. ctx ends with the plugin's
	// socket. There may be another plugin of the same name with another socket.
	Register(ctx context.Context, i Info) error
	// Unregister removes a registered plugin whose socket was removed. It is not called when the kubelet stops.
	Unregister(ctx context.Context, i Info)
}

// Registry watches one directory.
type Registry struct {
	dir      string
	handlers map[string]Handler
	log      *slog.Logger
}

// New returns a registry of the sockets in dir, which exists when it runs, for plugins of the types in handlers.
func New(dir string, handlers map[string]Handler, log *slog.Logger) *Registry {
	return &Registry{dir: dir, handlers: handlers, log: log}
}

const (
	// maxSockets limits the number of plugins.
	maxSockets = 256
	// infoTimeout is the timeout of GetInfo and of NotifyRegistrationStatus.
	infoTimeout = 10 * time.Second
	// registerTimeout is the timeout of a handler.
	registerTimeout = 2 * time.Minute
	minBackoff      = 500 * time.Millisecond
	maxBackoff      = 2 * time.Minute
)

// socketID distinguishes a socket from an earlier one of the same name.
type socketID struct {
	dev, ino uint64
	modified time.Time
}

// pluginSocket is a socket with a running goroutine.
type pluginSocket struct {
	socketID
	stop context.CancelFunc
	done chan struct{}
}

// Run registers plugins when their sockets appear and unregisters them when their sockets are removed, until ctx is
// done.
func (r *Registry) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	known := map[string]*pluginSocket{}
	for ctx.Err() == nil {
		err := linux.WatchDir(ctx, r.dir, func() { r.reconcile(ctx, &wg, known) })
		if ctx.Err() != nil {
			return
		}
		r.log.Warn("watch plugins", "dir", r.dir, "err", err)
		if err := os.MkdirAll(r.dir, 0o750); err != nil {
			r.log.Warn("make the directory of plugins", "dir", r.dir, "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// reconcile compares the sockets of the directory with those that have a goroutine.
func (r *Registry) reconcile(ctx context.Context, wg *sync.WaitGroup, known map[string]*pluginSocket) {
	found, err := r.sockets()
	if err != nil {
		r.log.Warn("look for plugins", "dir", r.dir, "err", err)
		return
	}
	for name, s := range known {
		if id, ok := found[name]; !ok || id != s.socketID {
			s.stop()
			delete(known, name)
			if ok { // the new socket of this name waits for the end of the old one
				r.startPlugin(ctx, wg, known, name, id, s.done)
			}
		}
	}
	for name, id := range found {
		if known[name] == nil {
			r.startPlugin(ctx, wg, known, name, id, nil)
		}
	}
}

func (r *Registry) startPlugin(
	ctx context.Context, wg *sync.WaitGroup, known map[string]*pluginSocket, name string, id socketID,
	after <-chan struct{},
) {
	sctx, end := context.WithCancel(ctx)
	s := &pluginSocket{socketID: id, stop: end, done: make(chan struct{})}
	known[name] = s
	wg.Go(func() {
		defer close(s.done)
		defer end()
		if after != nil {
			<-after // its predecessor is stopped
		}
		r.runPlugin(ctx, sctx, name)
	})
}

// sockets returns the sockets in the directory.
func (r *Registry) sockets() (map[string]socketID, error) {
	dir, err := inroot.Open(r.dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // O_PATH
	names, err := dir.Names(".", maxSockets)
	if err != nil {
		return nil, err
	}
	out := map[string]socketID{}
	for _, n := range names {
		i, err := dir.Lstat(n)
		if err != nil || i.Type() != unix.S_IFSOCK || strings.HasPrefix(n, ".") {
			continue
		}
		out[n] = socketID{i.Dev, i.Ino, i.Modified}
	}
	return out, nil
}

// runPlugin registers a plugin, and unregisters it when its socket is removed. kubeletCtx ends with the kubelet.
func (r *Registry) runPlugin(kubeletCtx, ctx context.Context, name string) {
	wait := minBackoff
	for ctx.Err() == nil {
		info, h, err := r.register(ctx, name)
		if err == nil {
			r.log.Info("plugin is registered", "socket", name, "name", info.Name)
			<-ctx.Done()
		}
		if err == nil && kubeletCtx.Err() == nil {
			r.unregister(kubeletCtx, h, info)
		}
		if ctx.Err() != nil {
			return
		}
		r.log.Warn("register plugin", "socket", name, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, maxBackoff)
	}
}

func (r *Registry) unregister(ctx context.Context, h Handler, i Info) {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	h.Unregister(ctx, i)
}

// register calls GetInfo of a plugin, passes it to its handler, and notifies it of the result.
func (r *Registry) register(ctx context.Context, name string) (Info, Handler, error) {
	conn, err := Dial(r.dir, name)
	if err != nil {
		return Info{}, nil, err
	}
	defer func() { _ = conn.Close() }()
	api := registration.NewRegistrationClient(conn)
	actx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	got, err := api.GetInfo(actx, &registration.InfoRequest{})
	if err != nil {
		return Info{}, nil, fmt.Errorf("get the plugin's info: %w", err)
	}
	info := Info{
		Socket:   name,
		Name:     got.GetName(),
		Endpoint: got.GetEndpoint(),
		Versions: got.GetSupportedVersions(),
	}
	handler, err := r.handler(got)
	if err == nil {
		hctx, stop := context.WithTimeout(ctx, registerTimeout)
		err = handler.Register(hctx, info)
		stop()
	}
	status := &registration.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		status.Error = fmt.Sprintf("RegisterPlugin error -- plugin registration failed with err: %v", err)
	}
	nctx, cancelNotify := context.WithTimeout(ctx, infoTimeout)
	defer cancelNotify()
	if _, nerr := api.NotifyRegistrationStatus(nctx, status); nerr != nil && err == nil {
		r.log.Warn("notify a plugin that it is registered", "socket", name, "err", nerr)
	}
	return info, handler, err
}

// handler returns the handler of a plugin's type.
func (r *Registry) handler(i *registration.PluginInfo) (Handler, error) {
	switch h := r.handlers[i.GetType()]; {
	case h == nil:
		return nil, fmt.Errorf("invalid plugin type: no handler registered for plugin type: %.100q", i.GetType())
	case i.GetName() == "":
		return nil, errors.New("the plugin has no name")
	default:
		return h, nil
	}
}
