// SPDX-License-Identifier: Apache-2.0

// Package vacprotection removes the finalizer kubernetes.io/vac-protection, which admission adds, from a deleted
// VolumeAttributesClass that no volume or claim uses. The table of controllers starts it. It never deletes a class.
package vacprotection

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	storageinformers "k8s.io/client-go/informers/storage/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/controllers/framework"
	"keelson/controllers/internal/protect"
	"keelson/event"
)

// byClass indexes volumes and claims by their classes.
const byClass = "keelson.volumeattributesclass"

// Controller handles classes.
type Controller struct {
	env             *framework.Env
	loop            *framework.Loop[string] // names of classes
	classes         storagelisters.VolumeAttributesClassLister
	volumes, claims cache.Indexer
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	classes := storageinformers.New(env.Shared.Scoped()).VolumeAttributesClasses()
	volumes := core.PersistentVolumes().Informer()
	claims := core.PersistentVolumeClaims().Informer()
	controller := &Controller{
		env:     env,
		classes: classes.Lister(),
		volumes: volumes.GetIndexer(),
		claims:  claims.GetIndexer(),
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	look := func(class *storagev1.VolumeAttributesClass) {
		if protect.NeedsSync(class, protect.Class) {
			controller.loop.Add(class.Name)
		}
	}
	err := errors.Join(
		framework.EnsureIndex(volumes, byClass, indexByClass),
		framework.EnsureIndex(claims, byClass, indexByClass),
		framework.On(controller.loop, classes.Informer(), framework.Handlers[*storagev1.VolumeAttributesClass]{
			Add:    look,
			Update: func(_, class *storagev1.VolumeAttributesClass) { look(class) },
		}),
		framework.On(controller.loop, volumes, framework.Handlers[*corev1.PersistentVolume]{
			Update: func(old, v *corev1.PersistentVolume) { controller.classesReleased(classesOf(old), classesOf(v)) },
			Delete: func(v *corev1.PersistentVolume) { controller.classesReleased(classesOf(v), nil) },
		}),
		framework.On(controller.loop, claims, framework.Handlers[*corev1.PersistentVolumeClaim]{
			Update: func(old, claim *corev1.PersistentVolumeClaim) {
				controller.classesReleased(classesOf(old), classesOf(claim))
			},
			Delete: func(claim *corev1.PersistentVolumeClaim) { controller.classesReleased(classesOf(claim), nil) },
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("attributes class protection: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

// classesOf are the classes of a volume or claim: the requested, the current and the target one.
func classesOf(obj any) []string {
	var names []*string
	switch o := obj.(type) {
	case *corev1.PersistentVolume:
		names = []*string{o.Spec.VolumeAttributesClassName}
	case *corev1.PersistentVolumeClaim:
		names = []*string{o.Spec.VolumeAttributesClassName, o.Status.CurrentVolumeAttributesClassName}
		if m := o.Status.ModifyVolumeStatus; m != nil {
			names = append(names, &m.TargetVolumeAttributesClassName)
		}
	}
	var out []string
	for _, n := range names {
		if n != nil && *n != "" && !slices.Contains(out, *n) {
			out = append(out, *n)
		}
	}
	return out
}

func indexByClass(obj any) ([]string, error) { return classesOf(obj), nil }

// classesReleased queues the classes that are no longer used.
func (c *Controller) classesReleased(before, now []string) {
	for _, name := range before {
		if !slices.Contains(now, name) {
			c.loop.Add(name)
		}
	}
}

func (c *Controller) sync(ctx context.Context, name string) error {
	class, err := c.classes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !protect.NeedsSync(class, protect.Class) {
		return err
	}
	if protect.NeedsRemoval(class, protect.Class) {
		for _, ix := range []cache.Indexer{c.volumes, c.claims} {
			keys, err := ix.IndexKeys(byClass, name)
			if err != nil || len(keys) > 0 {
				return err
			}
		}
	}
	begin := time.Now()
	own := class.DeepCopy()
	protect.AddOrRemove(own, protect.Class)
	_, err = c.env.Client.StorageV1().VolumeAttributesClasses().Update(ctx, own, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	c.env.Reconciled(event.Subject{Resource: "volumeattributesclasses", Name: own.Name, UID: string(own.UID)}, begin,
		&event.Reconcile{}, err)
	return err
}
