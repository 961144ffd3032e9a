// SPDX-License-Identifier: Apache-2.0

// Package plugin finds the plugins that run on the node. Each makes a socket in one directory, which is followed through inotify, and
// says there what it is: the service Registration of Kubernetes' kubelet. What a type of plugin is good for is its Handler's; this
// package knows none. The kubelet runs one Registry.
//
// Every socket has a goroutine of its own, so that a plugin that hangs holds up nobody else.
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

// Info is what a plugin says of itself. Whoever runs it could write anything: a Handler checks it.
type Info struct {
	Socket   string // the name of its socket in the directory
	Name     string
	Endpoint string // empty: its own socket
	Versions []string
}

// Handler takes up the plugins of one type.
type Handler interface {
	// Register takes a plugin up; an error is told to the plugin, and Register is tried again later. ctx ends with the plugin's socket.
	// There may be one of the same name behind another socket.
	Register(ctx context.Context, i Info) error
	// Unregister says that the socket of a plugin that was taken up has gone. It is not called when the kubelet ends.
	Unregister(ctx context.Context, i Info)
}

// Registry follows one directory.
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
	// maxSockets bounds how many plugins a node has.
	maxSockets = 256
	// answerWithin is how long a plugin may take to say what it is.
	answerWithin = 10 * time.Second
	// registerWithin bounds one attempt of a handler.
	registerWithin = 2 * time.Minute
	firstRetry     = 500 * time.Millisecond
	lastRetry      = 2 * time.Minute
)

// identity tells a socket from another one of the same name.
type identity struct {
	dev, ino uint64
	made     time.Time
}

// socket is a plugin's life.
type socket struct {
	identity
	end  context.CancelFunc
	done chan struct{}
}

// Run takes plugins up as their sockets come, and gives them up as they go, until ctx is done.
func (r *Registry) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	known := map[string]*socket{}
	for ctx.Err() == nil {
		err := linux.WatchDir(ctx, r.dir, func() { r.look(ctx, &wg, known) })
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

// look compares the sockets that are there with those that are known.
func (r *Registry) look(ctx context.Context, wg *sync.WaitGroup, known map[string]*socket) {
	there, err := r.sockets()
	if err != nil {
		r.log.Warn("look for plugins", "dir", r.dir, "err", err)
		return
	}
	for name, s := range known {
		if id, ok := there[name]; !ok || id != s.identity {
			s.end()
			delete(known, name)
			if ok { // another one under this name waits until the first has gone
				r.start(ctx, wg, known, name, id, s.done)
			}
		}
	}
	for name, id := range there {
		if known[name] == nil {
			r.start(ctx, wg, known, name, id, nil)
		}
	}
}

func (r *Registry) start(ctx context.Context, wg *sync.WaitGroup, known map[string]*socket, name string, id identity, after <-chan struct{}) {
	sctx, end := context.WithCancel(ctx)
	s := &socket{identity: id, end: end, done: make(chan struct{})}
	known[name] = s
	wg.Go(func() {
		defer close(s.done)
		defer end()
		if after != nil {
			<-after // its predecessor was told to end
		}
		r.live(ctx, sctx, name)
	})
}

// sockets are the sockets in the directory.
func (r *Registry) sockets() (map[string]identity, error) {
	d, err := inroot.Open(r.dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }() // O_PATH
	names, err := d.Names(".", maxSockets)
	if err != nil {
		return nil, err
	}
	out := map[string]identity{}
	for _, n := range names {
		i, err := d.Lstat(n)
		if err != nil || i.Type() != unix.S_IFSOCK || strings.HasPrefix(n, ".") {
			continue
		}
		out[n] = identity{i.Dev, i.Ino, i.Modified}
	}
	return out, nil
}

// live is a plugin's life: taken up, until its socket has gone. all is the kubelet's life.
func (r *Registry) live(all, ctx context.Context, name string) {
	wait := firstRetry
	for ctx.Err() == nil {
		info, h, err := r.register(ctx, name)
		if err == nil {
			r.log.Info("plugin is registered", "socket", name, "name", info.Name)
			<-ctx.Done()
		}
		if err == nil && all.Err() == nil {
			r.giveUp(all, h, info)
		}
		if ctx.Err() != nil {
			return
		}
		r.log.Warn("register plugin", "socket", name, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, lastRetry)
	}
}

func (r *Registry) giveUp(ctx context.Context, h Handler, i Info) {
	ctx, cancel := context.WithTimeout(ctx, registerWithin)
	defer cancel()
	h.Unregister(ctx, i)
}

// register asks a plugin what it is, hands it to its handler, and tells it the outcome. The handler is set once it knows the plugin.
func (r *Registry) register(ctx context.Context, name string) (Info, Handler, error) {
	conn, err := Dial(r.dir, name)
	if err != nil {
		return Info{}, nil, err
	}
	defer func() { _ = conn.Close() }()
	api := registration.NewRegistrationClient(conn)
	actx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	got, err := api.GetInfo(actx, &registration.InfoRequest{})
	if err != nil {
		return Info{}, nil, fmt.Errorf("ask what it is: %w", err)
	}
	i := Info{Socket: name, Name: got.GetName(), Endpoint: got.GetEndpoint(), Versions: got.GetSupportedVersions()}
	h, err := r.handler(got)
	if err == nil {
		hctx, stop := context.WithTimeout(ctx, registerWithin)
		err = h.Register(hctx, i)
		stop()
	}
	status := &registration.RegistrationStatus{PluginRegistered: err == nil}
	if err != nil {
		status.Error = fmt.Sprintf("RegisterPlugin error -- plugin registration failed with err: %v", err)
	}
	nctx, cancelNotify := context.WithTimeout(ctx, answerWithin)
	defer cancelNotify()
	if _, nerr := api.NotifyRegistrationStatus(nctx, status); nerr != nil && err == nil {
		r.log.Warn("tell a plugin that it is registered", "socket", name, "err", nerr)
	}
	return i, h, err
}

// handler is whose a plugin is.
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
