// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Source measures. Its methods may be called at the same time.
type Source interface {
	// Figures are those of the node, and whether images and writable layers have a file system of their own. They cost a few system calls.
	Figures(ctx context.Context) (f Figures, split bool, err error)
	// All is what every pod uses, for ranking: disk too when disk is set.
	All(ctx context.Context, pods []*corev1.Pod, disk bool) (Usages, error)
	// One is what one pod takes of the disk. It may take as long as a walk through its volumes.
	One(ctx context.Context, p *corev1.Pod) (Usage, error)
}

// Node is what is acted upon.
type Node interface {
	// Pods are those that have not ended.
	Pods() []*corev1.Pod
	// Critical pods are never ended.
	Critical(p *corev1.Pod) bool
	// Reclaim removes what nobody needs: dead containers and unused images.
	Reclaim(ctx context.Context) error
	// Evict ends a pod. The channel is closed when nothing of it runs; nil: the pod is not there, or is ending already.
	Evict(e Eviction) <-chan struct{}
	// Starved tells of a node that is about to be relieved.
	Starved(resource corev1.ResourceName)
	// Changed tells that Conditions gives another answer now.
	Changed()
}

// Eviction is a pod's end.
type Eviction struct {
	Pod     *corev1.Pod
	Message string
	Notes   map[string]string // annotations of the event
	// Grace is how many seconds its containers get at most; nil: the pod's own grace period.
	Grace *int64
	// Disruption: the pod did nothing wrong in its own limits; the node needed room.
	Disruption bool
}

// Reason is the reason of statuses and events.
const Reason = "Evicted"

// Times of the manager.
const (
	defaultInterval = 10 * time.Second
	// quiet is how often a node without pods is: nothing can be relieved there, but its conditions keep pods away.
	quiet = time.Minute
	// asleep is how long nothing is measured while no pod has a limit. A new pod ends it.
	asleep = time.Hour
	// cleanup is how long the manager waits for an evicted pod's end before it looks at the node again.
	cleanup = 30 * time.Second
	// immediately is how many seconds containers get where there is no time.
	immediately = int64(1)
)

// Manager watches over one node. Make it with New.
type Manager struct {
	cfg        Config
	thresholds []Threshold
	source     Source
	node       Node
	log        *slog.Logger
	wake       [2]chan struct{} // of the two loops

	conditions atomic.Pointer[[]corev1.NodeConditionType]
	split      atomic.Bool
	state      State // the pressure loop's own
}

// New reads the configuration and starts nothing.
func New(cfg Config, source Source, node Node, log *slog.Logger) (*Manager, error) {
	t, err := cfg.Thresholds()
	if err != nil {
		return nil, err
	}
	if cfg.Interval == 0 {
		cfg.Interval = defaultInterval
	}
	if cfg.Transition == 0 {
		cfg.Transition = defaultTransition
	}
	m := &Manager{cfg: cfg, thresholds: t, source: source, node: node, log: log}
	for i := range m.wake {
		m.wake[i] = make(chan struct{}, 1)
	}
	m.conditions.Store(new([]corev1.NodeConditionType))
	return m, nil
}

// Conditions are the node's pressures that hold now, sorted. The slice is shared: never modify it.
func (m *Manager) Conditions() []corev1.NodeConditionType { return *m.conditions.Load() }

// Wake says that the node has a new pod.
func (m *Manager) Wake() {
	for _, w := range m.wake {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// Run watches the node until ctx is done. Pressure and limits have a loop each, so that no walk through a pod's files, which the pod can
// make long, keeps the node from being relieved.
func (m *Manager) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { m.loop(ctx, m.wake[0], m.betweenLooks, m.pressure) })
	wg.Go(func() { m.loop(ctx, m.wake[1], m.betweenMeasures, m.limits) })
	wg.Wait()
}

// loop does rounds. A round that ended a pod is followed by another at once; else the next comes after what pause says of the pods that
// there are. A wake brings it forward to that at most: pods that come one after the other never put it off.
func (m *Manager) loop(
	ctx context.Context, wake <-chan struct{}, pause func(pods []*corev1.Pod) time.Duration, round func(context.Context) (ended bool),
) {
	t := time.NewTimer(0)
	defer t.Stop()
	next := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if round(ctx) && ctx.Err() == nil {
				t.Reset(0)
				continue
			}
			next = time.Now().Add(pause(m.node.Pods()))
			t.Reset(time.Until(next))
		case <-wake:
			if at := time.Now().Add(pause(m.node.Pods())); at.Before(next) {
				next = at
				t.Reset(time.Until(next))
			}
		}
	}
}

// betweenLooks is the pause between two looks at the node.
func (m *Manager) betweenLooks(pods []*corev1.Pod) time.Duration {
	if len(pods) == 0 {
		return quiet
	}
	return m.cfg.Interval
}

// betweenMeasures is the pause between two measures of the pods that have limits.
func (m *Manager) betweenMeasures(pods []*corev1.Pod) time.Duration {
	if slices.ContainsFunc(pods, Limited) {
		return m.cfg.Interval
	}
	return asleep
}

// pressure looks at the node once, and relieves it of one pod at most.
func (m *Manager) pressure(ctx context.Context) bool {
	f, split, err := m.source.Figures(ctx)
	if err != nil {
		m.warn(ctx, "measure the node", err)
	}
	m.split.Store(split)
	var out Outcome
	m.state, out = m.state.Next(m.thresholds, f, m.cfg.Transition, time.Now())
	if !slices.Equal(m.Conditions(), out.Conditions) {
		m.conditions.Store(&out.Conditions)
		m.log.Info("pressure of the node changed", "conditions", out.Conditions)
		m.node.Changed()
	}
	if len(out.Starved) == 0 {
		return false
	}
	t := out.Starved[0]
	name := signals[t.Signal].resource
	m.node.Starved(name)
	disk := name == corev1.ResourceEphemeralStorage || name == inodes
	if disk && m.relieved(ctx, t.Signal, split) {
		return false
	}
	pods := m.node.Pods()
	u, err := m.source.All(ctx, pods, disk)
	if err != nil {
		m.warn(ctx, "measure pods", err) // ranked by priority then
	}
	Rank(t.Signal, split, pods, u)
	grace := new(immediately)
	if t.Grace != 0 {
		grace = nil
		if m.cfg.MaxPodGrace > 0 {
			grace = &m.cfg.MaxPodGrace
		}
	}
	for _, p := range pods {
		text, notes := Message(t, out.Starved, f, p, u)
		if m.evict(ctx, Eviction{Pod: p, Message: text, Notes: notes, Grace: grace, Disruption: true}) {
			return true
		}
	}
	return false
}

// relieved removes what nobody needs, and reports whether no pod has to be ended any more.
func (m *Manager) relieved(ctx context.Context, s Signal, split bool) bool {
	if split && (s == NodeFsAvailable || s == NodeFsInodesFree) {
		return false // images and dead containers lie elsewhere
	}
	if err := m.node.Reclaim(ctx); err != nil {
		m.warn(ctx, "reclaim disk", err)
	}
	f, _, err := m.source.Figures(ctx)
	return err == nil && len(metBy(m.thresholds, f, true)) == 0
}

// limits ends every pod that exceeds a limit of its own.
func (m *Manager) limits(ctx context.Context) (ended bool) {
	for _, p := range m.node.Pods() {
		if !Limited(p) || m.node.Critical(p) || ctx.Err() != nil {
			continue
		}
		u, err := m.source.One(ctx, p)
		if err != nil {
			m.warn(ctx, "measure pod", err, "pod", p.Namespace+"/"+p.Name)
			continue
		}
		if text := OverLimit(p, u, m.split.Load()); text != "" {
			ended = m.evict(ctx, Eviction{Pod: p, Message: text, Grace: new(immediately)}) || ended
		}
	}
	return ended
}

// evict ends a pod and waits until it is gone, for a while.
func (m *Manager) evict(ctx context.Context, e Eviction) bool {
	if m.node.Critical(e.Pod) {
		return false
	}
	ended := m.node.Evict(e)
	if ended == nil {
		return false
	}
	t := time.NewTimer(cleanup)
	defer t.Stop()
	select {
	case <-ended:
	case <-t.C:
		m.log.Warn("an evicted pod takes long to end", "pod", e.Pod.Namespace+"/"+e.Pod.Name)
	case <-ctx.Done():
	}
	return true
}

func (m *Manager) warn(ctx context.Context, what string, err error, more ...any) {
	if ctx.Err() == nil {
		m.log.Warn(what, append(more, "err", err)...)
	}
}
