// SPDX-License-Identifier: Apache-2.0

// Package simulate adds fake nodes to a cluster: nodes without machines whose pods
// become Running and Ready by themselves. cluster starts it for --fake-nodes, and
// benchmarks use it to fill thousands of nodes. It plays the kubelet's part through
// the API alone; it runs nothing and needs no privileges. Fake nodes carry the
// taint keelson.dev/fake, so that real work never lands on them by accident.
package simulate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"keelson/client"
	"keelson/lib/mark"
)

// Names that users and schedulers see.
const (
	// LabelType is "keelson-fake" on fake nodes.
	LabelType  = "type"
	TypeFake   = "keelson-fake"
	TaintFake  = "keelson.dev/fake"
	fakePrefix = "fake-"
	// AnnotationBy says who simulates a fake node: Config.By.
	AnnotationBy = "keelson.dev/simulated-by"
	// AnnotationSilent makes a fake node behave as one whose power fails: it says nothing any more, and its pods stay as they are. Its
	// value is how long the node's last lease lasts (a Go duration), otherwise 40 s. Without the annotation the node comes back.
	AnnotationSilent = "keelson.dev/silent"
)

// workers is how many pods are moved on at once; a durable write takes a millisecond or two. Few of them leave the machine to
// what is studied: scheduling and controllers.
const workers = 4

// Config says what to simulate. Default fills in the rest.
type Config struct {
	Client *client.Client
	// Nodes is how many; they are named Prefix0, Prefix1, ...
	Nodes  int
	Prefix string // default "fake-"
	// Names are those of further nodes.
	Names []string
	// By tells the nodes of this simulator from those of others, over restarts; default "keelson". Nodes that an earlier one of the
	// same name made, and that are not simulated any more, are removed.
	By string
	// Untainted lets pods land that do not tolerate the taint keelson.dev/fake=true:NoSchedule: for a cluster of fake nodes only.
	Untainted bool
	// CPU, Memory and Pods are each node's size; defaults 32, 256Gi, 110.
	CPU, Memory resource.Quantity
	Pods        int64
	// Renew is how often each node's lease is renewed; default 30 min, with leases that last four times as long. A
	// kube-controller-manager wants every 10 s whatever the lease says; Keelson's own believes the lease.
	Renew time.Duration
	Marks *mark.Recorder // nil ok
	Log   *slog.Logger   // nil: discarded
}

// Default returns c with its gaps filled.
func (c Config) Default() Config {
	if c.Prefix == "" {
		c.Prefix = fakePrefix
	}
	if c.By == "" {
		c.By = "keelson"
	}
	if c.CPU.IsZero() {
		c.CPU = resource.MustParse("32")
	}
	if c.Memory.IsZero() {
		c.Memory = resource.MustParse("256Gi")
	}
	if c.Pods == 0 {
		c.Pods = 110
	}
	if c.Renew == 0 {
		c.Renew = 30 * time.Minute
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Simulator plays the kubelets of all fake nodes.
type Simulator struct {
	cfg   Config
	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]
	pods  corelisters.PodLister
	nodes corelisters.NodeLister
	// events tell what becomes of nodes, not that they begin: thousands of events would delay the start of thousands of nodes.
	events *client.Events
	ips    *addresses
	named  map[string]int // Config.Names, by name; their numbers follow those of the other nodes
	// turned are the nodes that fell silent or came back.
	turned workqueue.TypedRateLimitingInterface[int]

	mu     sync.Mutex
	leases map[int]*coordination.Lease // as last written
	mute   map[int]time.Duration       // silent nodes, and how long their last leases last
}

// count is how many nodes there are.
func (c Config) count() int { return c.Nodes + len(c.Names) }

// New checks cfg. It starts nothing.
func New(cfg Config) (*Simulator, error) {
	cfg = cfg.Default()
	switch {
	case cfg.Client == nil:
		return nil, errors.New("simulate: no client given")
	case cfg.Nodes < 0 || cfg.count() > maxNodes:
		return nil, fmt.Errorf("simulate: %d nodes: want 0 to %d", cfg.count(), maxNodes)
	}
	named := map[string]int{}
	for i, name := range cfg.Names {
		named[name] = cfg.Nodes + i
	}
	return &Simulator{
		cfg: cfg, named: named, ips: newAddresses(), events: cfg.Client.Events("kubelet", cfg.By, cfg.Log), leases: map[int]*coordination.Lease{}, mute: map[int]time.Duration{},
		turned: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[int](5*time.Millisecond, 30*time.Second)),
		queue:  workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](5*time.Millisecond, 30*time.Second)),
	}, nil
}

// Run registers the nodes, calls ready, and keeps their pods and leases until ctx is done. The nodes stay registered.
func (s *Simulator) Run(ctx context.Context, ready func()) error {
	defer s.queue.ShutDown()
	defer s.turned.ShutDown()
	if s.cfg.count() == 0 {
		ready() // nobody waits for what is gone
		if err := s.register(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Log.Warn("fake nodes of an earlier run are not removed", "err", err)
		}
		<-ctx.Done()
		return nil
	}
	// Pods that are not bound yet, most of a burst, are nobody's business here.
	factory := s.cfg.Client.Informers(0, client.Scope{Tweak: func(o *metav1.ListOptions) { o.FieldSelector = "spec.nodeName!=" }})
	pods := coreinformers.New(factory.Scoped()).Pods()
	s.pods = pods.Lister()
	reg, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: s.seen, UpdateFunc: func(_, obj any) { s.changed(obj) }, DeleteFunc: s.gone,
	})
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	if err := s.register(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	heard, ours, err := s.watchNodes()
	if err != nil {
		return err
	}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	ours.StartWithContext(ctx)
	defer ours.Shutdown()
	if !cache.WaitFor(ctx, "", heard, reg.HasSyncedChecker()) {
		return nil
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for s.step(ctx) {
			}
		})
	}
	wg.Go(func() { s.renewLeases(ctx) })
	wg.Go(func() { _ = s.events.Run(ctx, func() {}) }) // it knows no error
	wg.Go(func() {
		for s.turn(ctx) {
		}
	})
	ready()
	<-ctx.Done()
	s.queue.ShutDown()
	s.turned.ShutDown()
	wg.Wait()
	return nil
}

// index returns the number of one of our nodes, false for others.
func (s *Simulator) index(node string) (int, bool) {
	if i, ok := s.named[node]; ok {
		return i, true
	}
	rest, ok := strings.CutPrefix(node, s.cfg.Prefix)
	if !ok {
		return 0, false
	}
	i, err := strconv.Atoi(rest)
	return i, err == nil && i >= 0 && i < s.cfg.Nodes && strconv.Itoa(i) == rest
}

// mine returns obj as a pod of one of our nodes with the node's number.
func (s *Simulator) mine(obj any) (*corev1.Pod, int, bool) {
	p, ok := client.Delivered[*corev1.Pod](obj)
	if !ok {
		return nil, 0, false
	}
	i, ok := s.index(p.Spec.NodeName)
	return p, i, ok
}

func (s *Simulator) seen(obj any) {
	p, i, ok := s.mine(obj)
	if !ok {
		return
	}
	s.ips.keep(i, p.Status.PodIP)
	if p.Status.Phase == corev1.PodPending {
		s.emit(p, mark.StepSeen, &mark.Seen{Source: "api"})
	}
	s.changed(p)
}

func (s *Simulator) changed(obj any) {
	if p, i, ok := s.mine(obj); ok && !s.silent(i) && next(p, time.Now()).what != nothing {
		s.queue.Add(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
	}
}

func (s *Simulator) gone(obj any) {
	if p, i, ok := s.mine(obj); ok {
		s.ips.release(i, p.Status.PodIP)
		s.emit(p, mark.StepTerminated, &mark.Status{From: string(p.Status.Phase), To: string(p.Status.Phase)})
	}
}

func (s *Simulator) emit(p *corev1.Pod, step mark.Step, detail any) {
	if s.cfg.Marks == nil {
		return
	}
	s.cfg.Marks.Emit(mark.Mark{
		Step: step, Component: "kubelet " + p.Spec.NodeName, At: time.Now(), Detail: detail,
		Subject: mark.Subject{Resource: "pods", Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)},
	})
}
