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
)

// ownRetry is the pause after an object of the server's own could not be made again.
const ownRetry = 10 * time.Second

// own are the objects that are made again when they are deleted, as Kubernetes does: the service "kubernetes" with what belongs to it,
// and flow schemas and priority levels. Roles, for instance, stay deleted until the next start.
func (s *Server) own() ([]runtime.Object, error) {
	out, err := s.ownService()
	for _, obj := range s.config.Bootstrap {
		switch obj.(type) {
		case *flowcontrolv1.FlowSchema, *flowcontrolv1.PriorityLevelConfiguration:
			out = append(out, obj)
		}
	}
	return out, err
}

// noteOwn has the followers tell when one of the server's own objects goes.
func (s *Server) noteOwn() {
	list, err := s.own()
	if err != nil {
		return // bootstrap says so
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
				s.lookAgain()
			}
		}
		s.follow[i].Remove = func(obj runtime.Object) {
			remove(obj)
			if o, ok := obj.(kind.Object); ok && own[types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}] {
				s.lookAgain()
			}
		}
	}
}

// lookAgain wakes keepOwn.
func (s *Server) lookAgain() {
	select {
	case s.missing <- struct{}{}:
	default:
	}
}

// keepOwn makes the server's own objects again when they have gone, until ctx is done.
func (s *Server) keepOwn(ctx context.Context) error {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.missing:
		case <-again:
		}
		again = nil
		list, err := s.own()
		if err == nil {
			err = s.ensureAll(ctx, list)
		}
		if err == nil && !s.config.Shared {
			err = s.reconcileEndpoints(ctx)
		}
		if err == nil {
			err = s.rangeReady(ctx)
		}
		if err != nil && ctx.Err() == nil {
			s.log.Warn("objects of the server's own are not made again", "error", err)
			again = time.After(ownRetry)
		}
	}
}
