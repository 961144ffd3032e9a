// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"slices"
	"strconv"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	celtypes "github.com/google/cel-go/common/types"

	"keelson/scheduler/framework"
)

// reads has the fields that an expression reads, and so what can change its value. If a field is not clear, all fields
// count.
type reads struct {
	node  framework.EventKinds // events that may change the node fields that it reads; 0: only the name, or none
	nodes bool                 // it reads some node field
	usage bool                 // it reads the number of pods on the node, or their requests
	// it reads node fields that NodeInfo.Stamp does not cover: others than labels, taints, unschedulable and name
	unstamped bool
	// The pod fields that it reads; label has the keys of single labels, other stands for any other field.
	namespace, priority, labels, other bool
	label                              map[string]bool
}

func readsOf(e ast.Expr) reads {
	var r reads
	r.walk(e)
	return r
}

// stable reports whether the value depends only on node fields that NodeInfo.Stamp covers.
func (r *reads) stable() bool { return !r.usage && !r.unstamped }

// walk finds the longest field paths that begin at node or pod. A macro variable of the same name only adds to the
// fields that count.
func (r *reads) walk(expr ast.Expr) {
	if name, path, ok := pathOf(expr); ok {
		switch name {
		case "node":
			r.addNodePath(path)
		case "pod":
			r.addPodPath(path)
		}
		return
	}
	switch expr.Kind() {
	case ast.CallKind:
		c := expr.AsCall()
		if c.IsMemberFunction() {
			r.walk(c.Target())
		}
		for _, a := range c.Args() {
			r.walk(a)
		}
	case ast.SelectKind:
		r.walk(expr.AsSelect().Operand())
	case ast.ListKind:
		for _, x := range expr.AsList().Elements() {
			r.walk(x)
		}
	case ast.MapKind:
		for _, x := range expr.AsMap().Entries() {
			r.walk(x.AsMapEntry().Key())
			r.walk(x.AsMapEntry().Value())
		}
	case ast.StructKind:
		for _, x := range expr.AsStruct().Fields() {
			r.walk(x.AsStructField().Value())
		}
	case ast.ComprehensionKind:
		c := expr.AsComprehension()
		for _, x := range []ast.Expr{c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result()} {
			r.walk(x)
		}
	}
}

// pathOf returns the variable at which a chain of fields and constant keys begins, and the chain.
func pathOf(e ast.Expr) (name string, path []string, ok bool) {
	switch e.Kind() {
	case ast.IdentKind:
		return e.AsIdent(), nil, true
	case ast.SelectKind:
		s := e.AsSelect()
		name, path, ok = pathOf(s.Operand())
		return name, append(path, s.FieldName()), ok
	case ast.CallKind:
		c := e.AsCall()
		f := c.FunctionName()
		if len(c.Args()) != 2 || f != operators.Index && f != operators.OptIndex && f != operators.OptSelect ||
			c.Args()[1].Kind() != ast.LiteralKind {
			return "", nil, false
		}
		key, isText := c.Args()[1].AsLiteral().(celtypes.String)
		if !isText {
			return "", nil, false
		}
		name, path, ok = pathOf(c.Args()[0])
		return name, append(path, string(key)), ok
	}
	return "", nil, false
}

func at(path []string, i int) string {
	if i < len(path) {
		return path[i]
	}
	return ""
}

func (r *reads) addNodePath(path []string) {
	r.nodes = true
	field := at(path, 0)
	switch second := at(path, 1); {
	case field == "metadata" && second == "labels", field == "metadata" && second == "name":
		field = second
	case field == "spec" && second == "taints", field == "spec" && second == "unschedulable":
		field = second
	case field == "status" && second == "allocatable":
		field = second
	}
	switch field {
	case "name":
	case "labels":
		r.node |= framework.NodeLabels
	case "taints", "unschedulable":
		r.node |= framework.NodeTaints
	case "allocatable":
		r.node |= framework.NodeAllocatable
		r.unstamped = true
	case "requested", "free", "pods":
		r.node |= framework.NodeAllocatable | framework.AssignedPodAdd | framework.AssignedPodScaleDown |
			framework.AssignedPodDelete
		r.usage = true
	case "annotations":
		r.node |= framework.NodeOther
		r.unstamped = true
	default:
		r.node |= framework.NodeOther | framework.NodeLabels | framework.NodeTaints | framework.NodeAllocatable |
			framework.NodeDeclaredFeatures
		r.unstamped = true
		if field == "" { // the whole node
			r.node |= framework.AssignedPodAdd | framework.AssignedPodScaleDown | framework.AssignedPodDelete
			r.usage = true
		}
	}
}

func (r *reads) addPodPath(path []string) {
	switch second := at(path, 1); {
	case len(path) > 1 && path[0] == "metadata" && (second == "labels" || second == "namespace"):
		path = path[1:]
	case len(path) > 1 && path[0] == "spec" && second == "priority":
		path = path[1:]
	}
	switch at(path, 0) {
	case "namespace":
		r.namespace = true
	case "priority":
		r.priority = true
	case "labels":
		if len(path) < 2 {
			r.labels = true
			return
		}
		if r.label == nil {
			r.label = map[string]bool{}
		}
		r.label[path[1]] = true
	default:
		r.other = true
	}
}

// cacheKey returns the values of the pod fields that the expression reads; false: it reads fields that have no key.
func (r *reads) cacheKey(pod podInfo) (string, bool) {
	if r.other {
		return "", false
	}
	var b []byte
	add := func(s string) {
		b = append(strconv.AppendInt(b, int64(len(s)), 10), ':')
		b = append(b, s...)
	}
	if r.namespace {
		add(pod.Pod.Namespace)
	}
	if r.priority {
		b = append(strconv.AppendInt(b, int64(pod.Priority), 10), '|')
	}
	labels := pod.Pod.Labels
	names := slices.Sorted(maps.Keys(r.label))
	if r.labels {
		names = slices.Sorted(maps.Keys(labels))
	}
	for _, k := range names {
		if v, ok := labels[k]; ok {
			add(k)
			add(v)
		} else {
			b = append(b, '-')
		}
	}
	return string(b), true
}
