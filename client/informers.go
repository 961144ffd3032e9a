// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"reflect"
	"sync"
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
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Scope is what a factory's informers hold; the zero value is everything.
type Scope struct {
	Namespace string // "" is all
	// Tweak, if given, narrows every list and watch, by selectors.
	Tweak func(*metav1.ListOptions)
}

// Informers is a set of shared informers of one Scope, at most one for each kind. Packages take theirs from client-go's
// informers of a group:
//
//	pods := coreinformers.New(set.Scoped()).Pods()
//
// It stands in for client-go's SharedInformerFactory, which names every kind: each package that mentions that one
// compiles a part of it.
type Informers struct {
	client kubernetes.Interface
	resync time.Duration
	source Source // nil: all go through the client
	scope  Scope

	mu        sync.Mutex
	informers map[reflect.Type]cache.SharedIndexInformer
	started   map[reflect.Type]bool
	closing   bool
	wg        sync.WaitGroup
}

// Informers returns a new set of shared informers (resync off unless given). In process, those of the kinds that agents
// follow hold the server's own objects, which come from the source; every other kind goes through the in-memory
// transport, which is the same in all but cost.
func (c *Client) Informers(resync time.Duration, scope Scope) *Informers {
	return &Informers{
		client:    c.Interface,
		resync:    resync,
		source:    c.source,
		scope:     scope,
		informers: map[reflect.Type]cache.SharedIndexInformer{},
		started:   map[reflect.Type]bool{},
	}
}

// Scoped is what New of each of client-go's groups of informers asks for.
func (s *Informers) Scoped() (
	internalinterfaces.SharedInformerFactory, string, internalinterfaces.TweakListOptionsFunc,
) {
	return s, s.scope.Namespace, s.scope.Tweak
}

// InformerFor is what the typed informers of a group ask for their one shared informer.
func (s *Informers) InformerFor(
	obj runtime.Object, usual internalinterfaces.NewInformerFunc,
) cache.SharedIndexInformer {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := reflect.TypeOf(obj)
	inf, ok := s.informers[t]
	if ok {
		return inf
	}
	if inf = ofSource(s.source, s.scope, obj, s.resync); inf == nil {
		inf = usual(s.client, s.resync)
	}
	inf = &oneListener{SharedIndexInformer: inf}
	s.informers[t] = inf
	return inf
}

// InformerName is nil: the informers keep no metrics.
func (s *Informers) InformerName() *cache.InformerName { return nil }

// Start starts the informers that were asked for and do not run yet. They end when stop is closed.
func (s *Informers) Start(stop <-chan struct{}) {
	// Each context made of one that is not the library's own costs a goroutine; here it is one for all.
	ctx, cancel := context.WithCancel(wait.ContextForChannel(stop))
	context.AfterFunc(ctx, cancel)
	s.StartWithContext(ctx)
}

// StartWithContext is Start; the informers end with ctx.
func (s *Informers) StartWithContext(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return
	}
	for t, inf := range s.informers {
		if !s.started[t] {
			s.started[t] = true
			s.wg.Go(func() { inf.RunWithContext(ctx) })
		}
	}
}

// Shutdown waits until all informers have ended, and starts no more. What they were started with must be done, or
// become so.
func (s *Informers) Shutdown() {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.wg.Wait()
}

// WaitForCacheSync waits until every started informer has listed its objects; false: ctx is done before.
func (s *Informers) WaitForCacheSync(ctx context.Context) bool {
	s.mu.Lock()
	var synced []cache.DoneChecker
	for t, inf := range s.informers {
		if s.started[t] {
			synced = append(synced, inf.HasSyncedChecker())
		}
	}
	s.mu.Unlock()
	return cache.WaitFor(ctx, "", synced...)
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

// InformerOfSource is an informer of a client's source; nil: the client has none, or obj is of a kind that does not
// come from it.
func (c *Client) InformerOfSource(obj runtime.Object, resync time.Duration, scope Scope) cache.SharedIndexInformer {
	return ofSource(c.source, scope, obj, resync)
}

func ofSource(source Source, scope Scope, obj runtime.Object, resync time.Duration) cache.SharedIndexInformer {
	f, ok := followed[reflect.TypeOf(obj)]
	if !ok || source == nil {
		return nil
	}
	gvr := schema.GroupVersionResource{Group: f.group, Version: "v1", Resource: f.resource}
	if !f.namespaced {
		scope.Namespace = ""
	}
	return cache.NewSharedIndexInformer(listWatch(source, scope, gvr), obj, resync, cache.Indexers{
		cache.NamespaceIndex: cache.MetaNamespaceIndexFunc,
	})
}

func listWatch(source Source, scope Scope, gvr schema.GroupVersionResource) *cache.ListWatch {
	tweaked := func(o metav1.ListOptions) metav1.ListOptions {
		if scope.Tweak != nil {
			scope.Tweak(&o)
		}
		return o
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			objs, rv, err := source.List(ctx, gvr, scope.Namespace, tweaked(o))
			if err != nil {
				return nil, err
			}
			l := &corev1.List{
				ListMeta: metav1.ListMeta{ResourceVersion: rv},
				Items:    make([]runtime.RawExtension, len(objs)),
			}
			for i, obj := range objs {
				l.Items[i].Object = obj
			}
			return l, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return source.Watch(ctx, gvr, scope.Namespace, tweaked(o))
		},
	}
}

// Delivered is what an informer's handler was given, as a T. Where the informer has missed a deletion, that is the last
// version it knew (a tombstone). false: it is something else.
func Delivered[T any](obj any) (T, bool) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	t, ok := obj.(T)
	return t, ok
}
