// SPDX-License-Identifier: Apache-2.0

package servicepods

import (
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/controllers/framework"
)

// byService finds the endpoint slices of a service.
const byService = "keelson.service"

// Slices finds endpoint slices of one manager.
type Slices struct {
	index   cache.Indexer
	manager string
}

// SlicesOf adds the index to the informer of endpoint slices. manager is the value of the label managed-by.
func SlicesOf(env *framework.Env, manager string) (*Slices, error) {
	inf := discoveryinformers.New(env.Shared.Scoped()).EndpointSlices().Informer()
	if err := framework.EnsureIndex(inf, byService, indexByService); err != nil {
		return nil, err
	}
	return &Slices{inf.GetIndexer(), manager}, nil
}

func indexByService(obj any) ([]string, error) {
	if s, ok := obj.(*discoveryv1.EndpointSlice); ok && s.Labels[discoveryv1.LabelServiceName] != "" {
		return []string{KeyOf(s).String()}, nil
	}
	return nil, nil
}

// KeyOf is the service whose endpoints are in the slice.
func KeyOf(s *discoveryv1.EndpointSlice) framework.Key {
	return framework.Key{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}

// Managed reports whether the slice is the manager's.
func (s *Slices) Managed(slice *discoveryv1.EndpointSlice) bool {
	return slice.Labels[discoveryv1.LabelManagedBy] == s.manager
}

// Of returns the manager's slices of a service, but for those that are being deleted. The list of ports in each is the caller's
// to sort, as k8s.io/endpointslice does; everything else in them is shared.
func (s *Slices) Of(service framework.Key) ([]*discoveryv1.EndpointSlice, error) {
	objs, err := s.index.ByIndex(byService, service.String())
	if err != nil {
		return nil, err
	}
	var out []*discoveryv1.EndpointSlice
	for _, obj := range objs {
		slice, ok := obj.(*discoveryv1.EndpointSlice)
		if !ok || !s.Managed(slice) || slice.DeletionTimestamp != nil {
			continue
		}
		if len(slice.Ports) > 1 {
			own := *slice
			own.Ports = slices.Clone(slice.Ports)
			slice = &own
		}
		out = append(out, slice)
	}
	return out, nil
}
