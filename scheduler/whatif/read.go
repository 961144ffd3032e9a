// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	configv1 "k8s.io/kube-scheduler/config/v1"

	podkind "keelson/api/core/pod"
	"keelson/api/gates"
	"keelson/client"
	"keelson/scheduler/config"
	"keelson/scheduler/core"
	"keelson/scheduler/dynamicresources"
	"keelson/scheduler/extender"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/preempt"
	"keelson/scheduler/source"
	"keelson/scheduler/state"
)

// Config says which scheduler to simulate.
type Config struct {
	Client *client.Client
	// Configuration has the profiles and extenders; nil: config.Default.
	Configuration *config.Configuration
	// Plugins are the out-of-tree plugins that profiles can name.
	Plugins framework.Registry
	// Parallelism is the maximum number of goroutines that filter nodes; 0: as in the Configuration, but at most one
	// per CPU.
	Parallelism int
	// Max bounds the pods and the attempts; 0: the constant Max.
	Max int
	// MaxBytes bounds the pods and claims that are made of templates; 0: the constant MaxBytes.
	MaxBytes int
}

// newSimulation makes the core of a scheduler whose plugins write nothing.
func newSimulation(cfg Config) (*simulation, error) {
	if cfg.Configuration == nil {
		cfg.Configuration = config.Default()
	}
	log := slog.New(slog.DiscardHandler)
	t := &simulation{
		source:         source.New(cfg.Client, log),
		client:         cfg.Client.Interface,
		gates:          gates.On{GenericWorkload: source.Serves(cfg.Client, plugins.PodGroups)},
		max:            cmp.Or(cfg.Max, Max),
		maxBytes:       cmp.Or(cfg.MaxBytes, MaxBytes),
		answer:         &Answer{},
		limits:         map[string]*namespaceLimits{},
		classes:        map[string]*int32{},
		claimTemplates: map[string]*resourcev1.ResourceClaimTemplate{},
	}
	var err error
	if t.extenders, err = extender.New(cfg.Configuration.Extenders, log); err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	of := t.source.CoreConfig(cfg.Configuration, cfg.Plugins, t.gates.GenericWorkload, cfg.Parallelism)
	of.Shared.Preemption = func(a *configv1.DefaultPreemptionArgs) *framework.Plugin {
		return preempt.New(preempt.Config{
			Budgets:                     t.source.Budgets,
			Groups:                      of.Groups,
			NodeOf:                      of.Cache.Where,
			MinCandidateNodesPercentage: int(*a.MinCandidateNodesPercentage),
			MinCandidateNodesAbsolute:   int(*a.MinCandidateNodesAbsolute),
		}).Descriptor()
	}
	of.Shared.Devices = func(a *configv1.DynamicResourcesArgs) *framework.Plugin {
		return dynamicresources.New(dynamicresources.Config{
			Tracker: t.source.Devices,
			Filter:  a.FilterTimeout.Duration,
			Later:   func(context.Context, func(context.Context)) {},
		}).Descriptor()
	}
	t.core, err = core.New(of)
	if err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	return t, nil
}

// read fills the cache and ends the watches. It returns an error at once if a resource is forbidden.
func (t *simulation) read(ctx context.Context, r *Reader) error {
	following, stop := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop(nil)
	if r != nil {
		wg.Go(func() {
			select {
			case err := <-r.forbidden:
				stop(err)
			case <-following.Done():
			}
		})
	}
	ended, err := t.source.Start(following, t.core, t.changes())
	if err != nil {
		return err
	}
	if following.Err() != nil {
		err = fmt.Errorf("read the cluster's state: %w", context.Cause(following))
	}
	stop(nil)
	ended()
	return err
}

// changes are handlers that write what happens into the cache.
func (t *simulation) changes() source.Changes {
	cache := t.core.Cache
	return source.Changes{
		Namespaces: source.Handlers[corev1.Namespace]{
			Set:  func(_, ns *corev1.Namespace) { cache.SetNamespace(ns.Name, ns.Labels) },
			Gone: func(ns *corev1.Namespace) { cache.RemoveNamespace(ns.Name) },
		},
		Nodes: source.Handlers[corev1.Node]{
			Set:  func(_, node *corev1.Node) { cache.SetNode(node) },
			Gone: func(node *corev1.Node) { cache.RemoveNode(node.Name) },
		},
		Pods: source.Handlers[corev1.Pod]{Set: t.setPod, Gone: t.dropPod},
		Groups: source.Handlers[schedulingv1beta1.PodGroup]{
			Set:  func(_, g *schedulingv1beta1.PodGroup) { t.core.Groups.SetObject(source.KeyOf(g), g) },
			Gone: func(g *schedulingv1beta1.PodGroup) { t.core.Groups.SetObject(source.KeyOf(g), nil) },
		},
		Object:        func(framework.Event) {},
		InvalidPolicy: func(*unstructured.Unstructured, string) {},
	}
}

func (t *simulation) setPod(_, pod *corev1.Pod) {
	switch {
	case podkind.Terminal(pod):
		t.dropPod(pod)
	case pod.Spec.NodeName != "":
		t.core.Cache.Unnominate(pod.UID)
		t.core.Cache.SetPod(pod)
		t.core.Groups.AddPod(pod)
	case t.core.Profile(pod) != nil && pod.DeletionTimestamp == nil:
		t.core.Groups.AddPod(pod)
		if n := pod.Status.NominatedNodeName; n != "" {
			t.core.Cache.Nominate(state.NewPodInfo(pod), n)
		}
	default:
		t.core.Cache.Unnominate(pod.UID)
		t.core.Groups.RemovePod(pod)
	}
}

func (t *simulation) dropPod(pod *corev1.Pod) {
	t.core.Cache.Unnominate(pod.UID)
	t.core.Cache.RemovePod(pod.UID)
	t.core.Groups.RemovePod(pod)
}
