// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"net/http"

	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/writes"
)

// writeVerbs serves the verbs that write objects: create, update, patch, delete and deletecollection.
type writeVerbs struct{ writer *writes.Writer }

// create stores a new object.
func (v *writeVerbs) create(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource) error {
	shape, err := negotiateObject(r, res)
	if err != nil {
		return err
	}
	opts, err := createOptions(r)
	if err != nil {
		return err
	}
	obj, err := decode(r, rq, res, opts.FieldValidation)
	if err != nil {
		return err
	}
	if err := writes.MatchNamespace(obj, writes.Namespace(rq, res)); err != nil {
		return err
	}
	c := writes.Creation{
		Res:  res,
		Obj:  obj,
		Opts: opts,
		Dry:  writes.IsDryRun(opts.DryRun),
	}
	e, err := v.writer.Create(r.Context(), rq, c, manager(r, opts.FieldManager))
	if err != nil {
		return err
	}
	return shape.writeOne(w, r, http.StatusCreated, e)
}
