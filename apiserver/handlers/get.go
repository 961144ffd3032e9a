// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/writes"
)

// get responds with one object, or with a subresource that is part of it.
func get(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource) error {
	shape, err := negotiateObject(r, res)
	if err != nil {
		return err
	}
	if err := rejectExport(r); err != nil {
		return err
	}
	opts, err := fromQuery(r, metav1.Convert_url_Values_To_v1_GetOptions)
	if err != nil {
		return err
	}
	e, err := res.Storage.Get(r.Context(), writes.Namespace(rq, res), rq.Name, opts.ResourceVersion)
	if err != nil {
		return err
	}
	return shape.writeOne(w, r, http.StatusOK, e)
}
