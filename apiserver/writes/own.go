// SPDX-License-Identifier: Apache-2.0

package writes

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

// Own writes on behalf of the server, with all steps of a client's request after the pipeline.
type Own struct {
	served *resources.Served
	writer *Writer
}

// serverUser is the user of the server's own writes.
var serverUser = &auth.User{
	Name:   "system:apiserver",
	Groups: []string{auth.Masters, auth.Authenticated},
	How:    auth.InProcess,
}

// localManager is the field manager of the server's own writes.
const localManager = "keelson-apiserver"

// errUnchanged ends an update that changes nothing.
var errUnchanged = errors.New("nothing to change")

// Create stores obj.
func (o *Own) Create(ctx context.Context, gvr schema.GroupVersionResource, obj kind.Object) error {
	res := o.served.BuiltIn(gvr)
	if res == nil {
		return wire.NotFoundPath()
	}
	own, _ := obj.DeepCopyObject().(kind.Object)
	own.GetObjectKind().SetGroupVersionKind(res.GVK())
	res.Default(own)
	rq := localRequest(res, "create", obj)
	_, err := o.writer.Create(ctx, rq, Creation{Res: res, Obj: own, Opts: &metav1.CreateOptions{}}, localManager)
	return err
}

// Update changes the named object. edit modifies a copy and reports whether it changed.
func (o *Own) Update(
	ctx context.Context, gvr schema.GroupVersionResource, like kind.Object, edit func(kind.Object) bool,
) error {
	res := o.served.BuiltIn(gvr)
	if res == nil {
		return wire.NotFoundPath()
	}
	c := Change{
		Res:  res,
		Opts: &metav1.UpdateOptions{},
		Make: func(_ context.Context, current kind.Object) (kind.Object, error) {
			obj, _ := current.DeepCopyObject().(kind.Object)
			if !edit(obj) {
				return nil, errUnchanged
			}
			res.Default(obj)
			return obj, res.FieldManagers[""].Update(current, obj, localManager)
		},
	}
	_, _, err := o.writer.Change(ctx, localRequest(res, "update", like), c)
	if errors.Is(err, errUnchanged) {
		return nil
	}
	return err
}

// Delete deletes the named object, if its UID is still the same.
func (o *Own) Delete(ctx context.Context, gvr schema.GroupVersionResource, obj kind.Object) error {
	res := o.served.BuiltIn(gvr)
	if res == nil {
		return wire.NotFoundPath()
	}
	uid := obj.GetUID()
	_, _, err := o.writer.Remove(ctx, localRequest(res, "delete", obj), res, obj.GetName(), &metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid},
	})
	return err
}

func localRequest(res *resources.Resource, verb string, obj kind.Object) *pipeline.Request {
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
		User:  serverUser,
		Begin: time.Now(),
	}
}
