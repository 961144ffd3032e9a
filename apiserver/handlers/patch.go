// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/kind"
	"keelson/api/patch"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/wire"
	"keelson/apiserver/writes"
	"keelson/lib/quantity"
)

// patchRequest is the decoded part of a PATCH request.
type patchRequest struct {
	kind  patch.Type
	opts  *metav1.PatchOptions
	body  []byte
	owner string
}

// patchType is the media type of a patch.
func patchType(r *http.Request) string {
	name, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return strings.TrimSpace(name)
}

func readPatch(r *http.Request, res *resources.Resource) (*patchRequest, error) {
	name := patchType(r)
	if res.PatchTypes != nil && !slices.Contains(res.PatchTypes, name) { // checkRoute has checked other kinds
		return nil, wire.UnsupportedMedia(res.PatchTypes)
	}
	opts, err := patchOptions(r, types.PatchType(name))
	if err != nil {
		return nil, err
	}
	p := &patchRequest{kind: patch.Type(name), opts: opts, owner: manager(r, opts.FieldManager)}
	return p, withBody(r, func(b []byte) error {
		p.body = bytes.Clone(b)
		return p.validate()
	})
}

// validate rejects a body that is not JSON or, for an apply, YAML.
func (p *patchRequest) validate() error {
	if p.kind != patch.Apply {
		var doc json.RawMessage
		if err := json.Unmarshal(p.body, &doc); err != nil {
			return apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
		return nil
	}
	if err := wire.CheckYAML(p.body); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("error encoding patch: %v", err))
	}
	return nil
}

// patch changes an object, or its subresource, by a patch of any type.
func (v *writeVerbs) patch(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource) error {
	shape, err := negotiateObject(r, res)
	if err != nil {
		return err
	}
	patchRequest, err := readPatch(r, res)
	if err != nil {
		return err
	}
	auditPatch(rq, patchRequest.body)
	c := writes.Change{
		Res:  res,
		Sub:  rq.Subresource,
		Opts: patchRequest.opts,
		Dry:  writes.IsDryRun(patchRequest.opts.DryRun),
	}
	if patchRequest.kind == patch.Apply {
		c.CreateMissing = rq.Subresource == ""
		c.Applied = true
		c.Make, err = prepareApply(rq, res, patchRequest)
	} else {
		c.Make = func(ctx context.Context, current kind.Object) (kind.Object, error) {
			return patched(ctx, rq, res, patchRequest, current)
		}
	}
	if err != nil {
		return err
	}
	e, created, err := v.writer.Change(r.Context(), rq, c)
	if err != nil {
		return err
	}
	code := http.StatusOK
	if created {
		code = http.StatusCreated
	}
	return shape.writeOne(w, r, code, e)
}

// patched returns current with the patch, defaults and new managed fields.
func patched(
	ctx context.Context, rq *pipeline.Request, res *resources.Resource, p *patchRequest, current kind.Object,
) (kind.Object, error) {
	begin := time.Now()
	obj, err := applyPatch(ctx, rq, res.Kind, p, current)
	if err != nil {
		return nil, err
	}
	rq.Mark.Decode = time.Since(begin)
	begin = time.Now()
	res.Default(obj)
	rq.Mark.Default = time.Since(begin)
	if err := writes.InTurn(ctx, rq, func() error {
		return res.FieldManagers[rq.Subresource].Update(current, obj, p.owner)
	}); err != nil {
		return nil, err
	}
	return obj, checkSameObject(rq, res, obj)
}

// checkSameObject rejects a change of name or namespace.
func checkSameObject(rq *pipeline.Request, res *resources.Resource, obj metav1.Object) error {
	if err := writes.MatchNamespace(obj, writes.Namespace(rq, res)); err != nil {
		return err
	}
	return writes.MatchName(obj, rq.Name, writes.Namespace(rq, res))
}

// applyPatch applies a patch and handles unknown fields according to fieldValidation.
func applyPatch(
	ctx context.Context, rq *pipeline.Request, k *kind.Kind, p *patchRequest, current kind.Object,
) (kind.Object, error) {
	v := wire.Validation(p.opts.FieldValidation)
	obj, strict, err := patch.Do(ctx, p.kind, k, current, p.body, v != wire.Ignore)
	if err != nil {
		return nil, err
	}
	if strict != nil && v == wire.Strict {
		return nil, strict.Refusal()
	}
	if strict != nil {
		for _, e := range strict.Errors {
			rq.Warn(e.Error())
		}
	}
	return obj, nil
}

// prepareApply prepares a server-side apply.
func prepareApply(rq *pipeline.Request, res *resources.Resource, p *patchRequest) (func(
	context.Context, kind.Object,
) (kind.Object, error), error,
) {
	want, err := wire.DecodeApply(p.body, wire.Validation(p.opts.FieldValidation), rq.Warn)
	if err != nil {
		return nil, err
	}
	if err := quantity.CheckValue(want.Object, reflect.TypeOf(res.New())); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	force := p.opts.Force != nil && *p.opts.Force
	return func(ctx context.Context, current kind.Object) (kind.Object, error) {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("apply: %w", err)
		}
		live := current
		if live == nil {
			live = res.New()
			live.GetObjectKind().SetGroupVersionKind(res.GVK())
		}
		var obj kind.Object
		if err := writes.InTurn(ctx, rq, func() (err error) {
			obj, err = res.FieldManagers[rq.Subresource].Apply(live, want.DeepCopy(), p.owner, force)
			return err
		}); err != nil {
			return nil, err
		}
		return obj, checkSameObject(rq, res, obj)
	}, nil
}
