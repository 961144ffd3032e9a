// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/lib/signal"
)

// Source measures node and pods. Its methods may be called concurrently.
type Source interface {
	// NodeStats measures the signals. split: images and writable layers have a file system of their own. It costs a few
	// system calls.
	NodeStats(ctx context.Context) (f Observations, split bool, err error)
	// PodStats measures all pods, for ranking; with disk also their disk usage.
	PodStats(ctx context.Context, pods []*corev1.Pod, disk bool) (Usages, error)
	// PodDisk measures one pod's disk usage. It may walk through the pod's volumes.
	PodDisk(ctx context.Context, p *corev1.Pod) (Usage, error)
}

// Node is the node on which Manager acts.
type Node interface {
	// Pods returns the pods that have not ended.
	Pods() []*corev1.Pod
	// Critical pods are never evicted.
	Critical(p *corev1.Pod) bool
	// Reclaim removes dead containers and unused images.
	Reclaim(ctx context.Context) error
	// ReclaimFailed is called with a message for operators when Reclaim has not freed enough.
	ReclaimFailed(message string)
	// Evict evicts a pod. The channel is closed when its containers have ended; nil: there is no such pod, or it is
	// being evicted already.
	Evict(e Eviction) <-chan struct{}
	// EvictionStarting is called before resources are reclaimed or pods evicted.
	EvictionStarting(resource corev1.ResourceName)
	// ConditionsChanged is called when Manager.Conditions has changed.
	ConditionsChanged()
}

// Eviction describes the eviction of a pod.
type Eviction struct {
	Pod     *corev1.Pod
	Message string
	Signal  Signal            // what was exceeded
	Notes   map[string]string // annotations of the event
	// Grace is the grace period in seconds; nil: the pod's own grace period.
	Grace *int64
	// Disruption: the cause is node pressure and not a limit of the pod. The pod gets the condition DisruptionTarget.
	Disruption bool
}

// Reason is the reason of statuses and events.
const Reason = "Evicted"

// Times of the manager.
const (
	defaultInterval = 10 * time.Second
	// emptyNodeInterval applies to a node without pods: nothing can be evicted, but its conditions reject pods.
	emptyNodeInterval = time.Minute
	// noLimitsInterval applies while no pod has a limit. Wake ends it earlier.
	noLimitsInterval = time.Hour
	// evictionTimeout bounds the wait for the end of an evicted pod.
	evictionTimeout = 30 * time.Second
	// immediateGrace is the grace period in seconds for hard thresholds and exceeded limits.
	immediateGrace = int64(1)
)

// Manager is the eviction manager of one node; see New.
type Manager struct {
	cfg        Config
	thresholds []Threshold
	source     Source
	node       Node
	log        *slog.Logger
	wake       [2]signal.Signal // of the two loops

	conditions atomic.Pointer[[]corev1.NodeConditionType]
	split      atomic.Bool
	state      State // used by the pressure loop only
}

// New parses the configuration. It starts nothing.
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
	manager := &Manager{
		cfg:        cfg,
		thresholds: t,
		source:     source,
		node:       node,
		log:        log,
	}
	for i := range manager.wake {
		manager.wake[i] = signal.New()
	}
	manager.conditions.Store(new([]corev1.NodeConditionType))
	return manager, nil
}

// Conditions returns the node's current pressure conditions, sorted. The slice is shared: never modify it.
func (m *Manager) Conditions() []corev1.NodeConditionType { return *m.conditions.Load() }

// Wake makes both loops check soon, since the node has a new pod.
func (m *Manager) Wake() {
	for _, w := range m.wake {
		w.Notify()
	}
}

// Run checks the node until ctx is done. Pressure and limits have a loop each: a walk through a pod's files, which the
// pod can make long, must not delay evictions under pressure.
func (m *Manager) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { m.loop(ctx, m.wake[0], m.pressureInterval, m.checkPressure) })
	wg.Go(func() { m.loop(ctx, m.wake[1], m.limitsInterval, m.checkLimits) })
	wg.Wait()
}

// loop runs rounds. After a round that evicted a pod the next one follows at once, else after pause. A wake can only
// make the next round earlier, so new pods never delay it.
func (m *Manager) loop(
	ctx context.Context, wake signal.Signal, pause func(pods []*corev1.Pod) time.Duration,
	round func(context.Context) (ended bool),
) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	next := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			if round(ctx) && ctx.Err() == nil {
				timer.Reset(0)
				continue
			}
			next = time.Now().Add(pause(m.node.Pods()))
			timer.Reset(time.Until(next))
		case <-wake.C():
			if at := time.Now().Add(pause(m.node.Pods())); at.Before(next) {
				next = at
				timer.Reset(time.Until(next))
			}
		}
	}
}

// pressureInterval returns the time between two checks of the node.
func (m *Manager) pressureInterval(pods []*corev1.Pod) time.Duration {
	if len(pods) == 0 {
		return emptyNodeInterval
	}
	return m.cfg.Interval
}

// limitsInterval returns the time between two checks of pods with limits.
func (m *Manager) limitsInterval(pods []*corev1.Pod) time.Duration {
	if slices.ContainsFunc(pods, HasLimits) {
		return m.cfg.Interval
	}
	return noLimitsInterval
}

// checkPressure checks the node once, and evicts at most one pod.
func (m *Manager) checkPressure(ctx context.Context) bool {
	observations, split, err := m.source.NodeStats(ctx)
	if err != nil {
		m.warn(ctx, "measure the node", err)
	}
	m.split.Store(split)
	var out Outcome
	m.state, out = m.state.Next(m.thresholds, observations, m.cfg.Transition, time.Now())
	if !slices.Equal(m.Conditions(), out.Conditions) {
		m.conditions.Store(&out.Conditions)
		m.log.Info("pressure of the node changed", "conditions", out.Conditions)
		m.node.ConditionsChanged()
	}
	if len(out.Met) == 0 {
		return false
	}
	threshold := out.Met[0]
	name := signals[threshold.Signal].resource
	m.node.EvictionStarting(name)
	disk := name == corev1.ResourceEphemeralStorage || name == inodes
	if disk && m.reclaimSuffices(ctx, threshold.Signal, split, observations) {
		return false
	}
	pods := m.node.Pods()
	usages, err := m.source.PodStats(ctx, pods, disk)
	if err != nil {
		m.warn(ctx, "measure pods", err) // Rank then uses priorities only
	}
	Rank(threshold.Signal, split, pods, usages)
	grace := new(immediateGrace)
	if threshold.Grace != 0 {
		grace = nil
		if m.cfg.MaxPodGrace > 0 {
			grace = &m.cfg.MaxPodGrace
		}
	}
	for _, p := range pods {
		text, notes := Message(threshold, out.Met, observations, p, usages)
		if m.evict(ctx, Eviction{
			Pod:        p,
			Message:    text,
			Signal:     threshold.Signal,
			Notes:      notes,
			Grace:      grace,
			Disruption: true,
		}) {
			return true
		}
	}
	return false
}

// reclaimSuffices reclaims dead containers and unused images. It reports whether no pod has to be evicted any more.
func (m *Manager) reclaimSuffices(ctx context.Context, s Signal, split bool, before Observations) bool {
	if split && (s == NodeFsAvailable || s == NodeFsInodesFree) {
		return false // images and dead containers are on another file system
	}
	if err := m.node.Reclaim(ctx); err != nil {
		m.warn(ctx, "reclaim disk", err)
	}
	after, _, err := m.source.NodeStats(ctx)
	if err == nil && len(metThresholds(m.thresholds, after, true)) == 0 {
		return true
	}
	if now, ok := after[imageSignal(split)]; err == nil && ok && now.Capacity.Value() > 0 {
		m.node.ReclaimFailed(stillFull(before[imageSignal(split)], now))
	}
	return false
}

// imageSignal is the signal of the file system with the images.
func imageSignal(split bool) Signal {
	if split {
		return ImageFsAvailable
	}
	return NodeFsAvailable
}

// stillFull says that the file system with the images is full without the unused ones too.
func stillFull(before, now Observation) string {
	capacity := now.Capacity.Value()
	used := capacity - now.Available.Value()
	freed := int64(0)
	if before.Available != nil {
		freed = max(now.Available.Value()-before.Available.Value(), 0)
	}
	return fmt.Sprintf("Insufficient free disk space on the node's image filesystem (%d%% of %.1f GiB used). Failed "+
		"to free sufficient space by deleting unused images (freed %d bytes). Investigate disk usage, as it could be "+
		"used by active images, logs, volumes, or other data.", used*100/capacity, float64(capacity)/(1<<30), freed)
}

// checkLimits evicts the pods that exceed a limit of their own.
func (m *Manager) checkLimits(ctx context.Context) (ended bool) {
	for _, p := range m.node.Pods() {
		if !HasLimits(p) || m.node.Critical(p) || ctx.Err() != nil {
			continue
		}
		u, err := m.source.PodDisk(ctx, p)
		if err != nil {
			m.warn(ctx, "measure pod", err, "pod", p.Namespace+"/"+p.Name)
			continue
		}
		if signal, text := OverLimit(p, u, m.split.Load()); text != "" {
			ended = m.evict(ctx, Eviction{
				Pod:     p,
				Message: text,
				Signal:  signal,
				Grace:   new(immediateGrace),
			}) || ended
		}
	}
	return ended
}

// evict evicts a pod and waits for its end, at most evictionTimeout.
func (m *Manager) evict(ctx context.Context, eviction Eviction) bool {
	if m.node.Critical(eviction.Pod) {
		return false
	}
	ended := m.node.Evict(eviction)
	if ended == nil {
		return false
	}
	t := time.NewTimer(evictionTimeout)
	defer t.Stop()
	select {
	case <-ended:
	case <-t.C:
		m.log.Warn("an evicted pod takes long to end", "pod", eviction.Pod.Namespace+"/"+eviction.Pod.Name)
	case <-ctx.Done():
	}
	return true
}

func (m *Manager) warn(ctx context.Context, what string, err error, more ...any) {
	if ctx.Err() == nil {
		m.log.Warn(what, append(more, "err", err)...)
	}
}
