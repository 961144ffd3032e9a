// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/cache"

	"keelson/api/apps"
	"keelson/api/batch"
	"keelson/api/core"
	podkind "keelson/api/core/pod"
	"keelson/api/core/service"
	"keelson/api/core/volume"
	"keelson/api/gates"
	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/api/resource"
	"keelson/api/scheduling"
	"keelson/api/storage"
)

// manifestKind is a kind whose objects count in a manifest.
type manifestKind struct {
	of    func(gates.On) *kind.Kind
	leads bool // to pods; else it only matters to pods
}

func ungated(of func() *kind.Kind) func(gates.On) *kind.Kind {
	return func(gates.On) *kind.Kind { return of() }
}

// manifestKinds are the kinds that count, by Go type.
var manifestKinds = map[reflect.Type]manifestKind{
	reflect.TypeFor[*corev1.Pod]():                   {podkind.Pod, true},
	reflect.TypeFor[*corev1.ReplicationController](): {core.ReplicationController, true},
	reflect.TypeFor[*appsv1.Deployment]():            {apps.Deployment, true},
	reflect.TypeFor[*appsv1.ReplicaSet]():            {apps.ReplicaSet, true},
	reflect.TypeFor[*appsv1.StatefulSet]():           {apps.StatefulSet, true},
	reflect.TypeFor[*appsv1.DaemonSet]():             {apps.DaemonSet, true},
	reflect.TypeFor[*batchv1.Job]():                  {batch.Job, true},
	reflect.TypeFor[*batchv1.CronJob]():              {batch.CronJob, true},

	// What pods refer to; waiting pods may be about these.
	reflect.TypeFor[*corev1.PersistentVolumeClaim](): {ungated(volume.PersistentVolumeClaim), true},
	reflect.TypeFor[*schedulingv1beta1.PodGroup]():   {ungated(scheduling.PodGroup), true},
	reflect.TypeFor[*corev1.PersistentVolume]():      {ungated(volume.PersistentVolume), true},
	reflect.TypeFor[*resourcev1.ResourceClaim]():     {ungated(resource.ResourceClaim), true},

	reflect.TypeFor[*corev1.Namespace]():                 {ungated(core.Namespace), false},
	reflect.TypeFor[*corev1.Service]():                   {ungated(service.Service), false},
	reflect.TypeFor[*schedulingv1.PriorityClass]():       {ungated(scheduling.PriorityClass), false},
	reflect.TypeFor[*storagev1.StorageClass]():           {ungated(storage.StorageClass), false},
	reflect.TypeFor[*resourcev1.ResourceClaimTemplate](): {ungated(resource.ResourceClaimTemplate), false},
}

// kindOf returns the kind of an object; nil: it does not count in a manifest.
func kindOf(obj runtime.Object) (k *kind.Kind, leads bool) {
	of, ok := manifestKinds[reflect.TypeOf(obj)]
	if !ok {
		return nil, false
	}
	return of.of(gates.All()), of.leads
}

// admit makes of an object what the API server would: its defaults are set, and an invalid one is refused.
func (t *simulation) admit(obj kind.Object) error {
	spec := manifestKinds[reflect.TypeOf(obj)].of(t.gates)
	if obj.GetName() == "" {
		obj.SetName(strings.TrimRight(obj.GetGenerateName(), "-."))
	}
	t.admitted++
	obj.SetUID(types.UID(fmt.Sprintf("object-%d", t.admitted))) // short: a Job's is a label
	spec.Default(obj)
	spec.PrepareCreate(obj)
	var errs field.ErrorList
	name := field.NewPath("metadata", "name")
	if obj.GetName() == "" {
		errs = append(errs, field.Required(name, "name or generateName is required"))
	} else {
		for _, why := range spec.ValidateName(obj.GetName(), false) {
			errs = append(errs, field.Invalid(name, obj.GetName(), why))
		}
	}
	if errs = append(errs, spec.Validate(obj)...); len(errs) > 0 {
		return invalid.New(spec.GVK().GroupKind(), obj.GetName(), errs)
	}
	return nil
}

// addManifest adds what the manifest's pods depend on, whatever its place in the manifest is, then the pods that
// controllers would create.
func (t *simulation) addManifest(ctx context.Context, w *Manifest, list []schedulingv1.PriorityClass) error {
	if len(w.skipped) > 0 {
		t.note("not counted: " + w.listSkipped())
	}
	for i := range list {
		t.addPriorityClass(&list[i])
	}
	objects := make([]kind.Object, len(w.objects))
	for i, obj := range w.objects {
		objects[i], _ = obj.DeepCopyObject().(kind.Object) // kinds of manifestKinds are
		if _, pod := obj.(*corev1.Pod); pod {              // addPods admits pods
			continue
		}
		if err := t.admit(objects[i]); err != nil {
			return err
		}
		if err := t.addDependency(objects[i]); err != nil {
			return err
		}
	}
	for _, obj := range objects {
		if obj.GetNamespace() != "" {
			if err := t.readLimits(ctx, obj.GetNamespace()); err != nil {
				return err
			}
		}
		if err := t.addClaims(obj); err != nil {
			return err
		}
		if g, ok := obj.(*schedulingv1beta1.PodGroup); ok {
			if err := t.addGroup(g); err != nil {
				return err
			}
		}
	}
	for _, obj := range objects {
		if err := t.addPodsOf(ctx, obj); err != nil {
			return err
		}
	}
	return nil
}

// addDependency adds an object of a kind that other objects of the manifest refer to, unless it exists.
func (t *simulation) addDependency(obj kind.Object) error {
	cs := t.source.Informers.Core().V1()
	switch o := obj.(type) {
	case *schedulingv1.PriorityClass:
		if t.classes[o.Name] == nil {
			t.addPriorityClass(o)
		}
	case *storagev1.StorageClass:
		_, err := addNew(t.source.Informers.Storage().V1().StorageClasses().Informer(), o)
		return err
	case *corev1.PersistentVolume:
		o.Status.Phase = corev1.VolumeAvailable // the controller says so at once
		_, err := addNew(cs.PersistentVolumes().Informer(), o)
		return err
	case *resourcev1.ResourceClaim:
		return t.addDeviceClaim(o)
	case *resourcev1.ResourceClaimTemplate:
		t.claimTemplates[o.Namespace+"/"+o.Name] = o
	case *corev1.Service:
		_, err := addNew(cs.Services().Informer(), o)
		return err
	case *corev1.Namespace:
		isNew, err := addNew(cs.Namespaces().Informer(), o)
		if isNew {
			t.core.Cache.SetNamespace(o.Name, o.Labels)
		}
		return err
	}
	return nil
}

// addPriorityClass adds a priority class.
func (t *simulation) addPriorityClass(c *schedulingv1.PriorityClass) {
	t.classes[c.Name] = &c.Value
	if c.GlobalDefault && t.classes[""] == nil {
		t.classes[""] = &c.Value
	}
}

// addNew adds an object to the store of an informer. It reports false for an object that exists.
func addNew(informer cache.SharedIndexInformer, obj kind.Object) (isNew bool, err error) {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return false, fmt.Errorf("key of an object: %w", err)
	}
	if _, exists, _ := informer.GetStore().GetByKey(key); exists { // GetByKey of an informer's store returns no error
		return false, nil
	}
	if err := informer.GetStore().Add(obj); err != nil {
		return false, fmt.Errorf("add %s: %w", key, err)
	}
	return true, nil
}
