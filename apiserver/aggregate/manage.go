// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
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

// plan is what manage has to write.
type plan struct {
	missing     []*v1.APIService
	changed     []*v1.APIService // as they should be
	gone        []*v1.APIService
	unavailable []*v1.APIService
}

// manage creates missing APIServices, deletes those of deleted custom resources, and restores the spec of managed ones
// and the condition of local ones. Of built-in group versions the spec is restored at the start alone, and those that
// are no longer served are deleted then: another server of the same store may be of another version.
func (s *Services) manage(ctx context.Context) error {
	todo := s.plan(s.config.Local())
	var group errgroup.Group
	group.SetLimit(maxConcurrentProbes)
	for _, svc := range todo.missing {
		group.Go(func() error {
			if err := s.config.Create(ctx, svc); !apierrors.IsAlreadyExists(err) {
				return err
			}
			return nil
		})
	}
	for _, svc := range todo.changed {
		group.Go(func() error { return s.restore(ctx, svc) })
	}
	for _, svc := range todo.gone {
		group.Go(func() error { return s.remove(ctx, svc) })
	}
	for _, svc := range todo.unavailable {
		group.Go(func() error { return s.writeCondition(ctx, svc, apiregistration.Local) })
	}
	err := group.Wait()
	s.reconciled = s.reconciled || err == nil
	return err
}

func (s *Services) plan(local []Local) plan {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out plan
	wanted := map[string]bool{}
	for _, l := range local {
		want := managed(l)
		wanted[want.Name] = true
		have := s.known[want.Name]
		switch {
		case have == nil:
			out.missing = append(out.missing, want)
		case s.maintains(have) && differs(have, want):
			out.changed = append(out.changed, want)
		}
	}
	for name, svc := range s.known {
		if svc.Spec.Service == nil && !hasCondition(svc, apiregistration.Local) {
			out.unavailable = append(out.unavailable, svc)
		}
		if s.maintains(svc) && !wanted[name] {
			out.gone = append(out.gone, svc)
		}
	}
	return out
}

// maintains reports whether this pass keeps an existing APIService. Without the label it is an administrator's.
func (s *Services) maintains(svc *v1.APIService) bool {
	how := svc.Labels[managedLabel]
	return how == "true" || how == "onstart" && !s.reconciled
}

// differs reports whether have is managed like want and has another spec.
func differs(have, want *v1.APIService) bool {
	return have.Labels[managedLabel] == want.Labels[managedLabel] &&
		!apiequality.Semantic.DeepEqual(have.Spec, want.Spec)
}

// restore writes the spec of want.
func (s *Services) restore(ctx context.Context, want *v1.APIService) error {
	err := s.config.Update(ctx, want, func(have *v1.APIService) bool {
		if !differs(have, want) {
			return false
		}
		have.Spec = *want.Spec.DeepCopy()
		return true
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
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
		if current.GetUID() != svc.UID || current.GetLabels()[managedLabel] != svc.Labels[managedLabel] {
			return errStale
		}
		return nil
	})
	if errors.Is(err, errStale) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
