// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/wire"
	"keelson/auth"
)

// localManager is the field manager of the server's own writes.
const localManager = "keelson-apiserver"

// errUnchanged ends an update that changes nothing.
var errUnchanged = errors.New("nothing to change")

// Create stores obj on behalf of the server, with all steps of a client's request after the pipeline.
func (h *Handler) Create(ctx context.Context, u *auth.User, gvr schema.GroupVersionResource, obj kind.Object) error {
	res := h.finder.builtIn[gvr]
	if res == nil {
		return wire.NotFoundPath()
	}
	own, _ := obj.DeepCopyObject().(kind.Object)
	own.GetObjectKind().SetGroupVersionKind(res.GVK())
	res.Default(own)
	rq := localRequest(u, res, "create", obj)
	_, err := h.writer.create(ctx, rq, creation{res: res, obj: own, opts: &metav1.CreateOptions{}}, localManager)
	return err
}

// Update changes the named object on behalf of the server. edit modifies a copy and reports whether it changed.
func (h *Handler) Update(
	ctx context.Context, user *auth.User, gvr schema.GroupVersionResource, like kind.Object,
	edit func(kind.Object) bool,
) error {
	res := h.finder.builtIn[gvr]
	if res == nil {
		return wire.NotFoundPath()
	}
	c := change{
		res:  res,
		opts: &metav1.UpdateOptions{},
		make: func(_ context.Context, current kind.Object) (kind.Object, error) {
			obj, _ := current.DeepCopyObject().(kind.Object)
			if !edit(obj) {
				return nil, errUnchanged
			}
			res.Default(obj)
			return obj, res.FieldManagers[""].Update(current, obj, localManager)
		},
	}
	_, _, err := h.writer.change(ctx, localRequest(user, res, "update", like), c)
	if errors.Is(err, errUnchanged) {
		return nil
	}
	return err
}

// Delete deletes the named object on behalf of the server, if its UID is still the same.
func (h *Handler) Delete(ctx context.Context, u *auth.User, gvr schema.GroupVersionResource, obj kind.Object) error {
	res := h.finder.builtIn[gvr]
	if res == nil {
		return wire.NotFoundPath()
	}
	uid := obj.GetUID()
	_, _, err := h.writer.remove(ctx, localRequest(u, res, "delete", obj), res, obj.GetName(), &metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid},
	})
	return err
}

func localRequest(user *auth.User, res *resources.Resource, verb string, obj kind.Object) *pipeline.Request {
	return &pipeline.Request{
		Info: pipeline.Info{
			IsResource: true,
			Verb:       verb,
			Group:      res.Group,
			Version:    res.Version,
			Resource:   res.Resource,
			Namespace:  obj.GetNamespace(),
			Name:       obj.GetName(),
		},
		User:  user,
		Begin: time.Now(),
	}
}
