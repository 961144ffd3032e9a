// SPDX-License-Identifier: Apache-2.0

package source

import (
	"errors"
	"fmt"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"

	"keelson/scheduler/plugins"
	"keelson/scheduler/state"
)

// ErrNoGroups means that the server has no pod groups.
var ErrNoGroups = errors.New("the server has no podgroups.scheduling.k8s.io/v1beta1: it needs the feature gate " +
	"GenericWorkload, and the API server of Kubernetes also --runtime-config=scheduling.k8s.io/v1beta1=true")

// watchGroups watches pod groups, where the gate is on.
func (s *Source) watchGroups(on bool) ([]cache.DoneChecker, error) {
	if !on {
		return nil, nil
	}
	list, err := s.client.Discovery().ServerResourcesForGroupVersion(schedulingv1beta1.SchemeGroupVersion.String())
	if apierrors.IsNotFound(err) {
		return nil, ErrNoGroups
	}
	if err != nil {
		return nil, fmt.Errorf("discover scheduling.k8s.io/v1beta1: %w", err)
	}
	served := false
	for _, r := range list.APIResources {
		served = served || r.Name == plugins.PodGroups.Resource
	}
	if !served {
		return nil, ErrNoGroups
	}
	inf := s.Informers.Scheduling().V1beta1().PodGroups().Informer()
	reg, err := inf.AddEventHandler(s.changes.Groups.handler())
	if err != nil {
		return nil, fmt.Errorf("watch pod groups: %w", err)
	}
	return []cache.DoneChecker{reg.HasSyncedChecker()}, nil
}

// KeyOf returns the key of a pod group.
func KeyOf(g *schedulingv1beta1.PodGroup) state.GroupKey {
	return state.GroupKey{Namespace: g.Namespace, Name: g.Name}
}
