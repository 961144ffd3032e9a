// SPDX-License-Identifier: Apache-2.0

// Package simulate adds fake nodes to a cluster: nodes without machines whose pods become Running and Ready by
// themselves. cluster starts it for --fake-nodes; benchmarks and clustertest use it for thousands of nodes. It acts as
// their kubelets through the API only: it never runs a container and needs no privileges. Fake nodes have the taint
// keelson.dev/fake, so that normal pods are not scheduled to them.
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

	"keelson/client"
	"keelson/event"
	"keelson/lib/keyed"
)

// Names in the API objects of fake nodes.
const (
	// LabelType has the value TypeFake on fake nodes.
	LabelType  = "type"
	TypeFake   = "keelson-fake"
	TaintFake  = "keelson.dev/fake"
	fakePrefix = "fake-"
	// AnnotationBy is the name of the simulator of a fake node: Config.By.
	AnnotationBy = "keelson.dev/simulated-by"
	// AnnotationSilent simulates a power failure of a fake node: no lease renewals, no pod updates. Its value is the
	// duration of the node's last lease (a Go duration); default 40 s. Without the annotation the node recovers.
	AnnotationSilent = "keelson.dev/silent"
)

// workers is the number of pods updated at once. A durable write takes 1 to 2 ms. A small number leaves the CPU to the
// components under test: scheduler and controllers. Deletions have workers of their own: nothing but the simulator
// works on them, and many that are written together share a sync.
const (
	workers       = 4
	removeWorkers = 32
)

// Pauses before a pod or node is tried again: doubled from the first to the last.
const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// Config configures the simulator. Default sets the defaults.
type Config struct {
	Client *client.Client
	// Nodes is the number of nodes named Prefix0, Prefix1, ...
	Nodes  int
	Prefix string // default "fake-"
	// Names are the names of further nodes.
	Names []string
	// By is the name of this simulator, stable over restarts; default "keelson". Nodes created under the same name that
	// are no longer configured are removed.
	By string
	// Untainted leaves out the taint keelson.dev/fake=true:NoSchedule: for a cluster that has only fake nodes.
	Untainted bool
	// CPU, Memory and Pods are each node's capacity; defaults 32, 256Gi, 110.
	CPU, Memory resource.Quantity
	Pods        int64
	// Renew is the lease renewal interval; default 30 min, with leases four times as long. Keelson's node lifecycle
	// controller respects the lease duration; kube-controller-manager needs a renewal every 10 s.
	Renew time.Duration
	Marks *event.Recorder // may be nil
	Log   *slog.Logger    // nil: discarded
}

// Default returns c with defaults for the unset fields.
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

// Simulator acts as the kubelets of all fake nodes.
type Simulator struct {
	cfg   Config
	queue *keyed.Loop[types.NamespacedName]
	// removals holds the pods in deletion, queue all others.
	removals *keyed.Loop[types.NamespacedName]
	pods     corelisters.PodLister
	nodes    corelisters.NodeLister
	// events are recorded for changes of nodes, not for their start: thousands of events would delay the start of
	// thousands of nodes.
	events *client.Events
	ips    *addresses
	named  map[string]int // Config.Names by name; the indexes continue those of the other nodes
	// turned holds the nodes that became silent, came back or were deleted.
	turned *keyed.Loop[int]

	mu     sync.Mutex
	leases map[int]*coordination.Lease // leases as last written
	mute   map[int]time.Duration       // silent nodes and the durations of their last leases
}

// count is the total number of nodes.
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
	s := &Simulator{
		cfg:    cfg,
		named:  named,
		ips:    newAddresses(),
		events: cfg.Client.Events("kubelet", cfg.By, cfg.Log),
		leases: map[int]*coordination.Lease{},
		mute:   map[int]time.Duration{},
	}
	s.turned = keyed.New(keyed.Config[int]{
		Do:        func(ctx context.Context, i int) (time.Duration, error) { return 0, s.turn(ctx, i) },
		Pause:     firstRetry,
		PauseMost: lastRetry,
		Failed: func(i int, err error) {
			cfg.Log.Warn("fake node will be tried again", "node", s.name(i), "err", err)
		},
	})
	s.queue = s.podLoop(workers)
	s.removals = s.podLoop(removeWorkers)
	return s, nil
}

func (s *Simulator) podLoop(workers int) *keyed.Loop[types.NamespacedName] {
	return keyed.New(keyed.Config[types.NamespacedName]{
		Do:        s.step,
		Workers:   workers,
		Pause:     firstRetry,
		PauseMost: lastRetry,
		Failed: func(pod types.NamespacedName, err error) {
			s.cfg.Log.Warn("fake pod will be retried", "pod", pod.String(), "err", err)
		},
	})
}

// Run registers the nodes, calls ready, and updates their pods and leases until ctx is done. The nodes stay registered.
func (s *Simulator) Run(ctx context.Context, ready func()) error {
	if s.cfg.count() == 0 {
		ready() // without nodes there is nothing to wait for
		if err := s.register(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Log.Warn("fake nodes of an earlier run are not removed", "err", err)
		}
		<-ctx.Done()
		return nil
	}
	// Unbound pods, most of a burst, do not concern us.
	factory := s.cfg.Client.Informers(0, client.Scope{Tweak: func(o *metav1.ListOptions) {
		o.FieldSelector = "spec.nodeName!="
	}})
	pods := coreinformers.New(factory.Scoped()).Pods()
	s.pods = pods.Lister()
	reg, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    s.seen,
		UpdateFunc: func(_, obj any) { s.changed(obj) },
		DeleteFunc: s.gone,
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
	wg.Go(func() { _ = s.queue.Run(ctx) })    // it returns no error
	wg.Go(func() { _ = s.removals.Run(ctx) }) // it returns no error
	wg.Go(func() { s.renewLeases(ctx) })
	wg.Go(func() { _ = s.events.Run(ctx, func() {}) }) // it returns no error
	wg.Go(func() { _ = s.turned.Run(ctx) })            // it returns no error
	ready()
	<-ctx.Done()
	wg.Wait()
	return nil
}

// index returns the index of one of our nodes, false for others.
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

// mine returns obj as a pod of one of our nodes, with the node's index.
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
		s.emit(p, event.StepSeen, &event.Seen{Source: "simulator"})
	}
	s.changed(p)
}

func (s *Simulator) changed(obj any) {
	p, i, ok := s.mine(obj)
	if !ok || s.silent(i) {
		return
	}
	key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	switch next(p, time.Now()).what {
	case nothing:
	case remove:
		s.removals.Add(key)
	case start, end, later, ready:
		s.queue.Add(key)
	}
}

func (s *Simulator) gone(obj any) {
	if p, i, ok := s.mine(obj); ok {
		s.ips.release(i, p.Status.PodIP)
		s.emit(p, event.StepTerminated, &event.Status{From: string(p.Status.Phase), To: string(p.Status.Phase)})
	}
}

func (s *Simulator) emit(pod *corev1.Pod, step event.Step, detail any) {
	if s.cfg.Marks == nil {
		return
	}
	s.cfg.Marks.Emit(event.Event{
		Step:      step,
		Component: "kubelet " + pod.Spec.NodeName,
		At:        time.Now(),
		Detail:    detail,
		Subject: event.Subject{
			Resource:  "pods",
			Namespace: pod.Namespace,
			Name:      pod.Name,
			UID:       string(pod.UID),
		},
	})
}
