// SPDX-License-Identifier: Apache-2.0

// Package source reads what scheduling depends on from the API server: nodes, pods and namespaces, which its user puts
// into the cache; and storage, devices, policies, budgets and the selectors of controllers, which it keeps for the
// plugins. The packages loop and whatif use it: loop for as long as it runs, whatif until everything has been read. It
// writes nothing, except the status of SchedulingPolicies if its user calls Report.
//
//	source.go           Source; Start watches nodes, pods and namespaces, and what the other files watch
//	plugins.go          storage, and resources of which plugins registered events
//	devices.go          claims, slices, classes and taint rules of devices
//	groups.go           pod groups
//	policies.go         SchedulingPolicies
//	defaultselector.go  the selectors of the default topology spread constraints
//	sync.go             waits until all is read; what the server does not have is not waited for
package source

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/client"
	"keelson/client/everykind"
	"keelson/scheduler/config"
	"keelson/scheduler/core"
	"keelson/scheduler/dynamicresources"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/plugins/volumes"
	"keelson/scheduler/policy"
	"keelson/scheduler/policy/objects"
	"keelson/scheduler/state"
)

// Source reads the cluster. Make it with New.
type Source struct {
	// Informers are shared with the plugins. Storage, Devices and Policies are what they have found, for the plugins.
	Informers informers.SharedInformerFactory
	Storage   *volumes.Storage
	Devices   *dynamicresources.Tracker
	Policies  policy.Set

	client   *client.Client
	log      *slog.Logger
	selector defaultSelector
	budgets  policylisters.PodDisruptionBudgetLister      // nil: the server has none
	custom   dynamicinformer.DynamicSharedInformerFactory // nil: no plugin watches a custom resource
	follower *objects.Follower                            // nil: no profile uses policies, or there is no client
	profiles map[string]*core.Profile                     // of the scheduler
	changes  Changes                                      // set by Start, before the first event
}

// Changes gets what happens in the cluster. The calls for the objects of one kind are serialized.
type Changes struct {
	Namespaces Handlers[corev1.Namespace]
	Nodes      Handlers[corev1.Node]
	// Pods gets no pod in place of another one of its name: that is gone before.
	Pods   Handlers[corev1.Pod]
	Groups Handlers[schedulingv1beta1.PodGroup]
	// Object gets the event of any other object that may make a pod schedulable. The Source has noted it already.
	Object func(e framework.Event)
	// InvalidPolicy gets a SchedulingPolicy that cannot be compiled, and why.
	InvalidPolicy func(obj *unstructured.Unstructured, message string)
}

// Handlers get the objects of one kind. old is nil for a new object.
type Handlers[T any] struct {
	Set  func(old, now *T)
	Gone func(old *T)
}

// New returns a Source; it starts nothing.
func New(c *client.Client, log *slog.Logger) *Source {
	return &Source{
		Informers: everykind.Informers(c, client.Scope{}),
		Storage:   volumes.NewStorage(c.Interface),
		Devices:   dynamicresources.NewTracker(),
		client:    c,
		log:       log,
	}
}

// CoreConfig returns what a core on this source is made of. Its Shared lacks the plugins that write: preemption and
// devices. groups: the feature gate of pod groups is on. parallelism 0: as in the configuration, but at most one
// goroutine per CPU.
func (s *Source) CoreConfig(
	of *config.Configuration, out framework.Registry, groups bool, parallelism int,
) core.Config {
	cfg := core.Config{
		Cache:    state.NewCache(),
		Profiles: of.Profiles,
		Plugins:  out,
		Handle: framework.Handle{
			Client:      s.client.Interface,
			Dynamic:     s.client.Dynamic,
			Informers:   s.Informers,
			Waiting:     &framework.WaitingPods{},
			Log:         s.log,
			DeviceClass: s.Devices.DeviceClass,
			Devices:     s.Devices.Count(),
		},
		Shared: &plugins.Shared{
			Storage:         s.Storage,
			Policies:        &s.Policies,
			DefaultSelector: s.selector.selector,
		},
		Parallelism: cmp.Or(parallelism, min(runtime.GOMAXPROCS(0), int(*of.Parallelism))),
		Seed:        uint64(time.Now().UnixNano()), // any will do
	}
	if groups {
		cfg.Groups = state.NewGroups()
	}
	return cfg
}

// Start starts the informers, and returns when changes has got all that exists. wait blocks until they have ended,
// after ctx is done.
func (s *Source) Start(ctx context.Context, of *core.Core, changes Changes) (wait func(), err error) {
	s.changes = changes
	s.profiles = of.Profiles()
	pods := s.client.Informers(0, client.Scope{Tweak: func(o *metav1.ListOptions) {
		o.FieldSelector = fields.AndSelectors(
			fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
			fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
		).String()
	}})
	synced := append(s.selector.setInformers(s.Informers), s.watchBudgets()...)
	for _, watch := range []func() ([]cache.DoneChecker, error){
		s.watchStorage,
		func() ([]cache.DoneChecker, error) { return s.watchGroups(of.Groups != nil) },
		func() ([]cache.DoneChecker, error) { return s.watchPluginResources(of.Groups != nil) },
	} {
		done, err := watch()
		if err != nil {
			return nil, err
		}
		synced = append(synced, done...)
	}
	// The handlers are added last: the first events may need what the others watch.
	for _, o := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{s.Informers.Core().V1().Namespaces().Informer(), changes.Namespaces.handler()},
		{s.Informers.Core().V1().Nodes().Informer(), changes.Nodes.handler()},
		{coreinformers.New(pods.Scoped()).Pods().Informer(), oneByOne(changes.Pods).handler()},
	} {
		reg, err := o.informer.AddEventHandler(o.handler)
		if err != nil {
			return nil, fmt.Errorf("watch the cluster: %w", err)
		}
		synced = append(synced, reg.HasSyncedChecker())
	}
	return s.run(ctx, pods, synced)
}

// run starts the informers and waits until they have synced.
func (s *Source) run(
	ctx context.Context, pods *client.Informers, synced []cache.DoneChecker,
) (wait func(), err error) {
	waits := []func(){s.Informers.Shutdown, pods.Shutdown}
	s.Informers.Start(ctx.Done())
	pods.Start(ctx.Done())
	if s.custom != nil {
		s.custom.Start(ctx.Done())
		waits = append(waits, s.custom.Shutdown)
	}
	policies, err := s.watchPolicies(ctx)
	if err != nil {
		return nil, err
	}
	waits = append(waits, policies)
	wait = func() {
		for _, w := range waits {
			w()
		}
	}
	if err := s.waitForSync(ctx, synced); err != nil {
		wait()
		return nil, err
	}
	return wait, nil
}

// handler passes the objects of an informer on.
func (h Handlers[T]) handler() cache.ResourceEventHandler {
	set := func(before, after any) {
		old, _ := client.Delivered[*T](before)
		if now, ok := client.Delivered[*T](after); ok {
			h.Set(old, now)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { set(nil, o) },
		UpdateFunc: set,
		DeleteFunc: func(o any) {
			if old, ok := client.Delivered[*T](o); ok {
				h.Gone(old)
			}
		},
	}
}

// oneByOne splits an update that is the deletion of a pod and the creation of another one of its name.
func oneByOne(of Handlers[corev1.Pod]) Handlers[corev1.Pod] {
	return Handlers[corev1.Pod]{
		Set: func(old, now *corev1.Pod) {
			if old != nil && old.UID != now.UID {
				of.Gone(old)
				old = nil
			}
			of.Set(old, now)
		},
		Gone: of.Gone,
	}
}

// uses reports whether a profile has a plugin.
func (s *Source) uses(plugin string) bool {
	for _, p := range s.profiles {
		if slices.ContainsFunc(p.Plugins, func(w framework.Weighted) bool { return w.Name == plugin }) {
			return true
		}
	}
	return false
}

// watchBudgets watches disruption budgets if the server has them.
func (s *Source) watchBudgets() []cache.DoneChecker {
	if !s.serves(policyv1.SchemeGroupVersion, "poddisruptionbudgets") {
		return nil
	}
	b := s.Informers.Policy().V1().PodDisruptionBudgets()
	s.budgets = b.Lister()
	return []cache.DoneChecker{b.Informer().HasSyncedChecker()}
}

// Budgets lists all disruption budgets.
func (s *Source) Budgets() []*policyv1.PodDisruptionBudget {
	if s.budgets == nil {
		return nil
	}
	list, err := s.budgets.List(labels.Everything())
	if err != nil {
		return nil // a lister over a cache does not fail
	}
	return list
}
