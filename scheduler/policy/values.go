// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"reflect"

	celtypes "github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiservercel "k8s.io/apiserver/pkg/cel"

	"keelson/scheduler/state"
)

// The types of the variables.
const (
	nodeTypeName = "scheduling.Node"
	podTypeName  = "scheduling.Pod"
)

// attr returns a field of the type T.
func attr[T any](t *celtypes.Type, get func(T) any, set func(T) bool) *celtypes.FieldType {
	return &celtypes.FieldType{
		Type: t,
		IsSet: func(target any) bool {
			v, ok := target.(T)
			return ok && set(v)
		},
		GetFrom: func(target any) (any, error) {
			if v, ok := target.(T); ok {
				return get(v), nil
			}
			return nil, errNoField
		},
	}
}

type noField struct{}

func (noField) Error() string { return "no such key" }

var errNoField = noField{}

func always[T any](T) bool { return true }

var (
	labelsType  = celtypes.NewMapType(celtypes.StringType, celtypes.StringType)
	amountsType = celtypes.NewMapType(celtypes.StringType, apiservercel.QuantityType)
)

type (
	nodeInfo = *state.NodeInfo
	podInfo  = *state.PodInfo
)

// declareNode declares the type of the variable node: short forms, and the whole object in metadata, spec and status.
func (s *structs) declareNode() {
	s.declare(nodeTypeName, reflect.TypeFor[state.NodeInfo](), map[string]*celtypes.FieldType{
		"name": attr(celtypes.StringType, func(n nodeInfo) any { return n.Name }, always),
		"labels": attr(labelsType, func(n nodeInfo) any { return n.Node.Labels }, func(n nodeInfo) bool {
			return len(n.Node.Labels) > 0
		}),
		"annotations": attr(labelsType, func(n nodeInfo) any { return n.Node.Annotations }, func(n nodeInfo) bool {
			return len(n.Node.Annotations) > 0
		}),
		"taints": attr(celtypes.NewListType(s.typeOf(reflect.TypeFor[corev1.Taint]())), func(n nodeInfo) any {
			return s.native(reflect.ValueOf(n.Node.Spec.Taints))
		}, func(n nodeInfo) bool { return len(n.Node.Spec.Taints) > 0 }),
		"unschedulable": attr(celtypes.BoolType, func(n nodeInfo) any { return n.Node.Spec.Unschedulable },
			func(n nodeInfo) bool { return n.Node.Spec.Unschedulable }),
		"allocatable": attr(amountsType, func(n nodeInfo) any {
			return &amounts{s, n.Allocatable.Scalar, n.Allocatable.Get}
		}, always),
		"requested": attr(amountsType, func(n nodeInfo) any {
			return &amounts{s, n.Allocatable.Scalar, func(r corev1.ResourceName) int64 { return requested(n, r) }}
		}, always),
		"free": attr(amountsType, func(n nodeInfo) any {
			return &amounts{s, n.Allocatable.Scalar, func(r corev1.ResourceName) int64 {
				return n.Allocatable.Get(r) - requested(n, r)
			}}
		}, always),
		"pods": attr(celtypes.IntType, func(n nodeInfo) any { return int64(len(n.Pods)) }, always),
		"metadata": attr(s.typeOf(reflect.TypeFor[metav1.ObjectMeta]()), func(n nodeInfo) any {
			return &n.Node.ObjectMeta
		}, always),
		"spec": attr(s.typeOf(reflect.TypeFor[corev1.NodeSpec]()), func(n nodeInfo) any { return &n.Node.Spec },
			always),
		"status": attr(s.typeOf(reflect.TypeFor[corev1.NodeStatus]()), func(n nodeInfo) any {
			return &n.Node.Status
		}, always),
	})
}

func requested(n nodeInfo, r corev1.ResourceName) int64 {
	if r == corev1.ResourcePods {
		return int64(len(n.Pods))
	}
	return n.Requested.Get(r)
}

// declarePod declares the type of the variable pod.
func (s *structs) declarePod() {
	s.declare(podTypeName, reflect.TypeFor[state.PodInfo](), map[string]*celtypes.FieldType{
		"name":      attr(celtypes.StringType, func(p podInfo) any { return p.Pod.Name }, always),
		"namespace": attr(celtypes.StringType, func(p podInfo) any { return p.Pod.Namespace }, always),
		"labels": attr(labelsType, func(p podInfo) any { return p.Pod.Labels }, func(p podInfo) bool {
			return len(p.Pod.Labels) > 0
		}),
		"annotations": attr(labelsType, func(p podInfo) any { return p.Pod.Annotations }, func(p podInfo) bool {
			return len(p.Pod.Annotations) > 0
		}),
		"priority": attr(celtypes.IntType, func(p podInfo) any { return int64(p.Priority) }, always),
		"requests": attr(amountsType, func(p podInfo) any { return &amounts{s, p.Request.Scalar, p.Request.Get} },
			always),
		"metadata": attr(s.typeOf(reflect.TypeFor[metav1.ObjectMeta]()), func(p podInfo) any {
			return &p.Pod.ObjectMeta
		}, always),
		"spec": attr(s.typeOf(reflect.TypeFor[corev1.PodSpec]()), func(p podInfo) any { return &p.Pod.Spec },
			always),
		"status": attr(s.typeOf(reflect.TypeFor[corev1.PodStatus]()), func(p podInfo) any {
			return &p.Pod.Status
		}, always),
	})
}

// amounts is a CEL map of quantities that are created on access. Its keys are cpu, memory, ephemeral-storage, pods and
// the scalars' names.
type amounts struct {
	structs *structs
	scalars map[corev1.ResourceName]int64
	get     func(corev1.ResourceName) int64
}

var baseResources = []corev1.ResourceName{
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods,
}

func (a *amounts) Find(key ref.Val) (ref.Val, bool) {
	s, ok := key.(celtypes.String)
	if !ok {
		return celtypes.MaybeNoSuchOverloadErr(key), false
	}
	name := corev1.ResourceName(s)
	var quantity *resource.Quantity
	switch name {
	case corev1.ResourceCPU:
		quantity = resource.NewMilliQuantity(a.get(name), resource.DecimalSI)
	case corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		quantity = resource.NewQuantity(a.get(name), resource.BinarySI)
	default:
		if _, ok := a.scalars[name]; !ok && name != corev1.ResourcePods {
			return nil, false
		}
		quantity = resource.NewQuantity(a.get(name), resource.DecimalSI)
	}
	return apiservercel.Quantity{Quantity: quantity}, true
}

// asMap returns a map with all quantities.
func (a *amounts) asMap() traits.Mapper {
	all := map[ref.Val]ref.Val{}
	add := func(name corev1.ResourceName) {
		key := celtypes.String(name)
		if q, ok := a.Find(key); ok {
			all[key] = q
		}
	}
	for _, name := range baseResources {
		add(name)
	}
	for name := range a.scalars {
		add(name)
	}
	return celtypes.NewRefValMap(a.structs, all)
}

func (a *amounts) Get(key ref.Val) ref.Val {
	if v, ok := a.Find(key); ok || v != nil {
		return v
	}
	return celtypes.NewErr("no such key: %v", key.Value())
}

func (a *amounts) Contains(key ref.Val) ref.Val {
	v, ok := a.Find(key)
	if v != nil && celtypes.IsError(v) {
		return v
	}
	return celtypes.Bool(ok)
}

func (a *amounts) Iterator() traits.Iterator                   { return a.asMap().Iterator() }
func (a *amounts) Size() ref.Val                               { return a.asMap().Size() }
func (a *amounts) Equal(other ref.Val) ref.Val                 { return a.asMap().Equal(other) }
func (a *amounts) Type() ref.Type                              { return celtypes.MapType }
func (a *amounts) Value() any                                  { return a.asMap().Value() }
func (a *amounts) ConvertToNative(t reflect.Type) (any, error) { return a.asMap().ConvertToNative(t) }
func (a *amounts) ConvertToType(t ref.Type) ref.Val            { return a.asMap().ConvertToType(t) }
