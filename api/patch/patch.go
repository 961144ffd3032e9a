// SPDX-License-Identifier: Apache-2.0

// Package patch applies JSON patches (RFC 6902), merge patches (RFC 7386) and
// Kubernetes' strategic merge patches to objects. The handlers call it. It does
// no I/O and never changes the object it is given. Server-side apply is api/apply.
package patch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/api/scheme"
	"keelson/lib/quantity"
)

// Type is a kind of patch, by its media type.
type Type string

// The patch types.
const (
	JSON      Type = "application/json-patch+json"
	Merge     Type = "application/merge-patch+json"
	Strategic Type = "application/strategic-merge-patch+json"
	Apply     Type = "application/apply-patch+yaml"
)

// Types are the media types in the order messages list them; Untyped those for kinds without a Go type, which have no
// merge keys.
var (
	Types   = []string{string(JSON), string(Merge), string(Strategic), string(Apply)}
	Untyped = []string{string(JSON), string(Merge), string(Apply)}
)

// Do applies p to old and returns a new object, unless ctx ends before. Unknown and duplicate fields come back as
// strict (when check is set, else nil); every error is a Status: 400 for what is no patch, 413 for one that is too
// long, 422 for one that does not fit the object.
func Do(
	ctx context.Context, t Type, k *kind.Kind, old kind.Object, p []byte, check bool,
) (out kind.Object, strict *Strict, err error) {
	switch t {
	case JSON, Merge:
		return byJSON(ctx, t, k, old, p, check)
	case Strategic:
		return strategic(ctx, k, old, p, check)
	}
	return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("unknown patch type %q", t))
}

func byJSON(
	ctx context.Context, t Type, spec *kind.Kind, old kind.Object, p []byte, check bool,
) (kind.Object, *Strict, error) {
	doc, err := json.Marshal(kind.Named(old, spec.GVK()))
	if err != nil {
		return nil, nil, apierrors.NewInternalError(fmt.Errorf("encode the object to patch: %w", err))
	}
	var patched []byte
	var strict []error
	if t == JSON {
		patched, strict, err = applyJSON(ctx, doc, p, check)
	} else {
		patched, strict, err = applyMerge(doc, p, check)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, nil, err
	}
	obj := spec.New()
	if err := sameKind(spec, obj, patched); err != nil {
		if spec.Read != nil {
			return nil, nil, otherKind(spec, old, patched, err)
		}
		return nil, nil, misfit(string(patched), err)
	}
	var unknown []error
	if spec.Read != nil {
		if obj, unknown, err = spec.Read(patched, check); err != nil {
			return nil, nil, misfit(string(patched), err)
		}
		return obj, strictly(func() string { return string(patched) }, append(strict, unknown...)), nil
	}
	if err := quantity.CheckJSON(patched, reflect.TypeOf(obj)); err != nil {
		return nil, nil, misfit(string(patched), err)
	}
	if check {
		unknown, err = kjson.UnmarshalStrict(patched, obj)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(patched, obj)
	}
	if err != nil {
		return nil, nil, misfit(string(patched), err)
	}
	return named(spec, obj), strictly(func() string { return string(patched) }, append(strict, unknown...)), nil
}

// sameKind wants the patched document to be of the kind it was: a patch changes no kinds.
func sameKind(k *kind.Kind, obj kind.Object, doc []byte) error {
	var is metav1.TypeMeta
	if err := json.Unmarshal(doc, &is); err != nil {
		return nil //nolint:nilerr // the decoder of the whole document has a better message
	}
	switch gvk := is.GroupVersionKind(); {
	case gvk == k.GVK():
		return nil
	case is.Kind == "":
		return runtime.NewMissingKindErr(string(doc))
	case is.APIVersion == "":
		return runtime.NewMissingVersionErr(string(doc))
	case !scheme.Scheme.Recognizes(gvk):
		return runtime.NewNotRegisteredErrForKind(scheme.Scheme.Name(), gvk)
	default:
		return fmt.Errorf("unable to decode %s into %T", gvk, obj)
	}
}

// otherKind words sameKind's refusal for kinds without a Go type.
func otherKind(k *kind.Kind, old kind.Object, doc []byte, err error) error {
	var is metav1.TypeMeta
	if json.Unmarshal(doc, &is) != nil || is.Kind == "" || is.APIVersion == "" {
		return misfit(string(doc), err)
	}
	var errs field.ErrorList
	if is.Kind != k.Kind {
		errs = append(errs, field.Invalid(field.NewPath("kind"), is.Kind, "must be "+k.Kind))
	}
	if want := k.GVK().GroupVersion().String(); is.APIVersion != want {
		errs = append(errs, field.Invalid(field.NewPath("apiVersion"), is.APIVersion, "must be "+want))
	}
	return invalid.New(is.GroupVersionKind().GroupKind(), old.GetName(), errs)
}

// Strict is what fieldValidation has against a patched object; shown is how a refusal shows the value.
type Strict struct {
	Shown  string
	Errors []error
}

func strictly(shown func() string, errs []error) *Strict {
	if len(errs) == 0 {
		return nil
	}
	return &Strict{shown(), errs}
}

// Refusal is the answer when fieldValidation is Strict.
func (s *Strict) Refusal() error { return misfit(s.Shown, runtime.NewStrictDecodingError(s.Errors)) }

func undecodable(err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
}

func applyMerge(doc, p []byte, check bool) (out []byte, strict []error, err error) {
	fields := map[string]any{}
	if check {
		strict, err = kjson.UnmarshalStrict(p, &fields)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(p, &fields)
	}
	if err != nil {
		return nil, nil, undecodable(err)
	}
	if out, err = jsonpatch.MergePatch(doc, p); err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	return out, strict, nil
}

func strategic(
	ctx context.Context, spec *kind.Kind, old kind.Object, p []byte, check bool,
) (kind.Object, *Strict, error) {
	fields := map[string]any{}
	var strict []error
	var err error
	if check {
		strict, err = kjson.UnmarshalStrict(p, &fields)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(p, &fields)
	}
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if err := quantity.CheckValue(fields, reflect.TypeOf(spec.New())); err != nil {
		return nil, nil, misfit(fmt.Sprintf("%+v", fields), err)
	}
	if obj, ok := plainMerge(spec, old, fields); ok {
		return obj, strictly(func() string { return fmt.Sprintf("%+v", fields) }, strict), nil
	}
	return libraryMerge(spec, old, fields, strict, check)
}

// plainMerge merges a patch into a copy of old; false: the patch is not plain.
func plainMerge(k *kind.Kind, old kind.Object, fields map[string]any) (kind.Object, bool) {
	obj, ok := old.DeepCopyObject().(kind.Object)
	if !ok || !mergeStruct(reflect.ValueOf(obj).Elem(), fields) {
		return nil, false
	}
	obj.GetObjectKind().SetGroupVersionKind(k.GVK()) // the Go type decides, whatever the patch says
	return obj, true
}

// libraryMerge merges any strategic merge patch, as JSON values.
func libraryMerge(
	spec *kind.Kind, old kind.Object, fields map[string]any, strict []error, check bool,
) (kind.Object, *Strict, error) {
	doc, err := runtime.DefaultUnstructuredConverter.ToUnstructured(kind.Named(old, spec.GVK()))
	if err != nil {
		return nil, nil, apierrors.NewInternalError(fmt.Errorf("take apart the object to patch: %w", err))
	}
	obj := spec.New()
	shape, err := strategicpatch.NewPatchMetaFromStruct(obj)
	if err != nil {
		return nil, nil, apierrors.NewInternalError(fmt.Errorf("merge keys of %s: %w", spec.Kind, err))
	}
	if err := checkComparisons(doc, fields); err != nil {
		return nil, nil, err
	}
	merged, err := strategicpatch.StrategicMergeMapPatchUsingLookupPatchMeta(doc, fields, shape)
	if err != nil {
		return nil, nil, unmergeable(err)
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(merged, obj, check)
	if err != nil {
		s, ok := runtime.AsStrictDecodingError(err)
		if !ok {
			return nil, nil, misfit(fmt.Sprintf("%+v", fields), err)
		}
		strict = append(strict, s.Errors()...)
	}
	obj.GetObjectKind().SetGroupVersionKind(spec.GVK()) // the Go type decides, whatever the patch says
	return obj, strictly(func() string { return fmt.Sprintf("%+v", fields) }, strict), nil
}

// unmergeable returns another error for a document that is no patch than for a patch that does not fit the object.
func unmergeable(err error) error {
	for _, bad := range []error{
		mergepatch.ErrBadJSONDoc, mergepatch.ErrBadPatchFormatForPrimitiveList,
		mergepatch.ErrBadPatchFormatForRetainKeys,
		mergepatch.ErrBadPatchFormatForSetElementOrderList, mergepatch.ErrUnsupportedStrategicMergePatchFormat,
	} {
		if errors.Is(err, bad) {
			return apierrors.NewBadRequest(err.Error())
		}
	}
	if errors.Is(err, mergepatch.ErrNoListOfLists) || errors.Is(err, mergepatch.ErrPatchContentNotMatchRetainKeys) {
		return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "",
			err.Error(), 0, false)
	}
	return err // a 500 with just that, as Kubernetes has it: a list without its merge keys, a directive no one knows
}

// misfit is the answer to a patch whose result is not an object of the kind.
func misfit(p string, err error) error {
	return invalid.New(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), p, err.Error())})
}

func named(k *kind.Kind, obj kind.Object) kind.Object {
	if obj.GetObjectKind().GroupVersionKind().Empty() {
		obj.GetObjectKind().SetGroupVersionKind(k.GVK())
	}
	return obj
}
