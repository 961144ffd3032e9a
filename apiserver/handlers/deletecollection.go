// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"net/http"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
)

// deleteWorkers limits the parallel deletions of a collection.
const deleteWorkers = 16

// deleteCollection deletes the objects that a list with the same options returns, and responds with that list.
func (v *writes) deleteCollection(
	w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource,
) error {
	shape, err := negotiateList(r, res)
	if err != nil {
		return err
	}
	listOpts, err := listOptions(r)
	if err != nil {
		return err
	}
	q, err := query(rq, res, listOpts)
	if err != nil {
		return err
	}
	opts, err := deleteOptions(r, rq)
	if err != nil {
		return err
	}
	warnOfOrphans(rq, res, opts)
	page, err := res.Storage.List(r.Context(), q)
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(deleteWorkers)
	for i, e := range page.Items {
		group.Go(func() error {
			// Each deletion needs its own request record because they run in parallel.
			out, _, err := v.writer.remove(r.Context(), rq.Part(), res, e.Object.GetName(), opts)
			if err == nil {
				page.Items[i] = out
			}
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return shape.writeList(w, r, page)
}
