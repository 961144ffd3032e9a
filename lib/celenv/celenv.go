// SPDX-License-Identifier: Apache-2.0

// Package celenv is the one place that makes Kubernetes' environment for CEL expressions, with bounds that Kubernetes'
// own lacks: the cost of an expression is counted after a call, and some calls take seconds or gigabytes for a few
// units. Rooms that compile expressions take Base; before they call a package of Kubernetes that takes the environment
// itself, they call Bound. An argument that is too large makes the call fail, as other errors of a call do. It never
// decides what an expression is for.
package celenv

import (
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
)

// Base returns the environment of all expressions. It is made when it is first needed: that takes a while.
func Base() *environment.EnvSet { return base() }

// Bound makes the environment that packages of Kubernetes take by themselves the one of Base.
func Bound() { base() }

var base = sync.OnceValue(func() *environment.EnvSet {
	set := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	bounded, err := set.Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions:        []cel.EnvOption{guardFunctions},
		ProgramOptions: []cel.ProgramOption{
			cel.CustomDecoratorV2(decorate),
			cel.OptimizeRegex(regexes...),
			cel.CostTrackerOptions(trackers()...),
		},
	})
	if err != nil {
		panic(fmt.Sprintf("bound the environment of expressions: %v", err)) // the same at each start
	}
	// Kubernetes keeps one set for the process, and its packages (rules of custom resources, selectors of devices,
	// authentication) find it by the version.
	*set = *bounded
	return set
})

// guardFunctions puts the guards before the functions that the environment has.
func guardFunctions(env *cel.Env) (*cel.Env, error) {
	for name, guard := range guards {
		function, ok := env.Functions()[name]
		if !ok {
			continue
		}
		bindings, err := function.Bindings()
		if err != nil {
			return nil, fmt.Errorf("bindings of %s: %w", name, err)
		}
		byID := map[string]*functions.Overload{}
		for _, binding := range bindings {
			byID[binding.Operator] = binding
		}
		var guarded []cel.FunctionOpt
		for _, overload := range function.OverloadDecls() {
			binding, ok := byID[overload.ID()]
			if !ok {
				continue
			}
			declare := cel.Overload
			if overload.IsMemberFunction() {
				declare = cel.MemberOverload
			}
			guarded = append(guarded, declare(overload.ID(), overload.ArgTypes(), overload.ResultType(),
				guardedBinding(len(overload.ArgTypes()), guard, call(binding))))
		}
		if env, err = cel.Function(name, guarded...)(env); err != nil {
			return nil, fmt.Errorf("guard %s: %w", name, err)
		}
	}
	return env, nil
}

// call returns one function for the three forms of a binding.
func call(binding *functions.Overload) functions.FunctionOp {
	return func(args ...ref.Val) ref.Val {
		switch {
		case len(args) == 1 && binding.Unary != nil:
			return binding.Unary(args[0])
		case len(args) == 2 && binding.Binary != nil:
			return binding.Binary(args[0], args[1])
		}
		return binding.Function(args...)
	}
}

func guardedBinding(args int, guard guard, next functions.FunctionOp) cel.OverloadOpt {
	switch args {
	case 1:
		return cel.UnaryBinding(func(arg ref.Val) ref.Val { return guard(next, arg) })
	case 2:
		return cel.BinaryBinding(func(left, right ref.Val) ref.Val { return guard(next, left, right) })
	}
	return cel.FunctionBinding(func(args ...ref.Val) ref.Val { return guard(next, args...) })
}

// trackers correct the cost of calls whose time does not follow from it.
func trackers() []interpreter.CostTrackerOption {
	out := make([]interpreter.CostTrackerOption, 0, len(costs))
	for overload, cost := range costs {
		out = append(out, interpreter.OverloadCostTracker(overload, func(args []ref.Val, _ ref.Val) *uint64 {
			return cost(args)
		}))
	}
	return out
}
