// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"slices"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
)

var (
	allVerbs         = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	createVerbs      = []string{"create"}
	subresourceVerbs = []string{"get", "patch", "update"}
	finalize         = []string{"update"}
	// customVerbs are allVerbs of a custom resource, in Kubernetes' order.
	customVerbs = []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
)

// Verbs are the resource's verbs in the order of discovery.
func (r *Resource) Verbs() []string {
	if r.CreateOnly {
		return createVerbs
	}
	if r.Custom != nil {
		return customVerbs
	}
	if len(r.ExcludedVerbs) == 0 {
		return allVerbs
	}
	return slices.DeleteFunc(slices.Clone(allVerbs), func(v string) bool { return slices.Contains(r.ExcludedVerbs, v) })
}

// AllSubresources lists all subresources by name; those of a custom resource in reverse order, status before scale.
func (r *Resource) AllSubresources() []Sub {
	out := slices.Clone(r.Subresources)
	for name := range r.Subs {
		s := Sub{Name: name, GVK: r.GVK(), Verbs: subresourceVerbs}
		if name == "finalize" {
			s.Verbs = finalize
		}
		out = append(out, s)
	}
	if r.Scale != nil {
		out = append(out, Sub{
			Name:  "scale",
			GVK:   autoscalingv1.SchemeGroupVersion.WithKind("Scale"),
			Verbs: subresourceVerbs,
		})
	}
	slices.SortFunc(out, func(a, b Sub) int {
		if r.Custom != nil {
			a, b = b, a
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out
}
