// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	v1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"keelson/api/apiregistration"
	"keelson/api/kind"
	"keelson/apiserver/discovery"
)

// managedLabel marks the APIServices that this server maintains: "onstart" those of built-in group versions; "true"
// those of custom resources, created and deleted with their definitions.
const managedLabel = "kube-aggregator.kubernetes.io/automanaged"

// Priorities of the group versions of custom resources, as in Kubernetes.
const (
	customGroupPriority   = 1000
	customVersionPriority = 100
)

// manage creates missing APIServices, deletes those of deleted custom resources, and restores the condition of local
// ones.
func (s *Services) manage(ctx context.Context) error {
	local := s.config.Local()
	s.mu.Lock()
	var missing []*v1.APIService
	wanted := map[string]bool{}
	for _, l := range local {
		svc := managed(l)
		wanted[svc.Name] = true
		if s.known[svc.Name] == nil {
			missing = append(missing, svc)
		}
	}
	var gone, unavailable []*v1.APIService
	for name, svc := range s.known {
		if svc.Spec.Service == nil && !hasCondition(svc, apiregistration.Local) {
			unavailable = append(unavailable, svc)
		}
		if svc.Labels[managedLabel] == "true" && !wanted[name] {
			gone = append(gone, svc)
		}
	}
	s.mu.Unlock()
	var group errgroup.Group
	group.SetLimit(maxConcurrentProbes)
	for _, svc := range missing {
		group.Go(func() error {
			if err := s.config.Create(ctx, svc); !apierrors.IsAlreadyExists(err) {
				return err
			}
			return nil
		})
	}
	for _, svc := range gone {
		group.Go(func() error { return s.remove(ctx, svc) })
	}
	for _, svc := range unavailable {
		group.Go(func() error { return s.writeCondition(ctx, svc, apiregistration.Local) })
	}
	return group.Wait()
}

func managed(l Local) *v1.APIService {
	svc := &v1.APIService{}
	svc.Name = l.GV.Version + "." + l.GV.Group
	svc.Labels = map[string]string{managedLabel: "onstart"}
	svc.Spec = v1.APIServiceSpec{Group: l.GV.Group, Version: l.GV.Version}
	svc.Spec.GroupPriorityMinimum, svc.Spec.VersionPriority = discovery.Priority(l.GV)
	if l.Custom {
		svc.Labels[managedLabel] = "true"
		svc.Spec.GroupPriorityMinimum = customGroupPriority
		svc.Spec.VersionPriority = customVersionPriority
	}
	return svc
}

func (s *Services) remove(ctx context.Context, svc *v1.APIService) error {
	_, _, err := s.config.Stored.Delete(ctx, "", svc.Name, func(current kind.Object) error {
		if current.GetUID() != svc.UID || current.GetLabels()[managedLabel] != "true" {
			return errStale
		}
		return nil
	})
	if errors.Is(err, errStale) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
