// SPDX-License-Identifier: Apache-2.0

package writes

import (
	"fmt"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/apiserver/resources"
)

// ResourceVersionOf parses an object's resourceVersion; 0: none.
func ResourceVersionOf(obj metav1.Object) (uint64, error) {
	rv := obj.GetResourceVersion()
	if rv == "" {
		return 0, nil
	}
	return strconv.ParseUint(rv, 10, 64) // its error text is part of Kubernetes' response
}

// matchCurrent checks the preconditions in an update or patch: the UID and the resourceVersion.
func matchCurrent(c Change, obj, current kind.Object, name string) error {
	_, patched := c.Opts.(*metav1.PatchOptions) // a patch that changes the UID is invalid, not a conflict
	if uid := obj.GetUID(); !patched && uid != "" && uid != current.GetUID() {
		return uidMismatchError(c.Res, c.Dry, current.GetNamespace(), name, uid, current.GetUID())
	}
	v, err := ResourceVersionOf(obj)
	switch {
	case err != nil:
		return err
	case v == 0 && c.Res.UnconditionalUpdate:
		obj.SetResourceVersion(current.GetResourceVersion())
	case v == 0:
		return invalid.New(schema.GroupKind{Group: c.Res.Group, Kind: c.Res.Resource}, name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update"),
		})
	case obj.GetResourceVersion() != current.GetResourceVersion():
		return Conflict(c.Res, name)
	}
	return nil
}

// uidMismatchError rejects an update of an object with another UID than the client's.
func uidMismatchError(res *resources.Resource, dry bool, ns, name string, want, is types.UID) error {
	what := fmt.Sprintf("UID in precondition: %v, UID in object meta: %v", want, is)
	return preconditionError(res, dry, ns, name, what)
}

// preconditionError is the error of a failed precondition, in the words of Kubernetes' storage.
func preconditionError(res *resources.Resource, dry bool, ns, name, what string) error {
	key := objects.Config{Prefix: res.StorePrefix(), Namespaced: res.Namespaced}.KeyPrefix(ns) + name
	if dry {
		key = strings.TrimPrefix(key, strings.TrimSuffix(objects.Root, "/")) // a dry run does not know the storage path
	}
	return apierrors.NewConflict(res.GroupResource(), name,
		fmt.Errorf("StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, "+
			"AdditionalErrorMsg: Precondition failed: %s", key, what))
}

// CheckPreconditions checks the preconditions of a binding.
func CheckPreconditions(res *resources.Resource, dry bool, obj kind.Object, p *metav1.Preconditions) error {
	switch {
	case p.UID != nil && *p.UID != obj.GetUID():
		return uidMismatchError(res, dry, obj.GetNamespace(), obj.GetName(), *p.UID, obj.GetUID())
	case p.ResourceVersion != nil && *p.ResourceVersion != obj.GetResourceVersion():
		return preconditionError(res, dry, obj.GetNamespace(), obj.GetName(),
			fmt.Sprintf("ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", *p.ResourceVersion,
				obj.GetResourceVersion()))
	}
	return nil
}

// Preconditions checks the preconditions of a delete.
func Preconditions(res *resources.Resource, name string, current kind.Object, p *metav1.Preconditions) error {
	if p == nil {
		return nil
	}
	// Unlike other errors this one names the kind, not the resource, as in Kubernetes.
	what := schema.GroupResource{Group: res.Group, Resource: res.GVK().Kind}
	if p.UID != nil && *p.UID != current.GetUID() {
		return apierrors.NewConflict(what, name,
			fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). "+
				"The object might have been deleted and then recreated", *p.UID, current.GetUID()))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != current.GetResourceVersion() {
		return apierrors.NewConflict(what, name,
			fmt.Errorf("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record "+
				"(%s). "+
				"The object might have been modified", *p.ResourceVersion, current.GetResourceVersion()))
	}
	return nil
}
