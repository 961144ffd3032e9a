// SPDX-License-Identifier: Apache-2.0

// Package podgroupprotection removes the finalizer scheduling.k8s.io/podgroup-protection, which admission adds, from a
// deleted PodGroup without unfinished pods. The table of controllers starts it if pod groups are served. It never
// deletes a group.
package podgroupprotection

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	schedulinginformers "k8s.io/client-go/informers/scheduling/v1beta1"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1beta1"
	"k8s.io/client-go/tools/cache"

	podkind "keelson/api/core/pod"
	"keelson/api/scheduling"
	"keelson/controllers/framework"
	"keelson/controllers/internal/protect"
	"keelson/event"
)

// byGroup indexes unfinished pods by their group.
const byGroup = "keelson.podgroup"

// Controller handles pod groups.
type Controller struct {
	env    *framework.Env
	loop   *framework.Loop[framework.Key]
	groups schedulinglisters.PodGroupLister
	pods   cache.Indexer
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	groups := schedulinginformers.New(env.Shared.Scoped()).PodGroups()
	pods := coreinformers.New(env.Shared.Scoped()).Pods().Informer()
	controller := &Controller{env: env, groups: groups.Lister(), pods: pods.GetIndexer()}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	look := func(g *schedulingv1beta1.PodGroup) {
		if protect.NeedsRemoval(g, scheduling.PodGroupProtection) {
			controller.loop.Add(framework.KeyOf(g))
		}
	}
	left := func(p *corev1.Pod) {
		if name := podkind.Group(p); name != "" {
			controller.loop.Add(framework.Key{Namespace: p.Namespace, Name: name})
		}
	}
	err := errors.Join(
		framework.EnsureIndex(pods, byGroup, indexByGroup),
		framework.On(controller.loop, groups.Informer(), framework.Handlers[*schedulingv1beta1.PodGroup]{
			Add:    look,
			Update: func(_, g *schedulingv1beta1.PodGroup) { look(g) },
		}),
		framework.On(controller.loop, pods, framework.Handlers[*corev1.Pod]{
			Update: func(old, p *corev1.Pod) {
				if old.UID != p.UID || podkind.Terminal(p) {
					left(old)
				}
			},
			Delete: left,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("pod group protection: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func indexByGroup(obj any) ([]string, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok || podkind.Terminal(p) || podkind.Group(p) == "" {
		return nil, nil
	}
	return []string{p.Namespace + "/" + podkind.Group(p)}, nil
}

func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	podGroup, err := c.groups.PodGroups(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !protect.NeedsRemoval(podGroup, scheduling.PodGroupProtection) {
		return err
	}
	if members, err := c.pods.IndexKeys(byGroup, key.String()); err != nil || len(members) > 0 {
		return err
	}
	begin := time.Now()
	own := podGroup.DeepCopy()
	protect.AddOrRemove(own, scheduling.PodGroupProtection)
	_, err = c.env.Client.SchedulingV1beta1().PodGroups(own.Namespace).Update(ctx, own, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	c.env.Reconciled(event.Subject{
		Resource:  "podgroups",
		Namespace: own.Namespace,
		Name:      own.Name,
		UID:       string(own.UID),
	}, begin, &event.Reconcile{}, err)
	return err
}
