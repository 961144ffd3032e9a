// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"fmt"
	"net/http"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"keelson/api/apply"
	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/api/patch"
	"keelson/apiserver/admission"
	"keelson/apiserver/objects"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/wire"
)

var scaleGVK = autoscalingv1.SchemeGroupVersion.WithKind("Scale")

// scaleKind describes Scale for patches and managed fields.
var scaleKind = kind.Spec[*autoscalingv1.Scale]{
	Names: kind.Names{
		Group:      scaleGVK.Group,
		Version:    scaleGVK.Version,
		Kind:       scaleGVK.Kind,
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

// scaleResource is the resource used to encode and decode Scales.
var scaleResource = resources.New(resources.Row{Kind: scaleKind}, nil)

// scales serves the subresource scale of all kinds that have it.
type scales struct{ writer *writer }

func (s scales) verbs() map[string]verb {
	return map[string]verb{
		"get":    getScale,
		"update": s.update,
		"patch":  s.patch,
	}
}

func writeScale(w http.ResponseWriter, r *http.Request, s *autoscalingv1.Scale) error {
	shape, err := negotiateObject(r, scaleResource)
	if err != nil {
		return err
	}
	return shape.writeOne(w, r, http.StatusOK, &objects.Entry{Object: s})
}

// scaleFields is the field manager of Scales of all kinds.
var scaleFields = apply.New(scaleKind, "scale")

// getScale responds with the Scale of an object.
func getScale(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource) error {
	e, err := res.Storage.Get(r.Context(), namespace(rq, res), rq.Name, "")
	if err != nil {
		return err
	}
	if res.Scale.Check != nil {
		if err := res.Scale.Check(e.Object); err != nil {
			return err
		}
	}
	return writeScale(w, r, scaleOf(res, e.Object))
}

// scaleOf converts an object to its Scale.
func scaleOf(res *resources.Resource, obj kind.Object) *autoscalingv1.Scale {
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
	scale.SetGroupVersionKind(scaleGVK)
	return scale
}

// update replaces the replica count.
func (s scales) update(
	w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource,
) error {
	opts, err := updateOptions(r)
	if err != nil {
		return err
	}
	body, err := decodeAs(r, rq, scaleGVK, &autoscalingv1.Scale{}, opts.FieldValidation)
	if err != nil {
		return err
	}
	wanted, ok := body.(*autoscalingv1.Scale)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("expected a Scale, got a %T", body))
	}
	if err := matchNamespace(wanted, rq.Namespace); err != nil {
		return err
	}
	if err := matchName(wanted, rq.Name, rq.Namespace); err != nil {
		return err
	}
	owner := manager(r, opts.FieldManager)
	c := change{
		res:  res,
		sub:  "scale",
		opts: opts,
		dry:  isDryRun(opts.DryRun),
	}
	c.make = func(_ context.Context, current kind.Object) (kind.Object, error) {
		return withReplicas(res, current, func(fields *apply.Manager, old *autoscalingv1.Scale) (kind.Object, error) {
			next := wanted.DeepCopy()
			return next, fields.Update(old, next, owner)
		})
	}
	return s.respond(w, r, rq, c)
}

// patch patches the replica count.
func (s scales) patch(
	w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource,
) error {
	patchRequest, err := readPatch(r, res)
	if err != nil {
		return err
	}
	c := change{
		res:     res,
		sub:     "scale",
		opts:    patchRequest.opts,
		dry:     isDryRun(patchRequest.opts.DryRun),
		applied: patchRequest.kind == patch.Apply,
	}
	c.make = func(ctx context.Context, current kind.Object) (kind.Object, error) {
		return withReplicas(res, current, func(fields *apply.Manager, old *autoscalingv1.Scale) (kind.Object, error) {
			if patchRequest.kind == patch.Apply {
				want, err := wire.DecodeApply(patchRequest.body, wire.Validation(patchRequest.opts.FieldValidation),
					rq.Warn)
				if err != nil {
					return nil, err
				}
				return fields.Apply(old, want, patchRequest.owner, patchRequest.opts.Force != nil &&
					*patchRequest.opts.Force)
			}
			obj, err := applyPatch(ctx, rq, scaleKind, patchRequest, old)
			if err != nil {
				return nil, err
			}
			if err := matchName(obj, rq.Name, rq.Namespace); err != nil {
				return nil, err
			}
			if obj.GetUID() != old.UID {
				//nolint:staticcheck // Kubernetes' message
				err := fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", obj.GetUID(),
					old.UID)
				scale := schema.GroupResource{Group: res.Group, Resource: res.Resource + "/scale"}
				return nil, apierrors.NewConflict(scale, rq.Name, err)
			}
			return obj, fields.Update(old, obj, patchRequest.owner)
		})
	}
	return s.respond(w, r, rq, c)
}

func (s scales) respond(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, c change) error {
	e, _, err := s.writer.change(r.Context(), rq, c)
	if err != nil {
		return err
	}
	return writeScale(w, r, scaleOf(c.res, e.Object))
}

// withReplicas returns current with the new replica count. Managed fields are computed on the Scale and mapped back.
func withReplicas(
	res *resources.Resource, current kind.Object, to func(*apply.Manager, *autoscalingv1.Scale) (kind.Object, error),
) (kind.Object, error) {
	owners := managedfields.NewScaleHandler(current.GetManagedFields(), res.GVK().GroupVersion(), scalePaths(res))
	old := scaleOf(res, current)
	entries, err := owners.ToSubresource()
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("field owners of scale: %w", err))
	}
	old.ManagedFields = entries
	out, err := to(scaleFields, old)
	if err != nil {
		return nil, err
	}
	wanted, ok := out.(*autoscalingv1.Scale)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("scale is a %T", out))
	}
	if wanted.Spec.Replicas < 0 {
		return nil, invalid.New(schema.GroupKind{Group: scaleGVK.Group, Kind: scaleGVK.Kind},
			current.GetName(), field.ErrorList{
				field.Invalid(field.NewPath("spec", "replicas"), wanted.Spec.Replicas,
					"must be greater than or equal to 0"),
			})
	}
	obj, _ := current.DeepCopyObject().(kind.Object)
	res.Scale.Set(obj, wanted.Spec.Replicas)
	if wanted.ResourceVersion != "" { // else any current version is accepted
		obj.SetResourceVersion(wanted.ResourceVersion)
	}
	if wanted.UID != "" {
		obj.SetUID(wanted.UID)
	}
	if entries, err = owners.ToParent(wanted.ManagedFields); err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("field owners of scale: %w", err))
	}
	obj.SetManagedFields(entries)
	return obj, nil
}

// scalePaths maps each version in managed fields to its path of the replica count.
func scalePaths(res *resources.Resource) managedfields.ResourcePathMappings {
	paths := map[string][]string{res.GVK().GroupVersion().String(): res.Scale.Path}
	if res.ScalePaths != nil {
		paths = res.ScalePaths
	}
	out := managedfields.ResourcePathMappings{}
	for version, names := range paths {
		path := make(fieldpath.Path, len(names))
		for i := range path {
			path[i] = fieldpath.PathElement{FieldName: &names[i]}
		}
		out[version] = path
	}
	return out
}

// toScale sets the objects of the admission request to Scales, as the client wrote them.
func toScale(ar *admission.Request, res *resources.Resource, obj, current kind.Object) {
	ar.Kind = scaleGVK
	ar.Spec = scaleKind
	ar.Object = scaleOf(res, obj)
	ar.OldObject = scaleOf(res, current)
}

// fromScale copies the replica count from the admission request to obj, after the mutating plugins.
func fromScale(ar *admission.Request, res *resources.Resource, obj kind.Object) {
	s, ok := ar.Object.(*autoscalingv1.Scale)
	if count, _, _ := res.Scale.Get(obj); ok && count != s.Spec.Replicas {
		res.Scale.Set(obj, s.Spec.Replicas)
	}
}
