// SPDX-License-Identifier: Apache-2.0

// Package node describes the kinds of node.k8s.io/v1. Nodes themselves are of
// the core group.
package node

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	declared "k8s.io/apimachinery/pkg/api/validate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/internal/check"
	"keelson/api/kind"
)

// RuntimeClass describes node.k8s.io/v1 RuntimeClass.
func RuntimeClass() *kind.Kind {
	gv := nodev1.SchemeGroupVersion
	return kind.Spec[*nodev1.RuntimeClass]{
		Names: kind.Names{
			Group:    gv.Group,
			Version:  gv.Version,
			Kind:     "RuntimeClass",
			Resource: "runtimeclasses",
			Singular: "runtimeclass",
		},
		New:                   func() *nodev1.RuntimeClass { return &nodev1.RuntimeClass{} },
		NewList:               func() runtime.Object { return &nodev1.RuntimeClassList{} },
		Validate:              validate,
		CreateOnUpdate:        true,
		NoUnconditionalUpdate: true,
		ValidateUpdate: func(c, old *nodev1.RuntimeClass) field.ErrorList {
			l := check.At(nil)
			if c.Handler == "" {
				l.Missing("handler")
			}
			l.Fixed("handler", c.Handler == old.Handler)
			return l.Errors()
		},
		Warnings: func(c, _ *nodev1.RuntimeClass) []string { return warnings(c) },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Handler", Type: "string", Description: "How the nodes' runtime calls it."},
			kind.AgeColumn,
		},
		Row: func(c *nodev1.RuntimeClass) []any { return []any{c.Name, c.Handler, kind.Age(c.CreationTimestamp)} },
	}.Erase()
}

// warnings name old labels of nodes.
func warnings(c *nodev1.RuntimeClass) []string {
	if c.Scheduling == nil {
		return nil
	}
	var out []string
	for _, key := range slices.Sorted(maps.Keys(c.Scheduling.NodeSelector)) {
		if text := podspec.OldNodeLabel(key); text != "" {
			out = append(out, fmt.Sprintf("%s: %s", field.NewPath("scheduling", "nodeSelector"), text))
		}
	}
	return out
}

func validate(c *nodev1.RuntimeClass) field.ErrorList {
	errs := check.At(nil)
	if c.Handler == "" {
		errs.Missing("handler")
	} else {
		check.Format(errs, "handler", c.Handler, declared.ShortName)
	}
	if c.Overhead != nil {
		errs.Add(podspec.ValidateLimits(c.Overhead.PodFixed, errs.Path("overhead"))...)
	}
	if s := c.Scheduling; s != nil {
		errs.In("scheduling")
		errs.Labels("nodeSelector", s.NodeSelector)
		errs.Add(podspec.ValidateTolerations(s.Tolerations, errs.Path("tolerations"))...)
		for i := range s.Tolerations {
			same := func(t corev1.Toleration) bool {
				t.TolerationSeconds = s.Tolerations[i].TolerationSeconds
				return t == s.Tolerations[i]
			}
			if slices.ContainsFunc(s.Tolerations[:i], same) {
				errs.Add(field.Duplicate(errs.Path("tolerations").Index(i), s.Tolerations[i]))
			}
		}
		errs.Out()
	}
	return errs.Errors()
}
