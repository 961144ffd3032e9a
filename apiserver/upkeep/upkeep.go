// SPDX-License-Identifier: Apache-2.0

// Package upkeep keeps the API server's own objects: namespaces, the Service "kubernetes" with the endpoints that are
// the running servers, the policies of RBAC and of priority and fairness, what others authenticate requests by. The
// server bootstraps them before it is ready and restores them while it runs. It writes as the server (writes.Own), and
// nothing at intervals but the keys of servers that share a store.
package upkeep

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"keelson/api/kind"
	"keelson/apiserver/access"
	"keelson/apiserver/addresses"
	"keelson/apiserver/objects"
	"keelson/apiserver/resources"
	"keelson/apiserver/writes"
	"keelson/lib/keyed"
	"keelson/store"
)

// keptKind says how the server keeps its own objects of a kind. Every one is created, or reconciled, at the start.
type keptKind struct {
	gvr schema.GroupVersionResource
	// watched objects are restored as soon as they are deleted or changed; others at the next start.
	watched bool
	// namespace limits the watch; empty: all.
	namespace string
	// reconcile modifies have towards want and reports whether that changed anything; nil: an existing object stays.
	reconcile func(have, want kind.Object) bool
	// replace reports whether have differs in a field that cannot change, so that it is deleted and created again.
	replace func(have, want kind.Object) bool
	// stray reports whether have is an object of an earlier version of the server, which the start deletes.
	stray func(have kind.Object) bool
	// then completes an object that exists.
	then func(context.Context) error
}

// keptKinds is the table of the server's own objects. docs/decisions/0186 compares it with Kubernetes.
func (u *Upkeep) keptKinds() []*keptKind {
	return []*keptKind{
		{gvr: corev1.SchemeGroupVersion.WithResource("namespaces"), watched: true},
		{
			gvr:       corev1.SchemeGroupVersion.WithResource("serviceaccounts"),
			watched:   true,
			namespace: metav1.NamespaceSystem,
		},
		{
			gvr:       corev1.SchemeGroupVersion.WithResource("services"),
			watched:   true,
			namespace: metav1.NamespaceDefault,
		},
		{
			gvr:       endpointsResource,
			watched:   true,
			namespace: metav1.NamespaceDefault,
			reconcile: typed(reconcileOwnEndpoints),
		},
		{
			gvr:       slicesResource,
			watched:   true,
			namespace: metav1.NamespaceDefault,
			reconcile: typed(reconcileOwnSlice),
			replace:   typed(replaceOwnSlice),
		},
		{
			gvr:       serviceCIDRs,
			watched:   true,
			reconcile: typed(reconcileServiceCIDR),
			then:      u.setServiceCIDRReady,
		},
		{
			gvr:       corev1.SchemeGroupVersion.WithResource("configmaps"),
			watched:   true,
			namespace: metav1.NamespaceSystem,
			reconcile: typed(reconcileConfigMap),
		},
		{
			gvr:       flowcontrolv1.SchemeGroupVersion.WithResource("flowschemas"),
			watched:   true,
			reconcile: typed(reconcileFlowSchema),
			stray:     strayFlowControl,
		},
		{
			gvr:       flowcontrolv1.SchemeGroupVersion.WithResource("prioritylevelconfigurations"),
			watched:   true,
			reconcile: typed(reconcilePriorityLevel),
			stray:     strayFlowControl,
		},
		{gvr: schedulingv1.SchemeGroupVersion.WithResource("priorityclasses")},
		{
			gvr:       rbacv1.SchemeGroupVersion.WithResource("clusterroles"),
			reconcile: typed(reconcileClusterRole),
		},
		{gvr: rbacv1.SchemeGroupVersion.WithResource("roles"), reconcile: typed(reconcileRole)},
		{
			gvr:       rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"),
			reconcile: typed(reconcileClusterRoleBinding),
			replace:   typed(replaceClusterRoleBinding),
		},
		{
			gvr:       rbacv1.SchemeGroupVersion.WithResource("rolebindings"),
			reconcile: typed(reconcileRoleBinding),
			replace:   typed(replaceRoleBinding),
		},
	}
}

// objectRef names an object.
type objectRef struct {
	gvr             schema.GroupVersionResource
	namespace, name string
}

// keptObject is one of the server's own objects.
type keptObject struct {
	ref  objectRef
	kind *keptKind
	want kind.Object
}

// Config is what the upkeep depends on.
type Config struct {
	Served *resources.Served
	Reader *access.Reader
	// Own writes the objects.
	Own *writes.Own
	// Store has the keys of the servers that share it; Shared: there may be others.
	Store  store.Store
	Shared bool
	// Address has the addresses by which others reach the server.
	Address addresses.Own
	// Objects must exist, of the kinds in the table: missing ones are created, others reconciled.
	Objects []runtime.Object
	// RemovedBindings are bindings of earlier versions: their subjects are removed from the bindings with these names.
	RemovedBindings []*rbacv1.ClusterRoleBinding
	Log             *slog.Logger
}

// Upkeep keeps the server's own objects while it runs. A watch adds an object that was deleted or changed to the loop;
// nothing runs at intervals.
type Upkeep struct {
	config  Config
	kinds   map[schema.GroupVersionKind]*keptKind
	served  map[schema.GroupVersionKind]bool
	loop    *keyed.Loop[objectRef]
	spacing map[objectRef]*spacing // used by the loop alone
	// peers and endpoints are used by one goroutine at a time: Bootstrap, then RunEndpoints, then Leave
	peers     *peers
	endpoints *keyed.Loop[struct{}]

	mu     sync.Mutex
	wanted map[objectRef]keptObject
}

// restorePause is the pause between restorations of the same object after the first, which doubles up to
// longestRestorePause.
const (
	restorePause        = 100 * time.Millisecond
	longestRestorePause = time.Minute
	// restoreRetry is the first pause after an error.
	restoreRetry = time.Second
)

// New returns the upkeep of a server. Nothing runs yet.
func New(config Config) *Upkeep {
	u := &Upkeep{
		config:  config,
		peers:   newPeers(config.Store, config.Address),
		kinds:   map[schema.GroupVersionKind]*keptKind{},
		served:  map[schema.GroupVersionKind]bool{},
		spacing: map[objectRef]*spacing{},
		wanted:  map[objectRef]keptObject{},
	}
	for _, res := range config.Served.AllBuiltIn() {
		u.served[res.GVK()] = true
	}
	for _, k := range u.keptKinds() {
		if res := config.Served.BuiltIn(k.gvr); res != nil {
			u.kinds[res.GVK()] = k
		}
	}
	u.endpoints = u.newEndpointsLoop()
	u.loop = keyed.New(keyed.Config[objectRef]{
		Pause:     restoreRetry,
		PauseMost: longestRestorePause,
		Do:        u.restore,
		Failed: func(ref objectRef, err error) {
			config.Log.Warn("restore an object of the system", "resource", ref.gvr.Resource, "name", ref.name,
				"err", err)
		},
	})
	return u
}

// Run restores objects until ctx ends.
func (u *Upkeep) Run(ctx context.Context) error { return u.loop.Run(ctx) }

// add adds an object to those that the loop restores, or another version of it. ok is false if its kind is not served.
// A kind that is served and has no row is an error.
func (u *Upkeep) add(want kind.Object) (kept keptObject, ok bool, err error) {
	if kept, ok, err = u.row(want); !ok {
		return kept, false, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.wanted[kept.ref] = kept
	return kept, true, nil
}

// row finds how to keep an object; see add.
func (u *Upkeep) row(want kind.Object) (kept keptObject, ok bool, err error) {
	gvks, _, err := scheme.Scheme.ObjectKinds(want)
	if err != nil {
		return keptObject{}, false, fmt.Errorf("kind of %T: %w", want, err)
	}
	row := u.kinds[gvks[0]]
	if row == nil {
		if u.served[gvks[0]] {
			err = fmt.Errorf("the table of the server's own objects has no row for %s", gvks[0])
		}
		return keptObject{}, false, err
	}
	return keptObject{ref: refOf(row.gvr, want), kind: row, want: want}, true, nil
}

func refOf(gvr schema.GroupVersionResource, o kind.Object) objectRef {
	return objectRef{gvr: gvr, namespace: o.GetNamespace(), name: o.GetName()}
}

func (u *Upkeep) get(ref objectRef) (kept keptObject, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	kept, ok = u.wanted[ref]
	return kept, ok
}

// restore is one pass of the loop.
func (u *Upkeep) restore(ctx context.Context, ref objectRef) (again time.Duration, err error) {
	kept, ok := u.get(ref)
	if !ok {
		return 0, nil
	}
	space := u.spacing[ref]
	if space == nil {
		space = &spacing{most: longestRestorePause}
		u.spacing[ref] = space
	}
	return space.pass(func() (bool, error) { return u.ensure(ctx, kept) })
}

// spacing spaces out the restorations of an object, so that the server does not fight with another server's version of
// it, or with a client that keeps changing it.
type spacing struct {
	most  time.Duration // the longest pause
	last  time.Time
	pause time.Duration
}

// pass calls ensure, which reports whether it wrote, or returns after which time to call pass again.
func (s *spacing) pass(ensure func() (bool, error)) (again time.Duration, err error) {
	quiet := time.Since(s.last)
	if quiet < s.pause {
		return s.pause - quiet, nil
	}
	wrote, err := ensure()
	if !wrote {
		return 0, err
	}
	if quiet > 2*s.most {
		s.pause = 0
	}
	s.pause = min(max(2*s.pause, restorePause), s.most)
	s.last = time.Now()
	return 0, err
}

// EventHandlers are the event handlers that notice the deletion or change of an object.
func (u *Upkeep) EventHandlers() []access.EventHandler {
	var out []access.EventHandler
	for _, k := range u.kinds {
		if !k.watched {
			continue
		}
		notice := func(obj runtime.Object) {
			if o, ok := obj.(kind.Object); ok {
				u.notice(refOf(k.gvr, o), o)
			}
		}
		out = append(out, access.EventHandler{
			Resource:  k.gvr,
			Set:       notice,
			Remove:    notice,
			Namespace: k.namespace,
		})
	}
	return out
}

// notice adds a kept object to its loop.
func (u *Upkeep) notice(ref objectRef, obj kind.Object) {
	switch ref.gvr {
	case endpointsResource, slicesResource:
		if ofKubernetes(obj) {
			u.endpoints.Add(struct{}{})
		}
	default:
		if _, ok := u.get(ref); ok {
			u.loop.Add(ref)
		}
	}
}

// removeStrays deletes what an earlier version of the server made and this one does not. It does so at the start only:
// servers of two versions on one store would delete and create in turns.
func (u *Upkeep) removeStrays(ctx context.Context) error {
	for _, k := range u.kinds {
		if k.stray == nil {
			continue
		}
		st, err := u.config.Served.Storage(k.gvr)
		if err != nil {
			return err
		}
		page, err := st.List(ctx, objects.ListQuery{Labels: labels.Everything(), Fields: fields.Everything()})
		if err != nil {
			return fmt.Errorf("list %s: %w", k.gvr.Resource, err)
		}
		for _, e := range page.Items {
			if _, wanted := u.get(refOf(k.gvr, e.Object)); wanted || !k.stray(e.Object) {
				continue
			}
			u.config.Log.Info("delete an object of an earlier version", "resource", k.gvr.Resource, "name",
				e.Object.GetName())
			if err := u.deleteOwn(ctx, k.gvr, e.Object); err != nil && !refused(err) {
				return err
			}
		}
	}
	return nil
}
