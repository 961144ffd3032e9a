// SPDX-License-Identifier: Apache-2.0

// Package catalog lists the API server's resources for the garbage and namespace controllers: those whose objects can
// be listed, watched and deleted. Each Load is one discovery; nothing is cached.
package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// Resource is a resource in the server's preferred version.
type Resource struct {
	GVR        schema.GroupVersionResource
	Kind       string
	Namespaced bool
	Verbs      []string
}

// GroupKind is the resource's kind without a version.
func (r *Resource) GroupKind() schema.GroupKind {
	return schema.GroupKind{Group: r.GVR.Group, Kind: r.Kind}
}

// Supports reports whether the resource supports all verbs.
func (r *Resource) Supports(verbs ...string) bool {
	for _, v := range verbs {
		if !slices.Contains(r.Verbs, v) {
			return false
		}
	}
	return true
}

// PartialError is Load's error when some API groups did not respond: the result is correct but incomplete.
type PartialError struct{ Groups map[schema.GroupVersion]error }

// Error lists the groups.
func (p *PartialError) Error() string {
	return (&discovery.ErrGroupDiscoveryFailed{Groups: p.Groups}).Error()
}

// Load returns all resources that are not subresources. With a *PartialError the list is valid but incomplete.
func Load(ctx context.Context, d discovery.DiscoveryInterface) ([]*Resource, error) {
	lists, err := discovery.ServerPreferredResourcesWithContext(ctx, discovery.ToDiscoveryInterfaceWithContext(d))
	var failed *discovery.ErrGroupDiscoveryFailed
	if err != nil && !errors.As(err, &failed) {
		return nil, fmt.Errorf("discover resources: %w", err)
	}
	all, parseErr := fromLists(lists)
	switch {
	case parseErr != nil:
		return nil, parseErr
	case failed != nil:
		return all, &PartialError{failed.Groups}
	}
	return all, nil
}

func fromLists(lists []*metav1.APIResourceList) ([]*Resource, error) {
	var all []*Resource
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("discovered group version: %w", err)
		}
		for _, apiResource := range l.APIResources {
			of := gv
			if apiResource.Group != "" {
				of.Group = apiResource.Group
			}
			if apiResource.Version != "" {
				of.Version = apiResource.Version
			}
			if !slices.Contains([]byte(apiResource.Name), '/') {
				all = append(all, &Resource{
					GVR:        of.WithResource(apiResource.Name),
					Kind:       apiResource.Kind,
					Namespaced: apiResource.Namespaced,
					Verbs:      apiResource.Verbs,
				})
			}
		}
	}
	return all, nil
}
