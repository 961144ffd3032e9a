// SPDX-License-Identifier: Apache-2.0

// Package rootca publishes the CA bundle by which pods verify the API server as the ConfigMap kube-root-ca.crt in every
// namespace; service-account volumes project it. The table of controllers starts it. It owns that ConfigMap: changes by
// others are reverted. It writes no other object.
package rootca

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"keelson/client"
	"keelson/controllers/framework"
)

const (
	name = "kube-root-ca.crt"
	file = "ca.crt"
	// descriptionAnnotation is the annotation that describes the bundle.
	descriptionAnnotation = "kubernetes.io/description"
	description           = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal " +
		"endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across " +
		"distributions of Kubernetes clusters."
)

// Controller publishes the bundle.
type Controller struct {
	env        *framework.Env
	loop       *framework.Loop[framework.Key]
	namespaces corelisters.NamespaceLister
	maps       corelisters.ConfigMapLister
	// own watches only ConfigMaps with our name, to save memory.
	own    *client.Informers
	bundle framework.Bundle
}

// New builds the controller for a bundle.
func New(env *framework.Env, bundle framework.Bundle) (framework.Controller, error) {
	namespaces := coreinformers.New(env.Shared.Scoped()).Namespaces()
	own := env.Reader().Informers(0, client.Scope{Tweak: func(o *metav1.ListOptions) {
		o.FieldSelector = "metadata.name=" + name
	}})
	cms := coreinformers.New(own.Scoped()).ConfigMaps()
	controller := &Controller{
		env:        env,
		namespaces: namespaces.Lister(),
		maps:       cms.Lister(),
		own:        own,
		bundle:     bundle,
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	err := errors.Join(
		framework.On(controller.loop, namespaces.Informer(), framework.Each(func(ns *corev1.Namespace) {
			controller.loop.Add(framework.KeyOf(ns))
		})),
		framework.On(controller.loop, cms.Informer(), framework.Each(func(cm *corev1.ConfigMap) {
			if cm.Name == name {
				controller.loop.Add(framework.Key{Name: cm.Namespace})
			}
		})),
	)
	if err != nil {
		return nil, fmt.Errorf("root CA publisher: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error {
	return c.bundle.While(ctx, c.enqueueAll, func() error { return c.loop.RunWith(ctx, ready, c.own) })
}

// enqueueAll checks every namespace again, because the bundle has changed.
func (c *Controller) enqueueAll() {
	namespaces, err := c.namespaces.List(labels.Everything())
	if err != nil {
		return // a lister over a cache returns no error
	}
	for _, ns := range namespaces {
		c.loop.Add(framework.KeyOf(ns))
	}
}

func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	if len(c.bundle.PEM()) == 0 {
		return nil
	}
	ns, err := c.namespaces.Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && ns.DeletionTimestamp != nil {
		return nil
	}
	if err != nil {
		return err
	}
	client := c.env.Client.CoreV1().ConfigMaps(ns.Name)
	cm, err := c.maps.ConfigMaps(ns.Name).Get(name)
	switch {
	case apierrors.IsNotFound(err):
		_, err = client.Create(ctx, c.desiredConfigMap(nil, ns.Name), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) ||
			apierrors.IsNotFound(err) {
			return nil
		}
	case err == nil:
		want := c.desiredConfigMap(cm, ns.Name)
		if maps.Equal(want.Data, cm.Data) && maps.Equal(want.Annotations, cm.Annotations) && len(cm.BinaryData) == 0 {
			return nil
		}
		_, err = client.Update(ctx, want, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			return nil // its event requeues the namespace
		}
	}
	if err != nil {
		return fmt.Errorf("publish %s: %w", name, err)
	}
	return nil
}

// desiredConfigMap is the wanted ConfigMap, with the metadata of was that belongs to others.
func (c *Controller) desiredConfigMap(was *corev1.ConfigMap, namespace string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if was != nil {
		cm = was.DeepCopy()
	}
	if cm.Annotations == nil {
		cm.Annotations = map[string]string{}
	}
	cm.Annotations[descriptionAnnotation] = description
	cm.Data = map[string]string{file: string(c.bundle.PEM())}
	cm.BinaryData = nil
	return cm
}
