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

// systemObjects are the objects that are created again after a deletion, as in Kubernetes: the Service "kubernetes"
// with its endpoints, and FlowSchemas and PriorityLevelConfigurations. Roles, for example, are only created again at
// the next start.
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

// watchSystemObjects adds event handlers that react to the deletion of a system object.
func (s *Server) watchSystemObjects() {
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
	s.eventHandlers = slices.Clone(s.eventHandlers)
	for gvr, own := range names {
		i := slices.IndexFunc(s.eventHandlers, func(f EventHandler) bool { return f.Resource == gvr })
		if i < 0 {
			s.eventHandlers = append(s.eventHandlers, EventHandler{
				Resource: gvr,
				Set:      func(runtime.Object) {},
				Remove:   func(runtime.Object) {},
			})
			i = len(s.eventHandlers) - 1
		}
		remove := s.eventHandlers[i].Remove
		set := s.eventHandlers[i].Set
		s.eventHandlers[i].Set = func(obj runtime.Object) {
			set(obj)
			if s.endpointsDiffer(obj) {
				s.systemObjectsLoop.Add(systemObjectsKey{})
			}
		}
		s.eventHandlers[i].Remove = func(obj runtime.Object) {
			remove(obj)
			if o, ok := obj.(kind.Object); ok &&
				own[types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}] {
				s.systemObjectsLoop.Add(systemObjectsKey{})
			}
		}
	}
}

// systemObjectsKey is the only key of the loop: one pass handles all system objects.
type systemObjectsKey struct{}

// newSystemObjectsLoop is the loop that creates deleted system objects again.
func (s *Server) newSystemObjectsLoop() *keyed.Loop[systemObjectsKey] {
	return keyed.New(keyed.Config[systemObjectsKey]{
		Pause: systemObjectsRetry,
		Do: func(ctx context.Context, _ systemObjectsKey) (time.Duration, error) {
			list, err := s.systemObjects()
			if err == nil {
				err = s.ensureAll(ctx, list)
			}
			if err == nil && !s.config.SharedStore {
				err = s.reconcileEndpoints(ctx)
			}
			if err == nil {
				err = s.setServiceCIDRReady(ctx)
			}
			return 0, err
		},
		Failed: func(_ systemObjectsKey, err error) {
			s.log.Warn("create deleted system objects", "error", err)
		},
	})
}
