// SPDX-License-Identifier: Apache-2.0

// Package serviceaccount creates the service account "default" in every namespace; pods without a service account use
// it. The table of controllers starts it. It never changes an existing account.
package serviceaccount

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"keelson/controllers/framework"
)

const name = "default"

// Controller creates the accounts.
type Controller struct {
	env        *framework.Env
	loop       *framework.Loop[framework.Key]
	namespaces corelisters.NamespaceLister
	accounts   corelisters.ServiceAccountLister
}

// New builds the controller and registers handlers with env's informers.
func New(env *framework.Env) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	controller := &Controller{
		env:        env,
		namespaces: core.Namespaces().Lister(),
		accounts:   core.ServiceAccounts().Lister(),
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	err := errors.Join(
		framework.On(controller.loop, core.Namespaces().Informer(), framework.Each(func(ns *corev1.Namespace) {
			controller.loop.Add(framework.KeyOf(ns))
		})),
		framework.On(controller.loop, core.ServiceAccounts().Informer(), framework.Handlers[*corev1.ServiceAccount]{
			Delete: func(sa *corev1.ServiceAccount) {
				if sa.Name == name {
					controller.loop.Add(framework.Key{Name: sa.Namespace})
				}
			},
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("service account controller: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	ns, err := c.namespaces.Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && ns.DeletionTimestamp != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := c.accounts.ServiceAccounts(ns.Name).Get(name); err == nil || !apierrors.IsNotFound(err) {
		return err
	}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: name}}
	_, err = c.env.Client.CoreV1().ServiceAccounts(ns.Name).Create(ctx, sa, metav1.CreateOptions{})
	if err == nil || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) ||
		apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil // a terminating or deleted namespace needs no account
	}
	return fmt.Errorf("create service account: %w", err)
}
