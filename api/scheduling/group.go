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
func validateGroup(errs *check.List, g, old *group) {
	if old == nil || !equality.Semantic.DeepEqual(g.policy, old.policy) {
		var was *schedulingv1beta1.PodGroupSchedulingPolicy
		if old != nil {
			was = old.policy
		}
		errs.Within("schedulingPolicy", func() { validatePolicy(errs, g.policy, was) })
	}
	if old != nil {
		errs.Fixed("disruptionMode", equality.Semantic.DeepEqual(g.mode, old.mode))
		errs.Fixed("priorityClassName", g.class == old.class)
		errs.Fixed("priority", equality.Semantic.DeepEqual(g.priority, old.priority))
		return
	}
	if m := g.mode; m != nil {
		errs.Within("disruptionMode", func() {
			oneOf(errs, member{"single", m.Single != nil}, member{"all", m.All != nil})
		})
	}
	if g.class != "" {
		check.Format(errs, "priorityClassName", g.class, validate.LongName)
	}
	if g.priority != nil {
		errs.Declared(validate.Maximum(context.Background(), operation.Operation{}, errs.Path("priority"), g.priority,
			nil,
			highestUser)...)
	}
}

func validatePolicy(errs *check.List, policy, old *schedulingv1beta1.PodGroupSchedulingPolicy) {
	if old == nil || (policy.Basic != nil) != (old.Basic != nil) || (policy.Gang != nil) != (old.Gang != nil) {
		oneOf(errs, member{"basic", policy.Basic != nil}, member{"gang", policy.Gang != nil})
	}
	if old != nil {
		errs.Fixed("basic", (policy.Basic != nil) == (old.Basic != nil))
		if (policy.Gang != nil) != (old.Gang != nil) {
			said := "field cannot be set once created"
			if policy.Gang == nil {
				said = "field cannot be cleared once set"
			}
			errs.Declared(field.Invalid(errs.Path("gang"), nil, said))
			return
		}
	}
	if policy.Gang == nil {
		return
	}
	errs.Within("gang", func() {
		if n := &policy.Gang.MinCount; *n == 0 {
			errs.Missing("minCount")
		} else {
			errs.Declared(validate.Minimum(context.Background(), operation.Operation{}, errs.Path("minCount"), n, nil,
				1)...)
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
