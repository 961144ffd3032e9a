// SPDX-License-Identifier: Apache-2.0

// Package quota measures what objects use of a ResourceQuota: which quotas an
// object falls under, how much it takes, and what it must say about itself. The
// server's admission charges by it and the resourcequota controller recounts by
// it. It reads objects, changes none, and knows no clock but the one it is given.
package quota

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
)

// Meter measures the objects of one resource.
type Meter struct {
	// Tracks reports whether the meter measures the resource.
	Tracks func(name corev1.ResourceName) bool
	// Usage is what an object takes as of now. The caller owns the result.
	Usage func(obj runtime.Object, now time.Time) corev1.ResourceList
	// InScope reports whether an object falls under a scope; nil: no object has a scope.
	InScope func(sel corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (bool, error)
	// Missing says what an object leaves out of the tracked names that it must give ("must specify cpu for: main");
	// nil: nothing is needed.
	Missing func(tracked []corev1.ResourceName, obj runtime.Object) error
	// OnUpdate: updates can change what an object uses.
	OnUpdate bool
}

// CountName is the name that counts all stored objects of a resource: "count/deployments.apps".
func CountName(gr schema.GroupResource) corev1.ResourceName {
	return corev1.ResourceName("count/" + gr.String())
}

// Counted is the resource that a name counts, if it counts one: "count/deployments.apps", or a classic name like
// "secrets".
func Counted(name corev1.ResourceName) (schema.GroupResource, bool) {
	if rest, ok := strings.CutPrefix(string(name), "count/"); ok && rest != "" {
		return schema.ParseGroupResource(rest), true
	}
	if slices.Contains(classic, name) {
		return schema.GroupResource{Resource: string(name)}, true
	}
	return schema.GroupResource{}, false
}

// classic names count the core resource of the same name and are older than "count/".
var classic = []corev1.ResourceName{
	corev1.ResourceConfigMaps, corev1.ResourceSecrets, corev1.ResourceQuotas, corev1.ResourceReplicationControllers,
	corev1.ResourceServices, corev1.ResourcePersistentVolumeClaims, corev1.ResourcePods,
}

// MeterFor returns the meter of a resource. Every resource has one: those without a meter of their own are counted. Who
// measures ResourceClaims exactly takes DeviceClaimMeter.
func MeterFor(gr schema.GroupResource) *Meter {
	if gr.Group == "" {
		switch gr.Resource {
		case "pods":
			return podMeter
		case "services":
			return serviceMeter
		case "persistentvolumeclaims":
			return claimMeter
		}
	}
	if gr.Group == "resource.k8s.io" && gr.Resource == "resourceclaims" {
		return DeviceClaimMeter(View{})
	}
	return counting(gr)
}

// counting measures a resource's objects by their number alone.
func counting(gr schema.GroupResource) *Meter {
	names := []corev1.ResourceName{CountName(gr)}
	if gr.Group == "" && slices.Contains(classic, corev1.ResourceName(gr.Resource)) {
		names = append(names, corev1.ResourceName(gr.Resource))
	}
	return &Meter{
		Tracks: func(name corev1.ResourceName) bool { return slices.Contains(names, name) },
		Usage: func(runtime.Object, time.Time) corev1.ResourceList {
			out := make(corev1.ResourceList, len(names))
			for _, n := range names {
				out[n] = one()
			}
			return out
		},
	}
}

func one() resource.Quantity { return *resource.NewQuantity(1, resource.DecimalSI) }

// Tracked are those of a list's names that m measures, sorted.
func (m *Meter) Tracked(list corev1.ResourceList) []corev1.ResourceName {
	var out []corev1.ResourceName
	for name := range list {
		if m.Tracks(name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Scopes are a quota's scopes, those of the old field as "exists" requirements.
func Scopes(q *corev1.ResourceQuota) []corev1.ScopedResourceSelectorRequirement {
	var out []corev1.ScopedResourceSelectorRequirement
	for _, s := range q.Spec.Scopes {
		out = append(out, corev1.ScopedResourceSelectorRequirement{
			ScopeName: s,
			Operator:  corev1.ScopeSelectorOpExists,
		})
	}
	if q.Spec.ScopeSelector != nil {
		out = append(out, q.Spec.ScopeSelector.MatchExpressions...)
	}
	return out
}

// In reports whether obj falls under all scopes.
func (m *Meter) In(scopes []corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (bool, error) {
	for _, s := range scopes {
		if m.InScope == nil {
			return false, nil
		}
		if ok, err := m.InScope(s, obj); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// Matching are those of scopes that obj falls under.
func (m *Meter) Matching(
	scopes []corev1.ScopedResourceSelectorRequirement, obj runtime.Object,
) ([]corev1.ScopedResourceSelectorRequirement, error) {
	var out []corev1.ScopedResourceSelectorRequirement
	for _, s := range scopes {
		ok, err := m.In([]corev1.ScopedResourceSelectorRequirement{s}, obj)
		if err != nil {
			return nil, fmt.Errorf("error on matching scope %v: %w", s, err)
		}
		if ok {
			out = append(out, s)
		}
	}
	return out, nil
}

// selects matches a value (absent where "") against a scope's requirement.
func selects(sel corev1.ScopedResourceSelectorRequirement, value string) (bool, error) {
	op := map[corev1.ScopeSelectorOperator]selection.Operator{
		corev1.ScopeSelectorOpIn:           selection.In,
		corev1.ScopeSelectorOpNotIn:        selection.NotIn,
		corev1.ScopeSelectorOpExists:       selection.Exists,
		corev1.ScopeSelectorOpDoesNotExist: selection.DoesNotExist,
	}[sel.Operator]
	req, err := labels.NewRequirement(string(sel.ScopeName), op, sel.Values)
	if err != nil {
		return false, err
	}
	set := labels.Set{}
	if value != "" {
		set[string(sel.ScopeName)] = value
	}
	return req.Matches(set), nil
}
