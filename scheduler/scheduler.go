// SPDX-License-Identifier: Apache-2.0

// Package scheduler gives pods their nodes. cluster runs it in process, the scheduler
// command as a program of its own. Informers feed the cache and the queue; one loop
// takes a pod, decides on a snapshot (framework.Engine, a pure function) and hands what
// has to be written to a bounded set of workers. It never touches a pod that names
// another scheduler, and it never writes anything but bindings, the status of pods that
// do not fit (and of pods that have to go for more important ones), and events.
package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/events"

	"keelson/client"
	"keelson/lib/mark"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/preempt"
	"keelson/scheduler/queue"
	"keelson/scheduler/state"
)

// DefaultName is the scheduler that pods name when they name none.
const DefaultName = "default-scheduler"

// Config says how to run a scheduler.
type Config struct {
	Client *client.Client
	// SchedulerName is whose pods are scheduled; empty means DefaultName.
	SchedulerName string
	// Plugins are added to the default profile.
	Plugins []framework.Weighted
	// Marks receives Queued, Decision and Bind marks; nil is fine.
	Marks *mark.Recorder
	Log   *slog.Logger
	// Parallelism bounds goroutines that look at nodes; 0 means one per CPU, at most 16.
	Parallelism int
	// LeaderElect makes Run wait for the lease of Election, by default kube-system/kube-scheduler, and end when it is lost.
	LeaderElect bool
	Election    client.Election
}

// Scheduler is made by New and lives in Run.
type Scheduler struct {
	cfg     Config
	client  kubernetes.Interface
	profile *framework.Profile
	engine  *framework.Engine
	cache   *state.Cache
	queue   *queue.Queue
	nominee *nominees
	kin     *kin
	budgets policylisters.PodDisruptionBudgetLister // nil: the server has none
	binders []framework.Binder
	post    []framework.PostFilterer
	events  events.EventRecorder
	writes  chan func(context.Context)
	storage *plugins.Storage
	volumes *plugins.VolumeBinding
	waits   sync.WaitGroup // of bindings that wait for volumes
	waiting waiting        // the same, by pod
	log     *slog.Logger
}

// writers bounds concurrent writes to the server: enough to share its group commits.
const writers = 96

// New checks cfg; it starts nothing.
func New(cfg Config) (*Scheduler, error) {
	if cfg.Client == nil {
		return nil, errors.New("scheduler: no client")
	}
	if cfg.SchedulerName == "" {
		cfg.SchedulerName = DefaultName
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Parallelism == 0 {
		cfg.Parallelism = min(runtime.GOMAXPROCS(0), 16)
	}
	s := &Scheduler{
		cfg: cfg, client: cfg.Client.Interface, cache: state.NewCache(), nominee: newNominees(), kin: &kin{},
		writes: make(chan func(context.Context), writers), log: cfg.Log,
	}
	s.storage = plugins.NewStorage(s.client)
	s.volumes = &plugins.VolumeBinding{Storage: s.storage}
	s.profile = plugins.Default(cfg.SchedulerName, plugins.Options{Storage: s.storage, Volumes: s.volumes, Spread: plugins.PodTopologySpread{Kin: s.kin.selector}}, append(cfg.Plugins,
		framework.Weighted{Plugin: preempt.New(preempt.Config{
			Client: s.client, Later: s.later, Budgets: s.listBudgets, Event: s.eventPreempted, Log: cfg.Log,
		})},
		framework.Weighted{Plugin: &plugins.DefaultBinder{Client: s.client}},
	)...)
	s.binders = framework.Of[framework.Binder](s.profile)
	s.post = framework.Of[framework.PostFilterer](s.profile)
	s.engine = framework.NewEngine(s.profile, cfg.Parallelism, uint64(time.Now().UnixNano())) //nolint:gosec // any seed will do
	hints := map[string][]framework.Hint{}
	for _, h := range framework.Of[framework.Hinter](s.profile) {
		hints[h.Name()] = h.Hints()
	}
	s.queue = queue.New(queue.Config{Gates: framework.Of[framework.Gater](s.profile), Hints: hints, Entered: s.markQueued})
	return s, nil
}

// Run schedules pods until ctx is done. It calls ready once the cluster's state is known and pods are being scheduled (or,
// with leader election, once it stands by).
func (s *Scheduler) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop, err := s.startEvents(ctx)
	if err != nil {
		return err
	}
	defer stop()
	defer s.queue.Close()
	wait, err := s.watch(ctx)
	if err != nil {
		return err
	}
	defer wait()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.waits.Wait()
	for range writers {
		wg.Go(func() { s.write(ctx) })
	}
	defer cancel() // before waiting for the writers and informers
	if s.cfg.LeaderElect {
		ready()
		return s.lead(ctx)
	}
	ready()
	s.loop(ctx)
	return nil
}

// loop makes one attempt after another.
func (s *Scheduler) loop(ctx context.Context) {
	for {
		it := s.queue.Pop(ctx)
		if it == nil {
			return
		}
		s.try(ctx, it)
	}
}

// write runs jobs until ctx is done.
func (s *Scheduler) write(ctx context.Context) {
	for {
		select {
		case job := <-s.writes:
			job(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// later hands a job (nil: none) to the writers; when all are busy the loop waits for them.
func (s *Scheduler) later(ctx context.Context, job func(context.Context)) {
	if job == nil {
		return
	}
	select {
	case s.writes <- job:
	case <-ctx.Done():
	}
}

// lead runs the loop while this process holds the lease.
func (s *Scheduler) lead(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("name of this machine: %w", err)
	}
	e := s.cfg.Election
	e.Name, e.Identity = cmp.Or(e.Name, "kube-scheduler"), host+"_"+uuid.NewString()
	return s.cfg.Client.Lead(ctx, e, func(ctx context.Context) error {
		s.loop(ctx)
		return nil
	})
}

func (s *Scheduler) markQueued(pod *state.PodInfo, why string, at time.Time) {
	s.cfg.Marks.Emit(mark.Mark{Step: mark.StepQueued, Component: "scheduler", At: at, Subject: subject(pod.Pod), Detail: &mark.Queued{Why: why}})
}

func subject(p *corev1.Pod) mark.Subject {
	return mark.Subject{Resource: "pods", Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)}
}
