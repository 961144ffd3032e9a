// SPDX-License-Identifier: Apache-2.0

// Package pvprotection removes the finalizer kubernetes.io/pv-protection, which admission adds, from a deleted
// PersistentVolume that is not bound. The table of controllers starts it. It never deletes a volume.
package pvprotection

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"keelson/controllers/framework"
	"keelson/controllers/internal/protect"
	"keelson/event"
)

// Controller handles volumes.
type Controller struct {
	env     *framework.Env
	loop    *framework.Loop[string] // names of volumes
	volumes corelisters.PersistentVolumeLister
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	volumes := coreinformers.New(env.Shared.Scoped()).PersistentVolumes()
	controller := &Controller{env: env, volumes: volumes.Lister()}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	look := func(v *corev1.PersistentVolume) {
		if protect.NeedsSync(v, protect.Volume) {
			controller.loop.Add(v.Name)
		}
	}
	err := framework.On(controller.loop, volumes.Informer(), framework.Handlers[*corev1.PersistentVolume]{
		Add:    look,
		Update: func(_, v *corev1.PersistentVolume) { look(v) },
	})
	if err != nil {
		return nil, fmt.Errorf("volume protection: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func (c *Controller) sync(ctx context.Context, name string) error {
	v, err := c.volumes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !needsSync(v) {
		return err
	}
	begin := time.Now()
	own := v.DeepCopy()
	protect.AddOrRemove(own, protect.Volume)
	_, err = c.env.Client.CoreV1().PersistentVolumes().Update(ctx, own, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	c.env.Reconciled(event.Subject{Resource: "persistentvolumes", Name: own.Name, UID: string(own.UID)}, begin,
		&event.Reconcile{}, err)
	return err
}

// needsSync reports whether the finalizer must be added or removed.
func needsSync(v *corev1.PersistentVolume) bool {
	return protect.NeedsAdd(v, protect.Volume) ||
		protect.NeedsRemoval(v, protect.Volume) && v.Status.Phase != corev1.VolumeBound
}
