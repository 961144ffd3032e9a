// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"net/http"

	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
)

// writes serves the verbs that write objects: create, update, patch, delete and deletecollection.
type writes struct{ writer *writer }

// create stores a new object.
func (v *writes) create(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource) error {
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
	if err := matchNamespace(obj, namespace(rq, res)); err != nil {
		return err
	}
	c := creation{
		res:  res,
		obj:  obj,
		opts: opts,
		dry:  isDryRun(opts.DryRun),
	}
	e, err := v.writer.create(r.Context(), rq, c, manager(r, opts.FieldManager))
	if err != nil {
		return err
	}
	return shape.writeOne(w, r, http.StatusCreated, e)
}
