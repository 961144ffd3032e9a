// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/client"
	"keelson/event"
	"keelson/lib/signal"
	"keelson/network/nft"
)

// Config configures an Agent.
type Config struct {
	Client *client.Client
	// Node is this node's name: policies are enforced for its pods.
	Node string
	// Table is the name of the nftables table, which only the Agent writes.
	Table string
	// NetNS is the descriptor of a network namespace; 0: the process's.
	NetNS int
	Marks *event.Recorder
	Log   *slog.Logger
}

// Agent maintains the rules of a node's network policies.
type Agent struct {
	cfg        Config
	informers  *client.Informers
	policies   networkinglisters.NetworkPolicyLister
	namespaces corelisters.NamespaceLister
	pods       corelisters.PodLister
	queue      *queue
	ready      chan struct{} // closed once the first plan is in the kernel

	mu     sync.Mutex
	state  *State
	writer *nft.Writer // nil unless Run runs
	early  map[string]early
	failed bool // the last write failed
}

// New returns an Agent. It starts nothing.
func New(cfg Config) *Agent {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	f := cfg.Client.Informers(0, client.Scope{})
	return &Agent{
		cfg:        cfg,
		informers:  f,
		queue:      newQueue(),
		ready:      make(chan struct{}),
		state:      NewState(),
		early:      map[string]early{},
		policies:   networkinginformers.New(f.Scoped()).NetworkPolicies().Lister(),
		namespaces: coreinformers.New(f.Scoped()).Namespaces().Lister(),
		pods:       coreinformers.New(f.Scoped()).Pods().Lister(),
	}
}

// Run enforces policies until ctx is done; the table stays, so pods are isolated while the Agent is not running. It is
// ready when its informers are started: the first rules are written when they have synced, and sandboxes wait for that
// (Connected).
func (a *Agent) Run(ctx context.Context, ready func()) error {
	writer, err := nft.Open(nft.Config{Name: a.cfg.Table, NetNS: a.cfg.NetNS, Log: a.cfg.Log})
	if err != nil {
		return err
	}
	defer func() { _ = writer.Close() }() // nothing is lost
	if err := a.listen(); err != nil {
		return err
	}
	var work sync.WaitGroup
	defer work.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.informers.StartWithContext(ctx)
	defer a.informers.Shutdown()
	defer cancel() // before Shutdown waits
	ready()
	if !a.informers.WaitForCacheSync(ctx) || ctx.Err() != nil {
		return nil // it waits until ctx is done
	}
	damage := signal.New()
	work.Go(func() {
		err := writer.Watch(ctx, damage.Notify)
		if err != nil && ctx.Err() == nil {
			a.cfg.Log.Error("changes of the policies' rules by other programs are not detected", "err", err)
		}
	})
	a.loop(ctx, writer, damage)
	a.mu.Lock()
	a.writer = nil
	a.mu.Unlock()
	return nil
}

// Pauses between repairs, and after errors.
const (
	minPause = 100 * time.Millisecond
	maxPause = 30 * time.Second
	calm     = time.Minute // time without a repair after which the pause is reset
)

// loop writes changes, and writes the whole table after damage by another program or a failed write.
func (a *Agent) loop(ctx context.Context, writer *nft.Writer, damage signal.Signal) {
	a.applyQueue()
	err := a.start(writer)
	pause := minPause
	last := time.Now()
	var retry <-chan time.Time
	for {
		if err != nil {
			a.cfg.Log.Error("write network policies", "err", err, "retry", pause)
			retry = time.After(pause)
			pause = min(2*pause, maxPause)
		}
		err = nil
		select {
		case <-ctx.Done():
			return
		case <-a.queue.wake.C():
			err = a.applyAndWrite()
		case <-damage.C():
			if time.Since(last) > calm {
				pause = minPause
			}
			last = time.Now()
			a.cfg.Log.Info("another program changed the rules of network policies: they are written again", "table",
				a.cfg.Table)
			if retry == nil {
				retry = time.After(pause)
				pause = min(2*pause, maxPause)
			}
		case <-retry:
			retry = nil
			if err = a.repair(writer); err == nil && time.Since(last) > calm {
				pause = minPause
			}
		}
	}
}

// start writes the first plan.
func (a *Agent) start(w *nft.Writer) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	begin := time.Now()
	p := a.state.Plan()
	a.state.Drain()
	a.reportClosedLocked()
	a.writer = w
	err := w.Write(Table(a.cfg.Table, p))
	if err == nil {
		a.openLocked()
		a.emitMarksLocked(begin, a.localLocked())
	}
	return err
}

// openLocked unblocks sandboxes that wait for the first plan.
func (a *Agent) openLocked() {
	select {
	case <-a.ready:
	default:
		close(a.ready)
	}
}

func (a *Agent) repair(w *nft.Writer) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	err := w.Repair()
	if err == nil {
		a.openLocked()
	}
	return err
}

func (a *Agent) applyAndWrite() error {
	begin := time.Now()
	a.applyQueue()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writeLocked(begin)
}

// writeLocked writes the changes to the kernel.
func (a *Agent) writeLocked(begin time.Time) error {
	moved := a.state.Moved()
	d := a.state.Drain()
	a.reportClosedLocked()
	if d.Empty() && !a.failed {
		return nil
	}
	err := a.writer.Change(d)
	a.failed = err != nil
	if err != nil {
		return err
	}
	a.emitMarksLocked(begin, moved)
	return nil
}

// reportClosedLocked logs which namespaces are closed, when that changes.
func (a *Agent) reportClosedLocked() {
	closed, changed := a.state.Closed()
	switch {
	case !changed:
	case len(closed) == 0:
		a.cfg.Log.Info("no namespace has network policies that are too large any more")
	default:
		a.cfg.Log.Error("network policies of namespaces are too large: their isolated pods exchange nothing; merge "+
			"rules or list fewer peers", "namespaces", closed)
	}
}

// applyQueue updates the state from the listers, for the keys in the queue.
func (a *Agent) applyQueue() {
	keys := a.queue.take()
	a.mu.Lock()
	defer a.mu.Unlock()
	for key := range keys {
		switch key.kind {
		case policyKey:
			if p, err := a.policies.NetworkPolicies(key.namespace).Get(key.name); err == nil {
				a.state.SetPolicy(p)
			} else {
				a.state.DeletePolicy(key.namespace, key.name)
			}
		case namespaceKey:
			if n, err := a.namespaces.Get(key.name); err == nil {
				a.state.SetNamespace(n.Name, n.Labels)
			} else {
				a.state.DeleteNamespace(key.name)
			}
		case podKey:
			p, err := a.pods.Pods(key.namespace).Get(key.name)
			if err != nil {
				p = nil
			}
			a.podLocked(key.namespace, key.name, p)
		}
	}
}

// listen adds the informers' event handlers, which queue the keys of changed objects.
func (a *Agent) listen() error {
	_, err1 := networkinginformers.New(a.informers.Scoped()).NetworkPolicies().Informer().AddEventHandler(
		handler(func(p *networkingv1.NetworkPolicy) {
			a.queue.add(key{policyKey, p.Namespace, p.Name})
		}))
	_, err2 := coreinformers.New(a.informers.Scoped()).Namespaces().Informer().AddEventHandler(
		handler(func(n *corev1.Namespace) {
			a.queue.add(key{namespaceKey, "", n.Name})
		}))
	_, err3 := coreinformers.New(a.informers.Scoped()).Pods().Informer().AddEventHandler(handler(func(p *corev1.Pod) {
		a.queue.add(key{podKey, p.Namespace, p.Name})
	}))
	return errors.Join(err1, err2, err3)
}

func handler[T any](f func(T)) cache.ResourceEventHandlerFuncs {
	deliver := func(obj any) {
		if t, ok := client.Delivered[T](obj); ok {
			f(t)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    deliver,
		UpdateFunc: func(_, obj any) { deliver(obj) },
		DeleteFunc: deliver,
	}
}

// Purge deletes a table from the kernel. No Agent may be running. A missing table is not an error.
func Purge(table string) error {
	w, err := nft.Open(nft.Config{Name: table})
	if err != nil {
		return err
	}
	return errors.Join(w.Delete(), w.Close())
}
