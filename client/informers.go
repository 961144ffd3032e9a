// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"reflect"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/apps"
	"k8s.io/client-go/informers/batch"
	"k8s.io/client-go/informers/coordination"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/policy"
	"k8s.io/client-go/informers/rbac"
	"k8s.io/client-go/informers/scheduling"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Scope is what a factory's informers hold; the zero value is everything.
type Scope struct {
	Namespace string // "" is all
	// Tweak, if given, narrows every list and watch, by selectors.
	Tweak func(*metav1.ListOptions)
}

// Informers returns a new factory of shared informers (resync off unless given). In process, those of the kinds that agents follow
// hold the server's own objects, which come from the source; every other kind goes through the in-memory transport, which is the
// same in all but cost.
func (c *Client) Informers(resync time.Duration, scope Scope) informers.SharedInformerFactory {
	f := informers.NewSharedInformerFactoryWithOptions(c.Interface, resync,
		informers.WithNamespace(scope.Namespace), informers.WithTweakListOptions(scope.Tweak))
	if c.source == nil {
		return f
	}
	return sharing{f, c.source, scope}
}

// sharing is a factory whose informers of some kinds list and watch a Source.
type sharing struct {
	informers.SharedInformerFactory
	source Source
	scope  Scope
}

// followed are the kinds that agents follow, all of them of version v1.
var followed = map[reflect.Type]struct {
	group, resource string
	namespaced      bool
}{
	reflect.TypeFor[*corev1.ConfigMap]():             {"", "configmaps", true},
	reflect.TypeFor[*corev1.Endpoints]():             {"", "endpoints", true},
	reflect.TypeFor[*corev1.LimitRange]():            {"", "limitranges", true},
	reflect.TypeFor[*corev1.Namespace]():             {"", "namespaces", false},
	reflect.TypeFor[*corev1.Node]():                  {"", "nodes", false},
	reflect.TypeFor[*corev1.PersistentVolume]():      {"", "persistentvolumes", false},
	reflect.TypeFor[*corev1.PersistentVolumeClaim](): {"", "persistentvolumeclaims", true},
	reflect.TypeFor[*corev1.Pod]():                   {"", "pods", true},
	reflect.TypeFor[*corev1.ReplicationController](): {"", "replicationcontrollers", true},
	reflect.TypeFor[*corev1.ResourceQuota]():         {"", "resourcequotas", true},
	reflect.TypeFor[*corev1.Secret]():                {"", "secrets", true},
	reflect.TypeFor[*corev1.Service]():               {"", "services", true},
	reflect.TypeFor[*corev1.ServiceAccount]():        {"", "serviceaccounts", true},
	reflect.TypeFor[*appsv1.ControllerRevision]():    {"apps", "controllerrevisions", true},
	reflect.TypeFor[*appsv1.DaemonSet]():             {"apps", "daemonsets", true},
	reflect.TypeFor[*appsv1.Deployment]():            {"apps", "deployments", true},
	reflect.TypeFor[*appsv1.ReplicaSet]():            {"apps", "replicasets", true},
	reflect.TypeFor[*appsv1.StatefulSet]():           {"apps", "statefulsets", true},
	reflect.TypeFor[*batchv1.CronJob]():              {"batch", "cronjobs", true},
	reflect.TypeFor[*batchv1.Job]():                  {"batch", "jobs", true},
	reflect.TypeFor[*coordinationv1.Lease]():         {"coordination.k8s.io", "leases", true},
	reflect.TypeFor[*discoveryv1.EndpointSlice]():    {"discovery.k8s.io", "endpointslices", true},
	reflect.TypeFor[*policyv1.PodDisruptionBudget](): {"policy", "poddisruptionbudgets", true},
	reflect.TypeFor[*rbacv1.ClusterRole]():           {"rbac.authorization.k8s.io", "clusterroles", false},
	reflect.TypeFor[*rbacv1.ClusterRoleBinding]():    {"rbac.authorization.k8s.io", "clusterrolebindings", false},
	reflect.TypeFor[*rbacv1.Role]():                  {"rbac.authorization.k8s.io", "roles", true},
	reflect.TypeFor[*rbacv1.RoleBinding]():           {"rbac.authorization.k8s.io", "rolebindings", true},
	reflect.TypeFor[*schedulingv1.PriorityClass]():   {"scheduling.k8s.io", "priorityclasses", false},
	reflect.TypeFor[*storagev1.CSIDriver]():          {"storage.k8s.io", "csidrivers", false},
	reflect.TypeFor[*storagev1.CSINode]():            {"storage.k8s.io", "csinodes", false},
	reflect.TypeFor[*storagev1.StorageClass]():       {"storage.k8s.io", "storageclasses", false},
	reflect.TypeFor[*storagev1.VolumeAttachment]():   {"storage.k8s.io", "volumeattachments", false},
}

// InformerFor is what the typed informers below ask for their one shared informer.
func (s sharing) InformerFor(obj runtime.Object, usual internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	f, ok := followed[reflect.TypeOf(obj)]
	if !ok {
		return s.SharedInformerFactory.InformerFor(obj, usual)
	}
	gvr := schema.GroupVersionResource{Group: f.group, Version: "v1", Resource: f.resource}
	ns := ""
	if f.namespaced {
		ns = s.scope.Namespace
	}
	return s.SharedInformerFactory.InformerFor(obj, func(_ kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(s.listWatch(gvr, ns), obj, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	})
}

func (s sharing) listWatch(gvr schema.GroupVersionResource, ns string) cache.ListerWatcher {
	tweaked := func(o metav1.ListOptions) metav1.ListOptions {
		if s.scope.Tweak != nil {
			s.scope.Tweak(&o)
		}
		return o
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			objs, rv, err := s.source.List(ctx, gvr, ns, tweaked(o))
			if err != nil {
				return nil, err
			}
			l := &corev1.List{ListMeta: metav1.ListMeta{ResourceVersion: rv}, Items: make([]runtime.RawExtension, len(objs))}
			for i, obj := range objs {
				l.Items[i].Object = obj
			}
			return l, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return s.source.Watch(ctx, gvr, ns, tweaked(o))
		},
	}
}

// Core is the core group.
func (s sharing) Core() core.Interface { return core.New(s, s.scope.Namespace, s.scope.Tweak) }

// Apps is apps.
func (s sharing) Apps() apps.Interface { return apps.New(s, s.scope.Namespace, s.scope.Tweak) }

// Batch is batch.
func (s sharing) Batch() batch.Interface { return batch.New(s, s.scope.Namespace, s.scope.Tweak) }

// Coordination is coordination.k8s.io.
func (s sharing) Coordination() coordination.Interface {
	return coordination.New(s, s.scope.Namespace, s.scope.Tweak)
}

// Discovery is discovery.k8s.io.
func (s sharing) Discovery() discovery.Interface {
	return discovery.New(s, s.scope.Namespace, s.scope.Tweak)
}

// Policy is policy.
func (s sharing) Policy() policy.Interface { return policy.New(s, s.scope.Namespace, s.scope.Tweak) }

// Rbac is rbac.authorization.k8s.io.
func (s sharing) Rbac() rbac.Interface { return rbac.New(s, s.scope.Namespace, s.scope.Tweak) }

// Scheduling is scheduling.k8s.io.
func (s sharing) Scheduling() scheduling.Interface {
	return scheduling.New(s, s.scope.Namespace, s.scope.Tweak)
}

// Storage is storage.k8s.io.
func (s sharing) Storage() storage.Interface { return storage.New(s, s.scope.Namespace, s.scope.Tweak) }

// Delivered is what an informer's handler was given, as a T. Where the informer has missed a deletion, that is the last version
// it knew (a tombstone). false: it is something else.
func Delivered[T any](obj any) (T, bool) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	t, ok := obj.(T)
	return t, ok
}
