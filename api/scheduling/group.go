// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
)

// What pod groups and their templates in workloads have in common. Fields of gates that do not change here (topology
// constraints, claims of groups, preemption policies of groups, composite groups) are dropped on write, unless the
// stored object has them.

func groupNames(k, resource, singular string) kind.Names {
	gv := schedulingv1beta1.SchemeGroupVersion
	return kind.Names{
		Group:      gv.Group,
		Version:    gv.Version,
		Kind:       k,
		Resource:   resource,
		Singular:   singular,
		Namespaced: true,
	}
}

// group is what can be said of a group.
type group struct {
	policy   *schedulingv1beta1.PodGroupSchedulingPolicy
	mode     *schedulingv1beta1.DisruptionMode
	class    string
	priority *int32
}

// validateGroup checks what the list stands at; old is nil for what is new. What has not changed is not looked at.
func validateGroup(l *check.List, g, old *group) {
	if old == nil || !equality.Semantic.DeepEqual(g.policy, old.policy) {
		var was *schedulingv1beta1.PodGroupSchedulingPolicy
		if old != nil {
			was = old.policy
		}
		l.Within("schedulingPolicy", func() { validatePolicy(l, g.policy, was) })
	}
	if old != nil {
		l.Fixed("disruptionMode", equality.Semantic.DeepEqual(g.mode, old.mode))
		l.Fixed("priorityClassName", g.class == old.class)
		l.Fixed("priority", equality.Semantic.DeepEqual(g.priority, old.priority))
		return
	}
	if m := g.mode; m != nil {
		l.Within("disruptionMode", func() { oneOf(l, member{"single", m.Single != nil}, member{"all", m.All != nil}) })
	}
	if g.class != "" {
		check.Format(l, "priorityClassName", g.class, validate.LongName)
	}
	if g.priority != nil {
		l.Declared(validate.Maximum(context.Background(), operation.Operation{}, l.Path("priority"), g.priority, nil,
			highestUser)...)
	}
}

func validatePolicy(l *check.List, p, old *schedulingv1beta1.PodGroupSchedulingPolicy) {
	if old == nil || (p.Basic != nil) != (old.Basic != nil) || (p.Gang != nil) != (old.Gang != nil) {
		oneOf(l, member{"basic", p.Basic != nil}, member{"gang", p.Gang != nil})
	}
	if old != nil {
		l.Fixed("basic", (p.Basic != nil) == (old.Basic != nil))
		if (p.Gang != nil) != (old.Gang != nil) {
			said := "field cannot be set once created"
			if p.Gang == nil {
				said = "field cannot be cleared once set"
			}
			l.Declared(field.Invalid(l.Path("gang"), nil, said))
			return
		}
	}
	if p.Gang == nil {
		return
	}
	l.Within("gang", func() {
		if n := &p.Gang.MinCount; *n == 0 {
			l.Missing("minCount")
		} else {
			l.Declared(validate.Minimum(context.Background(), operation.Operation{}, l.Path("minCount"), n, nil, 1)...)
		}
	})
}

type member struct {
	name string
	set  bool
}

// oneOf wants one of two members of a union to be set.
func oneOf(l *check.List, a, b member) {
	names := "`" + a.name + "`, `" + b.name + "`"
	switch {
	case a.set && b.set:
		l.Declared(field.Invalid(l.Path(""), "{"+a.name+", "+b.name+"}", "must specify exactly one of: "+names))
	case !a.set && !b.set:
		l.Declared(field.Invalid(l.Path(""), "", "must specify one of: "+names))
	}
}
