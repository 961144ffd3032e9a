// SPDX-License-Identifier: Apache-2.0

package writes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/empty"
	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/apiserver/admission"
	"keelson/apiserver/objects"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/store"
)

// Creation is one create of an object, by any verb.
type Creation struct {
	Res  *resources.Resource
	Obj  kind.Object // decoded and defaulted; it belongs to the creation
	Opts runtime.Object
	Dry  bool
}

// Create runs every step of a create after decoding. The store rejects an object with a resourceVersion, after
// all other checks; a dry run accepts it.
func (w *Writer) Create(
	ctx context.Context, rq *pipeline.Request, c Creation, manager string,
) (entry *objects.Entry, err error) {
	WipeSystemFields(c.Obj)
	if err := InTurn(ctx, rq, func() error {
		return c.Res.FieldManagers[""].Update(nil, c.Obj, manager)
	}); err != nil {
		return nil, err
	}
	generated := c.Obj.GetName() == ""
	err = w.prepareCreate(ctx, rq, c, func() error {
		if c.Dry {
			entry, err = dryCreate(ctx, c.Res, c.Obj)
			return err
		}
		entry, err = storeNew(ctx, rq, c.Res, c.Obj, generated)
		return err
	})
	if err != nil {
		return nil, err
	}
	if !c.Dry {
		RecordSubject(rq, c.Res, entry.Object)
		recordEndpoints(rq, entry.Object, nil)
	}
	return entry, nil
}

// WipeSystemFields clears the metadata that only the server sets on a new object. These fields then have no manager in
// managedFields, and admission does not see the client's values.
func WipeSystemFields(obj kind.Object) {
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	obj.SetSelfLink("")
	obj.SetCreationTimestamp(metav1.Time{})
	obj.SetUID("")
}

// prepareCreate runs the steps between managed fields and the store, then write, which stores the object.
func (w *Writer) prepareCreate(ctx context.Context, rq *pipeline.Request, c Creation, write func() error) error {
	res := c.Res
	obj := c.Obj
	if res.CreateDenied != "" {
		return apierrors.NewForbidden(res.GroupResource(), obj.GetName(), errors.New(res.CreateDenied))
	}
	dedupOwners(obj, "", rq.Warn)
	ar := AdmissionRequest(rq, res, admission.Create, obj, nil, c.Opts, c.Dry)
	if err := w.Admission.Mutate(ctx, rq, ar, res, obj); err != nil {
		return err
	}
	dedupOwners(obj, afterMutation, rq.Warn)
	if err := w.guard(ctx, rq, res, obj, nil); err != nil {
		return err
	}
	started := time.Now()
	WipeSystemFields(obj)
	obj.SetCreationTimestamp(metav1.Now().Rfc3339Copy())
	obj.SetUID(types.UID(uuid.NewString()))
	nameGenerated(obj)
	return w.allocated(ctx, res, obj, nil, c.Dry, func() error {
		if err := prepareNew(ctx, rq, res, obj); err != nil {
			return err
		}
		rq.Mark.Validate += time.Since(started)
		ar.Name = obj.GetName()
		return w.Admission.Do(ctx, rq, ar, write)
	})
}

// prepareNew prepares a new object with its kind's functions, and validates it.
func prepareNew(ctx context.Context, rq *pipeline.Request, res *resources.Resource, obj kind.Object) error {
	early := res.EarlyWarnings(obj)
	res.PrepareCreate(obj)
	if u := rq.User; res.SetCreator != nil && u != nil {
		res.SetCreator(obj, u.Name, u.UID, u.Groups, u.Extra)
	}
	if err := validateNew(ctx, res, obj); err != nil {
		return err
	}
	for _, text := range slices.Concat(early, res.Warnings(obj, nil)) {
		rq.Warn(text)
	}
	dropEmptyFields(res, obj)
	return nil
}

// dropEmptyFields removes the difference between empty and absent fields, which encoding does not keep, so that obj
// equals what a later read returns.
func dropEmptyFields(res *resources.Resource, obj kind.Object) {
	if !res.KeepsEmptyFields {
		empty.NormalizeEmpty(obj)
	}
}

// allocated allocates cluster IPs, node ports and so on for obj, by the resource's allocator, and calls write.
// The allocator then keeps the allocation if write has stored obj, and releases it otherwise.
func (w *Writer) allocated(
	ctx context.Context, res *resources.Resource, obj, old kind.Object, dry bool, write func() error,
) error {
	allocator := w.allocators[res.GroupResource()]
	if allocator == nil {
		return write()
	}
	settle, err := allocator.Begin(ctx, obj, old, dry)
	if err != nil {
		return err
	}
	stored := false
	defer func() { settle(stored) }()
	err = write()
	stored = err == nil && !dry
	return err
}

func validateNew(ctx context.Context, res *resources.Resource, obj kind.Object) error {
	found := res.Check(ctx, obj)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("validate %s: %w", res.Resource, err) // the CEL rules may not have been evaluated completely
	}
	if err := invalidObject(res, obj, found); err != nil {
		return err
	}
	// Whatever a kind allows, a name must be a valid path segment.
	var errs field.ErrorList
	for _, msg := range content.IsPathSegmentName(obj.GetName()) {
		errs = invalid.Append(errs, field.Invalid(field.NewPath("metadata", "name"), obj.GetName(), msg))
	}
	return invalidObject(res, obj, errs)
}

// invalidObject returns the Invalid error with errs; nil if there are none.
func invalidObject(res *resources.Resource, obj kind.Object, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	if !res.ErrorsAsFound {
		errs = kind.ClientErrors(errs)
	}
	gk := res.GVK().GroupKind()
	if res.View != nil {
		gk.Group = res.View.Of.Group
	}
	return invalid.New(gk, obj.GetName(), errs)
}

const (
	maxBaseLength = 58 // of a generateName, so that the result is a DNS label
	suffixLength  = 5
	nameTries     = 8
)

// nameGenerated sets the name of an object with a generateName.
func nameGenerated(obj metav1.Object) {
	if base := obj.GetGenerateName(); base != "" && obj.GetName() == "" {
		obj.SetName(base[:min(len(base), maxBaseLength)] + rand.String(suffixLength))
	}
}

// storeNew stores obj. If a generated name exists already, it generates another. An object above the store's limit
// (etcd's 1.5 MiB) is tried without managedFields, which can be half of its size.
func storeNew(
	ctx context.Context, rq *pipeline.Request, res *resources.Resource, obj kind.Object, generated bool,
) (*objects.Entry, error) {
	ctx = WithReserve(ctx, rq, res, rq.Subresource)
	for try := 1; ; try++ {
		e, receipt, err := res.Storage.Create(ctx, obj)
		if err == nil {
			RecordReceipt(rq, receipt)
			return e, nil
		}
		if errors.Is(err, store.ErrTooLarge) && len(obj.GetManagedFields()) > 0 {
			obj.SetManagedFields(nil)
			continue
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, err
		}
		if obj.GetGenerateName() != "" && (!generated || try == nameTries) {
			err = apierrors.NewGenerateNameConflict(res.GroupResource(), obj.GetName(), 1)
		}
		if !generated || try == nameTries {
			return nil, explainAlreadyExists(ctx, res, obj, err)
		}
		obj.SetName("")
		nameGenerated(obj)
		res.PrepareCreate(obj) // a label may contain the name
	}
}

// explainAlreadyExists adds to a 409 that the existing object is being deleted.
func explainAlreadyExists(ctx context.Context, res *resources.Resource, obj kind.Object, err error) error {
	var status *apierrors.StatusError
	current, gerr := res.Storage.Get(ctx, obj.GetNamespace(), obj.GetName(), "")
	if gerr != nil || current.Object.GetDeletionTimestamp() == nil || !errors.As(err, &status) {
		return err
	}
	c := *status
	c.ErrStatus.Message = "object is being deleted: " + c.ErrStatus.Message
	return &c
}

func dryCreate(ctx context.Context, res *resources.Resource, obj kind.Object) (*objects.Entry, error) {
	switch _, err := res.Storage.Get(ctx, obj.GetNamespace(), obj.GetName(), ""); {
	case err == nil:
		return nil, apierrors.NewAlreadyExists(res.GroupResource(), obj.GetName())
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("look for %s %s: %w", res.Resource, obj.GetName(), err)
	}
	return &objects.Entry{Object: obj}, nil
}
