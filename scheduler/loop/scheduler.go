// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"

	"keelson/api/gates"
	"keelson/client"
	"keelson/event"
	"keelson/scheduler/config"
	"keelson/scheduler/core"
	"keelson/scheduler/dynamicresources"
	"keelson/scheduler/extender"
	"keelson/scheduler/framework"
	"keelson/scheduler/preempt"
	"keelson/scheduler/queue"
	"keelson/scheduler/source"
	"keelson/scheduler/state"
)

// Config says how to run a scheduler.
type Config struct {
	Client *client.Client
	// Configuration has the profiles, extenders and backoffs; nil: config.Default.
	Configuration *config.Configuration
	// Plugins are the out-of-tree plugins that profiles can name.
	Plugins framework.Registry
	// Gates are those of Kubernetes' feature gates that are on.
	Gates gates.On
	// Marks receives Queued, Decision and Bind marks; nil is fine.
	Marks *event.Recorder
	// Claims creates the claims of pods for extended resources; nil: nothing shows how many.
	Claims *client.Claims
	// Metrics receives what is measured; nil: a set of its own.
	Metrics *Metrics
	Log     *slog.Logger
	// Parallelism is the maximum number of goroutines that filter nodes; 0: as in the Configuration, but at most one
	// per CPU.
	Parallelism int
	// LeaderElect makes Run wait for the lease of Election, by default kube-system/kube-scheduler, and end when it is
	// lost.
	LeaderElect bool
	Election    client.Election
}

// Scheduler schedules pods while Run runs. Make it with New.
type Scheduler struct {
	cfg             Config
	metrics         *Metrics
	client          client.Interface
	profiles        map[string]*profile
	core            *core.Core
	source          *source.Source
	evictions       *preempt.Evictions
	nominations     *nominations
	conditions      groupWrites // of pod groups
	queue           *lanes
	extenders       *extender.Set
	cycleLock       sync.Mutex  // held during a scheduling cycle; see extenderlane.go
	extenderLock    sync.Mutex  // held during an attempt of the extender lane
	extenderGroups  *groupQueue // pod groups for that lane
	writers         *writers
	reports         *reporter
	deviceSearcher  *dynamicresources.Searcher
	waitingBindings waitingBindings        // the binding cycles on goroutines of their own
	waitingPods     *framework.WaitingPods // those that wait for Permit
	log             *slog.Logger
}

// New checks cfg; it starts nothing.
func New(cfg Config) (*Scheduler, error) {
	if cfg.Client == nil {
		return nil, errors.New("scheduler: no client")
	}
	if cfg.Configuration == nil {
		cfg.Configuration = config.Default()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics()
	}
	s := &Scheduler{
		cfg:            cfg,
		client:         cfg.Client.Interface,
		source:         source.New(cfg.Client, cfg.Log),
		evictions:      preempt.NewEvictions(),
		writers:        newWriters(),
		reports:        &reporter{client: cfg.Client.Interface, log: cfg.Log},
		extenderGroups: newGroupQueue(),
		log:            cfg.Log,
		metrics:        cfg.Metrics,
	}
	var err error
	if s.extenders, err = extender.New(cfg.Configuration.Extenders, s.log); err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	s.deviceSearcher = s.newDeviceSearcher()
	if s.core, err = s.newCore(); err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	s.profiles = map[string]*profile{}
	for name, p := range s.core.Profiles() {
		s.profiles[name] = &profile{Profile: p, metrics: s.metrics}
	}
	var wants func(*corev1.Pod) bool
	if s.extenders != nil {
		wants = s.extenders.Interested
	}
	s.queue = newLanes(s.queueConfig(), wants)
	s.nominations = &nominations{cache: s.core.Cache, queue: s.queue, evictions: s.evictions}
	return s, nil
}

// Run schedules pods until ctx is done. It calls ready once the cluster's state is known and pods are being scheduled
// (or, with leader election, once it is on standby).
func (s *Scheduler) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop, err := s.reports.start(ctx, s.core.Profiles())
	if err != nil {
		return err
	}
	defer stop()
	defer s.queue.Close()
	defer s.extenders.Close()
	defer s.metrics.add(s)()
	h := &handlers{
		core:        s.core,
		queue:       s.queue,
		nominations: s.nominations,
		bindings:    &s.waitingBindings,
		profiles:    s.profiles,
		conditions:  &s.conditions,
		reports:     s.reports,
		log:         s.log,
	}
	wait, err := s.source.Start(ctx, s.core, h.changes())
	if err != nil {
		return err
	}
	defer wait()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.waitingBindings.cycles.Wait()
	wg.Go(func() { s.writers.run(ctx) })
	wg.Go(func() { s.source.Report(ctx) })
	defer cancel() // before waiting for the writers and informers
	if s.cfg.LeaderElect {
		ready()
		return s.runAsLeader(ctx)
	}
	ready()
	s.loop(ctx)
	return nil
}

// loop makes one attempt after another.
func (s *Scheduler) loop(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	if s.queue.extenderLane != nil {
		wg.Go(func() { s.extenderLoop(ctx) })
		wg.Go(func() { s.extenderGroupLoop(ctx) })
	}
	if s.source.UsesDevices() {
		wg.Go(func() { s.deviceSearcher.Run(ctx) })
	}
	for {
		it := s.queue.Pop(ctx)
		if it == nil {
			return
		}
		if it.IsGroup() && s.extendersInterestedInGroup(it) {
			s.extenderGroups.add(it)
			continue
		}
		s.cycleLock.Lock()
		if it.IsGroup() {
			s.scheduleGroup(ctx, it)
		} else {
			s.scheduleOne(ctx, it)
		}
		s.cycleLock.Unlock()
	}
}

// runAsLeader runs the loop while this process holds the lease.
func (s *Scheduler) runAsLeader(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("name of this machine: %w", err)
	}
	e := s.cfg.Election
	e.Name = cmp.Or(e.Name, "kube-scheduler")
	e.Identity = host + "_" + uuid.NewString()
	e.Component = s.cfg.Configuration.Profiles[0].SchedulerName
	return s.cfg.Client.Lead(ctx, e, func(ctx context.Context) error {
		s.loop(ctx)
		return nil
	})
}

func (s *Scheduler) entered(pod *state.PodInfo, why string, to queue.Place, at time.Time) {
	s.metrics.incoming.WithLabelValues(why, string(to)).Inc()
	if to != queue.Active {
		return
	}
	s.cfg.Marks.Emit(event.Event{
		Step:      event.StepQueued,
		Component: "scheduler",
		At:        at,
		Subject:   subject(pod.Pod),
		Detail:    &event.Queued{Why: why},
	})
}

func subject(p *corev1.Pod) event.Subject {
	return event.Subject{
		Resource:  "pods",
		Namespace: p.Namespace,
		Name:      p.Name,
		UID:       string(p.UID),
	}
}
