// SPDX-License-Identifier: Apache-2.0

package writes

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

// Change is one update of an object, by any verb.
type Change struct {
	Res           *resources.Resource
	Sub           string
	Opts          runtime.Object
	Dry           bool
	CreateMissing bool
	Applied       bool // server-side apply; it must not drop managed fields when the object is too large
	// Make returns the new object with updated managedFields; it then belongs to change. current is shared, and nil
	// when the object is created. make may be called again with a newer object.
	Make func(ctx context.Context, current kind.Object) (kind.Object, error)
}

const optimisticLock = "the object has been modified; please apply your changes to the latest version and try again"

// Conflict is the error of an update with an old resource version.
func Conflict(res *resources.Resource, name string) error {
	return apierrors.NewConflict(res.GroupResource(), name, errors.New(optimisticLock))
}

// finalizersRemoved ends an update that removed the last finalizer of an object in deletion. The object must then be
// removed.
type finalizersRemoved struct{ last kind.Object }

func (*finalizersRemoved) Error() string { return "the object's last finalizer is gone" }

func (*finalizersRemoved) Unwrap() error { return admission.ErrNothingStored }

// Change runs an update's steps on the current object, and again after a conflict.
func (w *Writer) Change(ctx context.Context, rq *pipeline.Request, c Change) (*objects.Entry, bool, error) {
	ctx = WithReserve(ctx, rq, c.Res, c.Sub)
	attempt := func(ctx context.Context, current kind.Object, write func(kind.Object) error) error {
		return w.attempt(ctx, rq, c, current, write)
	}
	if c.Dry {
		return dryChange(ctx, rq, c, attempt)
	}
	entry, created, receipt, err := c.Res.Storage.Update(ctx, Namespace(rq, c.Res), rq.Name, c.CreateMissing, attempt)
	if gone, ok := errors.AsType[*finalizersRemoved](err); ok {
		return w.deleteFinalized(ctx, rq, c.Res, gone.last)
	}
	if err != nil {
		return nil, false, err
	}
	RecordReceipt(rq, receipt)
	RecordSubject(rq, c.Res, entry.Object)
	return entry, created, nil
}

// attempt runs an update's steps for one state of the object; nil: there is none, and c creates it.
func (w *Writer) attempt(
	ctx context.Context, rq *pipeline.Request, c Change, current kind.Object, write func(kind.Object) error,
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
	ctx context.Context, rq *pipeline.Request, c Change, attempt objects.UpdateFunc,
) (*objects.Entry, bool, error) {
	var current, last kind.Object
	switch e, err := c.Res.Storage.Get(ctx, Namespace(rq, c.Res), rq.Name, ""); {
	case err == nil:
		current = e.Object
	case !c.CreateMissing || !apierrors.IsNotFound(err):
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
func (w *Writer) changeMissing(
	ctx context.Context, rq *pipeline.Request, c Change, write func(kind.Object) error,
) error {
	obj, err := c.Make(ctx, nil)
	if err != nil {
		return err
	}
	// An object with a UID existed when the client read it.
	if uid := obj.GetUID(); uid != "" {
		if _, patched := c.Opts.(*metav1.PatchOptions); patched {
			return apierrors.NewConflict(c.Res.GroupResource(), rq.Name,
				fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
		}
		return uidMismatchError(c.Res, c.Dry, Namespace(rq, c.Res), rq.Name, uid, "")
	}
	// The version is ignored but must be valid.
	if _, err := ResourceVersionOf(obj); err != nil {
		return err
	}
	obj.SetResourceVersion("")
	if err := w.mayCreate(ctx, rq, c.Res); err != nil {
		return err
	}
	made := Creation{
		Res:  c.Res,
		Obj:  obj,
		Opts: createOptionsOf(c.Opts),
		Dry:  c.Dry,
	}
	return w.prepareCreate(ctx, rq, made, func() error { return write(obj) })
}

// mayCreate checks the right to create when an update or apply creates an object.
func (w *Writer) mayCreate(ctx context.Context, rq *pipeline.Request, res *resources.Resource) error {
	if w.Authorizer == nil {
		return nil
	}
	a := pipeline.Attributes(rq)
	a.Verb = "create"
	d, err := w.Authorizer.Authorize(ctx, a)
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
func (w *Writer) runUpdate(
	ctx context.Context, rq *pipeline.Request, c Change, current kind.Object, write func(kind.Object) error,
) error {
	obj, err := c.Make(ctx, current)
	if err != nil {
		return err
	}
	if err := matchCurrent(c, obj, current, rq.Name); err != nil {
		return err
	}
	if _, patched := c.Opts.(*metav1.PatchOptions); !patched {
		dedupOwners(obj, "", rq.Warn)
	}
	ar := AdmissionRequest(rq, c.Res, admission.Update, obj, current, updateOptionsOf(c.Opts), c.Dry)
	asScale := c.Sub == "scale" && c.Res.Scale != nil
	if asScale {
		toScale(ar, c.Res, obj, current)
	}
	if err := w.Admission.Mutate(ctx, rq, ar, c.Res, obj); err != nil {
		return err
	}
	dedupOwners(obj, afterMutation, rq.Warn)
	if asScale {
		fromScale(ar, c.Res, obj)
	}
	if err := w.guard(ctx, rq, c.Res, obj, current); err != nil {
		return err
	}
	started := time.Now()
	checked := func() error {
		if err := prepareAndValidate(ctx, c.Res, c.Sub, obj, current); err != nil {
			return err
		}
		warnOfUpdate(rq, c, obj, current)
		rq.Mark.Validate = time.Since(started)
		return w.Admission.Do(ctx, rq, ar, func() error { return writeUpdate(rq, c, obj, current, write) })
	}
	if c.Sub != "" {
		return checked()
	}
	return w.allocated(ctx, c.Res, obj, current, c.Dry, checked)
}

// writeUpdate is the last step of an update, after the last plugin has accepted it.
func writeUpdate(rq *pipeline.Request, c Change, obj, current kind.Object, write func(kind.Object) error) error {
	dropEmptyFields(c.Res, obj)
	keepManagedFieldsTime(c.Res.GVK(), obj, current)
	recordChange(rq, c.Sub, obj, current)
	recordEndpoints(rq, obj, current)
	if canRemoveNow(c.Res, obj, current) {
		return &finalizersRemoved{last: obj}
	}
	return write(obj)
}

// warnOfUpdate sends the warnings about what the request could change: a status repeats none of those about the spec.
func warnOfUpdate(rq *pipeline.Request, c Change, obj, old kind.Object) {
	var texts []string
	switch part := c.Res.Subs[c.Sub]; {
	case c.Sub == "" || c.Sub == "scale":
		texts = c.Res.Warnings(obj, old)
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
func (w *Writer) deleteFinalized(
	ctx context.Context, rq *pipeline.Request, res *resources.Resource, last kind.Object,
) (*objects.Entry, bool, error) {
	_, receipt, err := res.Storage.Delete(ctx, last.GetNamespace(), last.GetName(), func(current kind.Object) error {
		if current.GetUID() != last.GetUID() || current.GetResourceVersion() != last.GetResourceVersion() {
			return Conflict(res, rq.Name)
		}
		return nil
	})
	if err != nil && !apierrors.IsNotFound(err) { // another client may have removed it
		return nil, false, err
	}
	RecordReceipt(rq, receipt)
	RecordSubject(rq, res, last)
	w.afterDelete(ctx, res, last)
	return &objects.Entry{Object: last}, false, nil
}
