// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/objects"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
)

// list responds with a page of objects.
func list(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource) error {
	shape, err := negotiateList(r, res)
	if err != nil {
		return err
	}
	opts, err := listOptions(r)
	if err != nil {
		return err
	}
	q, err := query(rq, res, opts)
	if err != nil {
		return err
	}
	page, err := res.Storage.List(r.Context(), q)
	if err != nil {
		return err
	}
	return shape.writeList(w, r, page)
}

func listMeta(page *objects.List) metav1.ListMeta {
	m := metav1.ListMeta{Continue: page.Continue, RemainingItemCount: page.Remaining}
	if page.Revision != 0 { // else there is none
		m.ResourceVersion = strconv.FormatInt(page.Revision, 10)
	}
	return m
}
