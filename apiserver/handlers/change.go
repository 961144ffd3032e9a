// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/apply"
	"keelson/api/fastequal"
	"keelson/api/kind"
	"keelson/apiserver/admission"
	"keelson/apiserver/objects"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/auth"
)

// change is one update of an object, by any verb.
type change struct {
	res           *resources.Resource
	sub           string
	opts          runtime.Object
	dry           bool
	createMissing bool
	applied       bool // server-side apply; it must not drop managed fields when the object is too large
	// make returns the new object with updated managedFields; it then belongs to change. current is shared, and nil
	// when the object is created. make may be called again with a newer object.
	make func(ctx context.Context, current kind.Object) (kind.Object, error)
}

const optimisticLock = "the object has been modified; please apply your changes to the latest version and try again"

func conflict(res *resources.Resource, name string) error {
	return apierrors.NewConflict(res.GroupResource(), name, errors.New(optimisticLock))
}

// finalizersRemoved ends an update that removed the last finalizer of an object in deletion. The object must then be
// removed.
type finalizersRemoved struct{ last kind.Object }

func (*finalizersRemoved) Error() string { return "the object's last finalizer is gone" }

func (*finalizersRemoved) Unwrap() error { return admission.ErrNothingStored }

// change runs an update's steps on the current object, and again after a conflict.
func (w *writer) change(ctx context.Context, rq *pipeline.Request, c change) (*objects.Entry, bool, error) {
	ctx = withReserve(ctx, rq, c.res, c.sub)
	attempt := func(ctx context.Context, current kind.Object, write func(kind.Object) error) error {
		return w.attempt(ctx, rq, c, current, write)
	}
	if c.dry {
		return dryChange(ctx, rq, c, attempt)
	}
	entry, created, receipt, err := c.res.Storage.Update(ctx, namespace(rq, c.res), rq.Name, c.createMissing, attempt)
	if gone, ok := errors.AsType[*finalizersRemoved](err); ok {
		return w.deleteFinalized(ctx, rq, c.res, gone.last)
	}
	if err != nil {
		return nil, false, err
	}
	recordReceipt(rq, receipt)
	recordSubject(rq, c.res, entry.Object)
	return entry, created, nil
}

// attempt runs an update's steps for one state of the object; nil: there is none, and c creates it.
func (w *writer) attempt(
	ctx context.Context, rq *pipeline.Request, c change, current kind.Object, write func(kind.Object) error,
) error {
	fitting := func(obj kind.Object) error {
		err := write(obj)
		if err != nil && lessRoom(err, c, current, obj) {
			err = write(obj)
		}
		return err
	}
	if current == nil {
		return w.changeMissing(ctx, rq, c, fitting)
	}
	return w.runUpdate(ctx, rq, c, current, fitting)
}

// dryChange is change without a write.
func dryChange(
	ctx context.Context, rq *pipeline.Request, c change, attempt objects.UpdateFunc,
) (*objects.Entry, bool, error) {
	var current, last kind.Object
	switch e, err := c.res.Storage.Get(ctx, namespace(rq, c.res), rq.Name, ""); {
	case err == nil:
		current = e.Object
	case !c.createMissing || !apierrors.IsNotFound(err):
		return nil, false, err
	}
	err := attempt(ctx, current, func(obj kind.Object) error {
		last = obj
		return nil
	})
	if gone, ok := errors.AsType[*finalizersRemoved](err); ok {
		last = gone.last
		err = nil
	}
	if err != nil {
		return nil, false, err
	}
	return &objects.Entry{Object: last}, current == nil, nil
}

// changeMissing creates the object that an update or an apply names.
func (w *writer) changeMissing(
	ctx context.Context, rq *pipeline.Request, c change, write func(kind.Object) error,
) error {
	obj, err := c.make(ctx, nil)
	if err != nil {
		return err
	}
	// An object with a UID existed when the client read it.
	if uid := obj.GetUID(); uid != "" {
		if _, patched := c.opts.(*metav1.PatchOptions); patched {
			return apierrors.NewConflict(c.res.GroupResource(), rq.Name,
				fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
		}
		return uidMismatchError(c, namespace(rq, c.res), rq.Name, uid, "")
	}
	// The version is ignored but must be valid.
	if _, err := resourceVersionOf(obj); err != nil {
		return err
	}
	obj.SetResourceVersion("")
	if err := w.mayCreate(ctx, rq, c.res); err != nil {
		return err
	}
	made := creation{
		res:  c.res,
		obj:  obj,
		opts: createOptionsOf(c.opts),
		dry:  c.dry,
	}
	return w.prepareCreate(ctx, rq, made, func() error { return write(obj) })
}

// mayCreate checks the right to create when an update or apply creates an object.
func (w *writer) mayCreate(ctx context.Context, rq *pipeline.Request, res *resources.Resource) error {
	if w.authorizer == nil {
		return nil
	}
	a := pipeline.Attributes(rq)
	a.Verb = "create"
	d, err := w.authorizer.Authorize(ctx, a)
	switch {
	case d.Verdict == auth.Allow:
		return nil
	case err != nil:
		return apierrors.NewInternalError(fmt.Errorf("authorize create of %s: %w", res.Resource, err))
	}
	return pipeline.Forbidden(a, d.Reason)
}

// createOptionsOf converts the options of an update or patch to create options for admission.
func createOptionsOf(opts runtime.Object) runtime.Object {
	out := &metav1.CreateOptions{TypeMeta: metav1.TypeMeta{Kind: "CreateOptions", APIVersion: "meta.k8s.io/v1"}}
	switch o := opts.(type) {
	case *metav1.UpdateOptions:
		out.DryRun = o.DryRun
		out.FieldManager = o.FieldManager
		out.FieldValidation = o.FieldValidation
	case *metav1.PatchOptions:
		out.DryRun = o.DryRun
		out.FieldManager = o.FieldManager
		out.FieldValidation = o.FieldValidation
	default:
		return opts
	}
	return out
}

// updateOptionsOf converts patch options to update options for admission.
func updateOptionsOf(opts runtime.Object) runtime.Object {
	p, ok := opts.(*metav1.PatchOptions)
	if !ok {
		return opts
	}
	return &metav1.UpdateOptions{
		TypeMeta:        metav1.TypeMeta{Kind: "UpdateOptions", APIVersion: "meta.k8s.io/v1"},
		DryRun:          p.DryRun,
		FieldManager:    p.FieldManager,
		FieldValidation: p.FieldValidation,
	}
}

// runUpdate runs an update's steps for one state of the object, then write.
func (w *writer) runUpdate(
	ctx context.Context, rq *pipeline.Request, c change, current kind.Object, write func(kind.Object) error,
) error {
	obj, err := c.make(ctx, current)
	if err != nil {
		return err
	}
	if err := matchCurrent(c, obj, current, rq.Name); err != nil {
		return err
	}
	if _, patched := c.opts.(*metav1.PatchOptions); !patched {
		dedupOwners(obj, "", rq.Warn)
	}
	ar := admissionRequest(rq, c.res, admission.Update, obj, current, updateOptionsOf(c.opts), c.dry)
	asScale := c.sub == "scale" && c.res.Scale != nil
	if asScale {
		toScale(ar, c.res, obj, current)
	}
	if err := w.admission.mutate(ctx, rq, ar, c.res, obj); err != nil {
		return err
	}
	dedupOwners(obj, afterMutation, rq.Warn)
	if asScale {
		fromScale(ar, c.res, obj)
	}
	if err := w.guard(ctx, rq, c.res, obj, current); err != nil {
		return err
	}
	started := time.Now()
	checked := func() error {
		if err := prepareAndValidate(ctx, c.res, c.sub, obj, current); err != nil {
			return err
		}
		warnOfUpdate(rq, c, obj, current)
		rq.Mark.Validate = time.Since(started)
		return w.admission.do(ctx, rq, ar, func() error { return writeUpdate(rq, c, obj, current, write) })
	}
	if c.sub != "" {
		return checked()
	}
	return w.allocated(ctx, c.res, obj, current, c.dry, checked)
}

// writeUpdate is the last step of an update, after the last plugin has accepted it.
func writeUpdate(rq *pipeline.Request, c change, obj, current kind.Object, write func(kind.Object) error) error {
	dropEmptyFields(c.res, obj)
	keepManagedFieldsTime(c.res.GVK(), obj, current)
	recordChange(rq, c.sub, obj, current)
	recordEndpoints(rq, obj, current)
	if canRemoveNow(c.res, obj, current) {
		return &finalizersRemoved{last: obj}
	}
	return write(obj)
}

// warnOfUpdate sends the warnings about what the request could change: a status repeats none of those about the spec.
func warnOfUpdate(rq *pipeline.Request, c change, obj, old kind.Object) {
	var texts []string
	switch part := c.res.Subs[c.sub]; {
	case c.sub == "" || c.sub == "scale":
		texts = c.res.Warnings(obj, old)
	case part != nil && part.Warnings != nil:
		texts = part.Warnings(obj)
	}
	for _, text := range texts {
		rq.Warn(text)
	}
}

// prepareAndValidate keeps the fields that the server owns, and validates the rest.
func prepareAndValidate(ctx context.Context, res *resources.Resource, sub string, obj, old kind.Object) error {
	obj.SetGeneration(old.GetGeneration())
	prepare := res.PrepareUpdate
	if part := res.Subs[sub]; part != nil {
		prepare = part.PrepareUpdate
	}
	prepare(obj, old)
	if obj.GetUID() == "" {
		obj.SetUID(old.GetUID())
	}
	obj.SetCreationTimestamp(old.GetCreationTimestamp())
	if t := old.GetDeletionTimestamp(); t != nil {
		obj.SetDeletionTimestamp(t)
	}
	if g := old.GetDeletionGracePeriodSeconds(); g != nil && obj.GetDeletionGracePeriodSeconds() == nil {
		obj.SetDeletionGracePeriodSeconds(g)
	}
	fastequal.Share(obj, old) // obj is not modified after this
	errs := append(checkMetadata(res, sub, obj, old), res.CheckUpdate(ctx, sub, obj, old)...)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("validate %s: %w", res.Resource, err) // the CEL rules may not have been evaluated completely
	}
	return invalidObject(res, obj, errs)
}

// keepManagedFieldsTime restores timestamps in managedFields if nothing else changed, so that such an update writes
// nothing.
func keepManagedFieldsTime(gvk schema.GroupVersionKind, obj, old kind.Object) {
	fields := obj.GetManagedFields()
	before := old.GetManagedFields()
	if !apply.SameExceptTimes(fields, before) {
		return
	}
	obj.SetManagedFields(before)
	if !fastequal.Objects(kind.Named(obj, gvk), kind.Named(old, gvk)) {
		obj.SetManagedFields(fields)
	}
}

// canRemoveNow reports whether obj, which is being deleted, can be removed now.
func canRemoveNow(res *resources.Resource, obj, old kind.Object) bool {
	if old.GetDeletionTimestamp() == nil || len(obj.GetFinalizers()) > 0 ||
		res.DeletionBlocked != nil && res.DeletionBlocked(obj) {
		return false
	}
	grace := old.GetDeletionGracePeriodSeconds()
	return grace == nil || *grace == 0
}

// deleteFinalized removes an object whose last finalizer was removed by an update. The response is the object as sent.
func (w *writer) deleteFinalized(
	ctx context.Context, rq *pipeline.Request, res *resources.Resource, last kind.Object,
) (*objects.Entry, bool, error) {
	_, receipt, err := res.Storage.Delete(ctx, last.GetNamespace(), last.GetName(), func(current kind.Object) error {
		if current.GetUID() != last.GetUID() || current.GetResourceVersion() != last.GetResourceVersion() {
			return conflict(res, rq.Name)
		}
		return nil
	})
	if err != nil && !apierrors.IsNotFound(err) { // another client may have removed it
		return nil, false, err
	}
	recordReceipt(rq, receipt)
	recordSubject(rq, res, last)
	w.afterDelete(ctx, res, last)
	return &objects.Entry{Object: last}, false, nil
}
