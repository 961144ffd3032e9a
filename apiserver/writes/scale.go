// SPDX-License-Identifier: Apache-2.0

package writes

import (
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/kind"
	"keelson/apiserver/admission"
	"keelson/apiserver/resources"
)

// ScaleGVK is the kind Scale.
var ScaleGVK = autoscalingv1.SchemeGroupVersion.WithKind("Scale")

// ScaleKind describes Scale for patches and managed fields.
var ScaleKind = kind.Spec[*autoscalingv1.Scale]{
	Names: kind.Names{
		Group:      ScaleGVK.Group,
		Version:    ScaleGVK.Version,
		Kind:       ScaleGVK.Kind,
		Resource:   "scale",
		Namespaced: true,
	},
	New: func() *autoscalingv1.Scale { return &autoscalingv1.Scale{} },
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn,
		{
			Name:        "Desired",
			Type:        "integer",
			Description: "replicas is the desired number of instances for the scaled object.",
		},
		{
			Name:        "Available",
			Type:        "integer",
			Description: "replicas is the actual number of observed instances of the scaled object.",
		},
		kind.AgeColumn,
	},
	Row: func(s *autoscalingv1.Scale) []any {
		return []any{s.Name, int64(s.Spec.Replicas), int64(s.Status.Replicas), kind.Age(s.CreationTimestamp)}
	},
}.Erase()

// ScaleOf converts an object to its Scale.
func ScaleOf(res *resources.Resource, obj kind.Object) *autoscalingv1.Scale {
	spec, status, selector := res.Scale.Get(obj)
	scale := &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name:              obj.GetName(),
			Namespace:         obj.GetNamespace(),
			UID:               obj.GetUID(),
			ResourceVersion:   obj.GetResourceVersion(),
			CreationTimestamp: obj.GetCreationTimestamp(),
		},
		Spec:   autoscalingv1.ScaleSpec{Replicas: spec},
		Status: autoscalingv1.ScaleStatus{Replicas: status, Selector: selector},
	}
	scale.SetGroupVersionKind(ScaleGVK)
	return scale
}

// toScale sets the objects of the admission request to Scales, as the client wrote them.
func toScale(ar *admission.Request, res *resources.Resource, obj, current kind.Object) {
	ar.Kind = ScaleGVK
	ar.Spec = ScaleKind
	ar.Object = ScaleOf(res, obj)
	ar.OldObject = ScaleOf(res, current)
}

// fromScale copies the replica count from the admission request to obj, after the mutating plugins.
func fromScale(ar *admission.Request, res *resources.Resource, obj kind.Object) {
	s, ok := ar.Object.(*autoscalingv1.Scale)
	if count, _, _ := res.Scale.Get(obj); ok && count != s.Spec.Replicas {
		res.Scale.Set(obj, s.Spec.Replicas)
	}
}
