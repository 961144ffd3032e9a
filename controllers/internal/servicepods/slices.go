// SPDX-License-Identifier: Apache-2.0

package servicepods

import (
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/controllers/framework"
)

// byService indexes EndpointSlices by Service.
const byService = "keelson.service"

// Slices finds the EndpointSlices of one manager.
type Slices struct {
	index   cache.Indexer
	manager string
}

// SlicesOf adds the index to the informer of EndpointSlices. manager is the value of the label managed-by.
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

// KeyOf is the Service of the slice.
func KeyOf(s *discoveryv1.EndpointSlice) framework.Key {
	return framework.Key{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}

// Managed reports whether the slice belongs to the manager.
func (s *Slices) Managed(slice *discoveryv1.EndpointSlice) bool {
	return slice.Labels[discoveryv1.LabelManagedBy] == s.manager
}

// Of returns the manager's slices of a Service, except those in deletion. The caller may sort the list of ports of
// each, as k8s.io/endpointslice does; everything else is shared.
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
