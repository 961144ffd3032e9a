// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"fmt"
	"net/http"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"keelson/api/apply"
	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/api/patch"
	"keelson/apiserver/objects"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/wire"
	"keelson/apiserver/writes"
)

// scaleResource is the resource used to encode and decode Scales.
var scaleResource = resources.New(resources.Row{Kind: writes.ScaleKind}, nil)

// scales serves the subresource scale of all kinds that have it.
type scales struct{ writer *writes.Writer }

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
var scaleFields = apply.New(writes.ScaleKind, "scale")

// getScale responds with the Scale of an object.
func getScale(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource) error {
	e, err := res.Storage.Get(r.Context(), writes.Namespace(rq, res), rq.Name, "")
	if err != nil {
		return err
	}
	if res.Scale.Check != nil {
		if err := res.Scale.Check(e.Object); err != nil {
			return err
		}
	}
	return writeScale(w, r, writes.ScaleOf(res, e.Object))
}

// update replaces the replica count.
func (s scales) update(
	w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource,
) error {
	opts, err := updateOptions(r)
	if err != nil {
		return err
	}
	body, err := decodeAs(r, rq, writes.ScaleGVK, &autoscalingv1.Scale{}, opts.FieldValidation)
	if err != nil {
		return err
	}
	wanted, ok := body.(*autoscalingv1.Scale)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("expected a Scale, got a %T", body))
	}
	if err := writes.MatchNamespace(wanted, rq.Namespace); err != nil {
		return err
	}
	if err := writes.MatchName(wanted, rq.Name, rq.Namespace); err != nil {
		return err
	}
	owner := manager(r, opts.FieldManager)
	c := writes.Change{
		Res:  res,
		Sub:  "scale",
		Opts: opts,
		Dry:  writes.IsDryRun(opts.DryRun),
	}
	c.Make = func(_ context.Context, current kind.Object) (kind.Object, error) {
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
	c := writes.Change{
		Res:     res,
		Sub:     "scale",
		Opts:    patchRequest.opts,
		Dry:     writes.IsDryRun(patchRequest.opts.DryRun),
		Applied: patchRequest.kind == patch.Apply,
	}
	c.Make = func(ctx context.Context, current kind.Object) (kind.Object, error) {
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
			obj, err := applyPatch(ctx, rq, writes.ScaleKind, patchRequest, old)
			if err != nil {
				return nil, err
			}
			if err := writes.MatchName(obj, rq.Name, rq.Namespace); err != nil {
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

func (s scales) respond(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, c writes.Change) error {
	e, _, err := s.writer.Change(r.Context(), rq, c)
	if err != nil {
		return err
	}
	return writeScale(w, r, writes.ScaleOf(c.Res, e.Object))
}

// withReplicas returns current with the new replica count. Managed fields are computed on the Scale and mapped back.
func withReplicas(
	res *resources.Resource, current kind.Object, to func(*apply.Manager, *autoscalingv1.Scale) (kind.Object, error),
) (kind.Object, error) {
	owners := managedfields.NewScaleHandler(current.GetManagedFields(), res.GVK().GroupVersion(), scalePaths(res))
	old := writes.ScaleOf(res, current)
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
		return nil, invalid.New(schema.GroupKind{Group: writes.ScaleGVK.Group, Kind: writes.ScaleGVK.Kind},
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
