// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"net/netip"
	"slices"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"keelson/api/kind"
	"keelson/lib/keyed"
)

// systemObjectsRetry is the pause after a failed creation of a system object.
const systemObjectsRetry = 10 * time.Second

// systemObjects are the objects that are created again after a deletion, as in Kubernetes: the Service "kubernetes" with its endpoints, and
// FlowSchemas and PriorityLevelConfigurations. Roles, for example, are only created again at the next start.
func (s *Server) systemObjects() ([]runtime.Object, error) {
	out, err := s.ownService()
	for _, obj := range s.config.Bootstrap {
		switch obj.(type) {
		case *flowcontrolv1.FlowSchema, *flowcontrolv1.PriorityLevelConfiguration:
			out = append(out, obj)
		}
	}
	return out, err
}

// followSystemObjects adds followers that react to the deletion of a system object.
func (s *Server) followSystemObjects() {
	list, err := s.systemObjects()
	if err != nil {
		return // bootstrap returns the error
	}
	if at, err := s.ownEndpoint(); err == nil && at.IsValid() {
		list = append(list, endpointsOf([]netip.AddrPort{at})...)
	}
	names := map[schema.GroupVersionResource]map[types.NamespacedName]bool{}
	for _, obj := range list {
		o, ok := obj.(kind.Object)
		gvks, _, err := scheme.Scheme.ObjectKinds(obj)
		if !ok || err != nil {
			continue
		}
		if gvr, served := s.resourceOf(gvks[0]); served {
			if names[gvr] == nil {
				names[gvr] = map[types.NamespacedName]bool{}
			}
			names[gvr][types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}] = true
		}
	}
	s.follow = slices.Clone(s.follow)
	for gvr, own := range names {
		i := slices.IndexFunc(s.follow, func(f Follower) bool { return f.Resource == gvr })
		if i < 0 {
			s.follow = append(s.follow, Follower{Resource: gvr, Set: func(runtime.Object) {}, Remove: func(runtime.Object) {}})
			i = len(s.follow) - 1
		}
		remove, set := s.follow[i].Remove, s.follow[i].Set
		s.follow[i].Set = func(obj runtime.Object) {
			set(obj)
			if s.wrongEndpoints(obj) {
				s.missing.Add(systemObjectsKey{})
			}
		}
		s.follow[i].Remove = func(obj runtime.Object) {
			remove(obj)
			if o, ok := obj.(kind.Object); ok && own[types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}] {
				s.missing.Add(systemObjectsKey{})
			}
		}
	}
}

// systemObjectsKey is the only key of the loop: one pass handles all system objects.
type systemObjectsKey struct{}

// keepSystemObjects is the loop that creates deleted system objects again.
func (s *Server) keepSystemObjects() *keyed.Loop[systemObjectsKey] {
	return keyed.New(keyed.Config[systemObjectsKey]{
		Pause: systemObjectsRetry,
		Do: func(ctx context.Context, _ systemObjectsKey) (time.Duration, error) {
			list, err := s.systemObjects()
			if err == nil {
				err = s.ensureAll(ctx, list)
			}
			if err == nil && !s.config.Shared {
				err = s.reconcileEndpoints(ctx)
			}
			if err == nil {
				err = s.rangeReady(ctx)
			}
			return 0, err
		},
		Failed: func(_ systemObjectsKey, err error) {
			s.log.Warn("create deleted system objects", "error", err)
		},
	})
}
