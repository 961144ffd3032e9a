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

// reads is what an expression looks at, and so what can change its value. What cannot be told is taken to be everything.
type reads struct {
	node  framework.Kinds // events that may change what it reads of a node; 0: only the name, or nothing
	nodes bool            // whether it reads anything of a node
	usage bool            // which pods a node has, and what they ask for
	rest  bool            // of a node what has no stamp: more than labels, taints, cordon and name
	// Of the pod: its namespace, its priority, all labels or some; other: anything else.
	namespace, priority, labels, other bool
	label                              map[string]bool
}

func readsOf(e ast.Expr) reads {
	var r reads
	r.walk(e)
	return r
}

// stable reports whether the value rests on what a node's stamp covers.
func (r *reads) stable() bool { return !r.usage && !r.rest }

// walk looks for node and pod, and for the longest way of fields and keys from there. A variable of a macro that has the same name only adds to
// what is read.
func (r *reads) walk(e ast.Expr) {
	if name, way, ok := wayOf(e); ok {
		switch name {
		case "node":
			r.ofNode(way)
		case "pod":
			r.ofPod(way)
		}
		return
	}
	switch e.Kind() {
	case ast.CallKind:
		c := e.AsCall()
		if c.IsMemberFunction() {
			r.walk(c.Target())
		}
		for _, a := range c.Args() {
			r.walk(a)
		}
	case ast.SelectKind:
		r.walk(e.AsSelect().Operand())
	case ast.ListKind:
		for _, x := range e.AsList().Elements() {
			r.walk(x)
		}
	case ast.MapKind:
		for _, x := range e.AsMap().Entries() {
			r.walk(x.AsMapEntry().Key())
			r.walk(x.AsMapEntry().Value())
		}
	case ast.StructKind:
		for _, x := range e.AsStruct().Fields() {
			r.walk(x.AsStructField().Value())
		}
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		for _, x := range []ast.Expr{c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result()} {
			r.walk(x)
		}
	}
}

// wayOf is the variable where a chain of fields and constant keys begins, and the chain.
func wayOf(e ast.Expr) (name string, way []string, ok bool) {
	switch e.Kind() {
	case ast.IdentKind:
		return e.AsIdent(), nil, true
	case ast.SelectKind:
		s := e.AsSelect()
		name, way, ok = wayOf(s.Operand())
		return name, append(way, s.FieldName()), ok
	case ast.CallKind:
		c := e.AsCall()
		f := c.FunctionName()
		if len(c.Args()) != 2 || f != operators.Index && f != operators.OptIndex && f != operators.OptSelect || c.Args()[1].Kind() != ast.LiteralKind {
			return "", nil, false
		}
		key, isText := c.Args()[1].AsLiteral().(celtypes.String)
		if !isText {
			return "", nil, false
		}
		name, way, ok = wayOf(c.Args()[0])
		return name, append(way, string(key)), ok
	}
	return "", nil, false
}

func at(way []string, i int) string {
	if i < len(way) {
		return way[i]
	}
	return ""
}

func (r *reads) ofNode(way []string) {
	r.nodes = true
	field := at(way, 0)
	switch second := at(way, 1); {
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
		r.rest = true
	case "requested", "free", "pods":
		r.node |= framework.NodeAllocatable | framework.PodAdd | framework.PodShrinks | framework.PodDelete
		r.usage = true
	case "annotations":
		r.node |= framework.NodeOther
		r.rest = true
	default:
		r.node |= framework.NodeOther | framework.NodeLabels | framework.NodeTaints | framework.NodeAllocatable | framework.NodeFeatures
		r.rest = true
		if field == "" { // the whole node
			r.node |= framework.PodAdd | framework.PodShrinks | framework.PodDelete
			r.usage = true
		}
	}
}

func (r *reads) ofPod(way []string) {
	switch second := at(way, 1); {
	case len(way) > 1 && way[0] == "metadata" && (second == "labels" || second == "namespace"):
		way = way[1:]
	case len(way) > 1 && way[0] == "spec" && second == "priority":
		way = way[1:]
	}
	switch at(way, 0) {
	case "namespace":
		r.namespace = true
	case "priority":
		r.priority = true
	case "labels":
		if len(way) < 2 {
			r.labels = true
			return
		}
		if r.label == nil {
			r.label = map[string]bool{}
		}
		r.label[way[1]] = true
	default:
		r.other = true
	}
}

// key says in what pods differ as far as the expression reads; false: in what no key says.
func (r *reads) key(pod podInfo) (string, bool) {
	if r.other {
		return "", false
	}
	var b []byte
	add := func(s string) { b = append(strconv.AppendInt(b, int64(len(s)), 10), ':'); b = append(b, s...) }
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
