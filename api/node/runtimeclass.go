// SPDX-License-Identifier: Apache-2.0

// Package node describes the kinds of node.k8s.io/v1. Nodes themselves are of
// the core group.
package node

import (
	"maps"
	"slices"

	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

// RuntimeClass describes node.k8s.io/v1 RuntimeClass.
func RuntimeClass() *kind.Kind {
	gv := nodev1.SchemeGroupVersion
	return kind.Spec[*nodev1.RuntimeClass]{
		Names:    kind.Names{Group: gv.Group, Version: gv.Version, Kind: "RuntimeClass", Resource: "runtimeclasses", Singular: "runtimeclass"},
		New:      func() *nodev1.RuntimeClass { return &nodev1.RuntimeClass{} },
		NewList:  func() runtime.Object { return &nodev1.RuntimeClassList{} },
		Validate: validate,
		ValidateUpdate: func(c, old *nodev1.RuntimeClass) field.ErrorList {
			l := check.At(nil)
			l.Add(validate(c)...)
			l.Immutable("handler", c.Handler, old.Handler)
			return l.Errors()
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn, {Name: "Handler", Type: "string", Description: "How the nodes' runtime calls it."}, kind.AgeColumn,
		},
		Row: func(c *nodev1.RuntimeClass) []any { return []any{c.Name, c.Handler, kind.Age(c.CreationTimestamp)} },
	}.Erase()
}

func validate(c *nodev1.RuntimeClass) field.ErrorList {
	l := check.At(nil)
	l.Add(meta.Finalizers(c)...)
	l.Label("handler", c.Handler)
	if c.Overhead != nil {
		l.In("overhead")
		for _, name := range slices.Sorted(maps.Keys(c.Overhead.PodFixed)) {
			if q := c.Overhead.PodFixed[name]; q.Sign() < 0 {
				l.Add(field.Invalid(l.Path("podFixed").Key(string(name)), q.String(), "must be greater than or equal to 0"))
			}
		}
		l.Out()
	}
	if s := c.Scheduling; s != nil {
		l.In("scheduling")
		l.Labels("nodeSelector", s.NodeSelector)
		l.Add(podspec.ValidateTolerations(s.Tolerations, l.Path("tolerations"))...)
		for i := range s.Tolerations {
			if slices.Contains(s.Tolerations[:i], s.Tolerations[i]) {
				l.Add(field.Duplicate(l.Path("tolerations").Index(i), s.Tolerations[i]))
			}
		}
		l.Out()
	}
	return l.Errors()
}
