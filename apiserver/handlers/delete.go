// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"

	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/wire"
	"keelson/apiserver/writes"
	"keelson/auth"
)

// delete removes an object, or marks it as deleted until its grace period is over and its finalizers are removed.
func (v *writeVerbs) delete(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource) error {
	shape, err := negotiateObject(r, res)
	if err != nil {
		return err
	}
	opts, err := deleteOptions(r, rq)
	if err != nil {
		return err
	}
	if res.ProtectDelete != nil {
		if err := res.ProtectDelete(rq.Name); err != nil {
			return apierrors.NewForbidden(res.GroupResource(), rq.Name, err)
		}
	}
	if unsafe := opts.IgnoreStoreReadErrorWithClusterBreakingPotential; unsafe != nil && *unsafe {
		return v.deleteCorrupt(w, r, rq, res, opts)
	}
	warnOfOrphans(rq, res, opts)
	entry, removed, err := v.writer.Remove(r.Context(), rq, res, rq.Name, opts)
	if err != nil {
		return err
	}
	code := http.StatusOK
	orphan := opts.OrphanDependents //nolint:staticcheck // deprecated, but still sent by old clients
	if !removed && orphan != nil && !*orphan {
		code = http.StatusAccepted
	}
	if !removed || res.ReturnsDeleted {
		return shape.writeOne(w, r, code, entry)
	}
	return writeStatus(w, r, code, &metav1.Status{
		Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{
			Name:  entry.Object.GetName(),
			Group: res.Group,
			Kind:  res.Resource,
			UID:   entry.Object.GetUID(),
		},
	})
}

// deleteCorrupt removes an object whose stored value cannot be decoded, if the user may do that. A readable object is a
// conflict.
func (v *writeVerbs) deleteCorrupt(
	w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource, opts *metav1.DeleteOptions,
) error {
	const verb = "unsafe-delete-ignore-read-errors"
	if v.writer.Authorizer != nil {
		a := pipeline.Attributes(rq)
		a.Verb = verb
		if d, err := v.writer.Authorizer.Authorize(r.Context(), a); err != nil || d.Verdict != auth.Allow {
			return apierrors.NewForbidden(res.GroupResource(), rq.Name,
				fmt.Errorf("not permitted to do %q, reason: %s", verb, d.Reason))
		}
	}
	dry := writes.IsDryRun(opts.DryRun)
	receipt, err := res.Storage.DeleteCorrupt(r.Context(), writes.Namespace(rq, res), rq.Name, dry)
	if err != nil {
		return err
	}
	writes.RecordReceipt(rq, receipt)
	return writeStatus(w, r, http.StatusOK, &metav1.Status{
		Status:  metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: rq.Name, Group: res.Group, Kind: res.Resource},
	})
}

// warnOfOrphans warns a client without a propagation policy if the dependents of this kind stay (the pods of a Job).
func warnOfOrphans(rq *pipeline.Request, res *resources.Resource, opts *metav1.DeleteOptions) {
	orphan := opts.OrphanDependents //nolint:staticcheck // deprecated, but still sent by old clients
	if opts.PropagationPolicy == nil && orphan == nil && res.OrphanWarning != "" {
		rq.Warn(res.OrphanWarning)
	}
}

// deleteOptions are read from the body, or from the query if there is none.
func deleteOptions(r *http.Request, rq *pipeline.Request) (*metav1.DeleteOptions, error) {
	opts := &metav1.DeleteOptions{}
	fromBody := false
	err := withBody(r, func(b []byte) error {
		if len(b) == 0 {
			return nil
		}
		fromBody = true
		media, ok := wire.BodyMedia(r.Header.Get("Content-Type"))
		if !ok {
			return wire.UnsupportedMedia(nil)
		}
		return wire.DecodeDeleteOptions(b, media, rq.GVR().GroupVersion(), opts)
	})
	if err != nil {
		return nil, err
	}
	if !fromBody {
		if opts, err = fromQuery(r, metav1.Convert_url_Values_To_v1_DeleteOptions); err != nil {
			return nil, err
		}
	}
	opts.TypeMeta = metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: "meta.k8s.io/v1"}
	if fromBody {
		auditSent(rq, opts, opts.GroupVersionKind())
	}
	return opts, invalidOptions("DeleteOptions", metavalidation.ValidateDeleteOptions(opts))
}
