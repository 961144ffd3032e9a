// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
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
	"keelson/apiserver/objects"
	"keelson/lib/keyed"
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
func (s *Server) keptKinds() []*keptKind {
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
			then:      s.setServiceCIDRReady,
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

// upkeep keeps the server's own objects while it runs. A watch adds an object that was deleted or changed to the loop;
// nothing runs at intervals.
type upkeep struct {
	kinds   map[schema.GroupVersionKind]*keptKind
	served  map[schema.GroupVersionKind]bool
	loop    *keyed.Loop[objectRef]
	spacing map[objectRef]*spacing // used by the loop alone

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

func (s *Server) newUpkeep() *upkeep {
	out := &upkeep{
		kinds:   map[schema.GroupVersionKind]*keptKind{},
		served:  map[schema.GroupVersionKind]bool{},
		spacing: map[objectRef]*spacing{},
		wanted:  map[objectRef]keptObject{},
	}
	for _, res := range s.data.Served.AllBuiltIn() {
		out.served[res.GVK()] = true
	}
	for _, k := range s.keptKinds() {
		if res := s.data.Served.BuiltIn(k.gvr); res != nil {
			out.kinds[res.GVK()] = k
		}
	}
	out.loop = keyed.New(keyed.Config[objectRef]{
		Pause:     restoreRetry,
		PauseMost: longestRestorePause,
		Do:        s.restore,
		Failed: func(ref objectRef, err error) {
			s.log.Warn("restore an object of the system", "resource", ref.gvr.Resource, "name", ref.name, "err", err)
		},
	})
	return out
}

// add adds an object to those that the loop restores, or another version of it. ok is false if its kind is not served.
// A kind that is served and has no row is an error.
func (u *upkeep) add(want kind.Object) (kept keptObject, ok bool, err error) {
	if kept, ok, err = u.row(want); !ok {
		return kept, false, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.wanted[kept.ref] = kept
	return kept, true, nil
}

// row finds how to keep an object; see add.
func (u *upkeep) row(want kind.Object) (kept keptObject, ok bool, err error) {
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

func (u *upkeep) get(ref objectRef) (kept keptObject, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	kept, ok = u.wanted[ref]
	return kept, ok
}

// restore is one pass of the loop.
func (s *Server) restore(ctx context.Context, ref objectRef) (again time.Duration, err error) {
	kept, ok := s.upkeep.get(ref)
	if !ok {
		return 0, nil
	}
	space := s.upkeep.spacing[ref]
	if space == nil {
		space = &spacing{most: longestRestorePause}
		s.upkeep.spacing[ref] = space
	}
	return space.pass(func() (bool, error) { return s.ensure(ctx, kept) })
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

// upkeepHandlers are the event handlers that notice the deletion or change of an object.
func (s *Server) upkeepHandlers() []access.EventHandler {
	var out []access.EventHandler
	for _, k := range s.upkeep.kinds {
		if !k.watched {
			continue
		}
		notice := func(obj runtime.Object) {
			if o, ok := obj.(kind.Object); ok {
				s.notice(refOf(k.gvr, o), o)
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
func (s *Server) notice(ref objectRef, obj kind.Object) {
	switch ref.gvr {
	case endpointsResource, slicesResource:
		if ofKubernetes(obj) {
			s.endpointsLoop.Add(struct{}{})
		}
	default:
		if _, ok := s.upkeep.get(ref); ok {
			s.upkeep.loop.Add(ref)
		}
	}
}

// removeStrays deletes what an earlier version of the server made and this one does not. It does so at the start only:
// servers of two versions on one store would delete and create in turns.
func (s *Server) removeStrays(ctx context.Context) error {
	for _, k := range s.upkeep.kinds {
		if k.stray == nil {
			continue
		}
		st, err := s.data.Served.Storage(k.gvr)
		if err != nil {
			return err
		}
		page, err := st.List(ctx, objects.ListQuery{Labels: labels.Everything(), Fields: fields.Everything()})
		if err != nil {
			return fmt.Errorf("list %s: %w", k.gvr.Resource, err)
		}
		for _, e := range page.Items {
			if _, wanted := s.upkeep.get(refOf(k.gvr, e.Object)); wanted || !k.stray(e.Object) {
				continue
			}
			s.log.Info("delete an object of an earlier version", "resource", k.gvr.Resource, "name", e.Object.GetName())
			if err := s.deleteOwn(ctx, k.gvr, e.Object); err != nil && !refused(err) {
				return err
			}
		}
	}
	return nil
}
