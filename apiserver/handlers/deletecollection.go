// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"net/http"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/event"
)

// deleteWorkers limits the parallel deletions of a collection.
const deleteWorkers = 16

// deleteCollection deletes the objects that a list with the same options returns, and responds with that list.
func (v *writeVerbs) deleteCollection(
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
	parts := make([]*pipeline.Request, len(page.Items))
	defer func() { recordDeletions(rq, parts) }() // some objects are deleted when others are refused
	var group errgroup.Group
	group.SetLimit(deleteWorkers)
	for i, e := range page.Items {
		parts[i] = rq.Part() // deletions run in parallel
		group.Go(func() error {
			out, _, err := v.writer.Remove(r.Context(), parts[i], res, e.Object.GetName(), opts)
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

// recordDeletions adds a mark for each object that the request has deleted, as if the user had deleted it by name.
func recordDeletions(rq *pipeline.Request, parts []*pipeline.Request) {
	for _, part := range parts {
		if part.Mark.Revision == 0 {
			continue // nothing was stored
		}
		rq.Mark.Revision = max(rq.Mark.Revision, part.Mark.Revision)
		mark := part.Mark
		mark.Code = http.StatusOK
		rq.ExtraMarks = append(rq.ExtraMarks, event.Event{
			Step:    event.StepRequest,
			Subject: part.Subject,
			Detail:  &mark,
		})
	}
}
