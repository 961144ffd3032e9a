// SPDX-License-Identifier: Apache-2.0

package clustertest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"keelson/auth"
	"keelson/client"
	"keelson/lib/run"
	"keelson/simulate"
)

// The parts of a cluster, as named in Kill and Restart.
const (
	APIServer   = "apiserver"
	Controllers = "controllers"
	Scheduler   = "scheduler"
	Nodes       = "nodes"
)

// part is one of them. It can be killed and restarted.
type part struct {
	name string
	// begin creates a new run. Its clients pass a gate that is shut when the run ends.
	begin func(*gate) (run.Func, error)

	mu   sync.Mutex
	life *life // nil while it is stopped
}

// life is one run of a part.
type life struct {
	gate   *gate
	cancel context.CancelFunc
	ended  chan error
}

// start returns when the part is ready.
func (p *part) start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life != nil {
		return nil
	}
	g := &gate{}
	f, err := p.begin(g)
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	l := &life{gate: g, cancel: cancel, ended: make(chan error, 1)}
	ready := make(chan struct{})
	var once sync.Once
	go func() { l.ended <- f(ctx, func() { once.Do(func() { close(ready) }) }) }() // ends with ctx; end waits for it
	select {
	case <-ready:
		p.life = l
		return nil
	case err := <-l.ended:
		cancel()
		return fmt.Errorf("%s ended while it started: %w", p.name, errors.Join(err))
	}
}

// end stops the part; with kill it is first disconnected from the server.
func (p *part) end(kill bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.life
	if l == nil {
		return nil
	}
	p.life = nil
	if kill {
		l.gate.shut.Store(true)
	}
	l.cancel()
	err := <-l.ended
	if kill {
		return nil // its error does not matter
	}
	return err
}

// gate is passed by all requests of one run of a part. Once it is shut, no request reaches the server.
type gate struct{ shut atomic.Bool }

var errKilled = errors.New("this part of the cluster was killed")

// connect creates the clients of one run.
func (c *Cluster) connect(name string, g *gate) func(*auth.User, string) *client.Client {
	return func(u *auth.User, agent string) *client.Client {
		h, s := c.mem.ForUser(u)
		if c.config.Between != nil {
			h, s = c.config.Between(name, u.Name, h, s)
		}
		cl, err := client.InProcess(g.handler(c.up(h)), gated{func() *gate { return g }, gated{c.server.Load, s}},
			agent)
		if err != nil {
			panic(err) // cannot happen: the arguments are constant
		}
		return cl
	}
}

func (g *gate) handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.shut.Load() {
			panic(http.ErrAbortHandler) // the client sees its connection break
		}
		h.ServeHTTP(w, r)
	})
}

// gated is a source behind a gate.
type gated struct {
	g func() *gate
	s client.Source
}

// List implements client.Source.
func (s gated) List(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
) ([]runtime.Object, string, error) {
	if s.g().shut.Load() {
		return nil, "", errKilled
	}
	return s.s.List(ctx, gvr, namespace, opts)
}

// Watch implements client.Source.
func (s gated) Watch(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
) (watch.Interface, error) {
	if s.g().shut.Load() {
		return nil, errKilled
	}
	return s.s.Watch(ctx, gvr, namespace, opts)
}

// Kill ends a part as kill -9 does: its pending writes do not arrive. Clients of a killed API server get errors until
// it is restarted; acknowledged writes remain.
func (c *Cluster) Kill(name string) error {
	p, err := c.part(name)
	if err != nil {
		return err
	}
	return p.end(true)
}

// Cut disconnects the API server at once, as Kill does, but does not wait for its end. A mark listener, which runs
// inside the server's work, may call it. Kill and Restart must follow.
func (c *Cluster) Cut() { c.server.Load().shut.Store(true) }

// Restart starts a part again if it is stopped, and returns when it is ready.
func (c *Cluster) Restart(name string) error {
	p, err := c.part(name)
	if err != nil {
		return err
	}
	return p.start(c.ctx)
}

func (c *Cluster) part(name string) (*part, error) {
	for _, p := range c.parts {
		if p.name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("the cluster was started without %q", name)
}

// SilenceNode makes a node look dead: its lease is renewed once more for 40 s, its pods stay as they are.
func (c *Cluster) SilenceNode(ctx context.Context, name string) error {
	return c.annotate(ctx, name, `"40s"`)
}

// WakeNode brings a silent node back.
func (c *Cluster) WakeNode(ctx context.Context, name string) error {
	return c.annotate(ctx, name, "null")
}

func (c *Cluster) annotate(ctx context.Context, node, silent string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, simulate.AnnotationSilent, silent)
	_, err := c.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
