// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"net/http"

	"keelson/api/kind"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/writes"
)

// update replaces an object, or its subresource.
func (v *writeVerbs) update(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource) error {
	shape, err := negotiateObject(r, res)
	if err != nil {
		return err
	}
	opts, err := updateOptions(r)
	if err != nil {
		return err
	}
	obj, err := decode(r, rq, res, opts.FieldValidation)
	if err != nil {
		return err
	}
	if err := checkSameObject(rq, res, obj); err != nil {
		return err
	}
	owner := manager(r, opts.FieldManager)
	used := false
	c := writes.Change{
		Res:           res,
		Sub:           rq.Subresource,
		Opts:          opts,
		Dry:           writes.IsDryRun(opts.DryRun),
		CreateMissing: res.CreateOnUpdate && rq.Subresource == "",
		Make: func(ctx context.Context, current kind.Object) (kind.Object, error) {
			o := obj
			if used { // a retry: the first attempt modified the object
				return nil, writes.Conflict(res, rq.Name)
			}
			v, err := writes.ResourceVersionOf(obj)
			if err != nil {
				return nil, err
			}
			used = v != 0
			if !used {
				o, _ = obj.DeepCopyObject().(kind.Object)
			}
			return o, writes.InTurn(ctx, rq, func() error {
				return res.FieldManagers[rq.Subresource].Update(current, o, owner)
			})
		},
	}
	e, created, err := v.writer.Change(r.Context(), rq, c)
	if err != nil {
		return err
	}
	code := http.StatusOK
	if created {
		code = http.StatusCreated
	}
	return shape.writeOne(w, r, code, e)
}
