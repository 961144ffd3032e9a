// SPDX-License-Identifier: Apache-2.0

package handlers

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

// resourceVersionOf parses an object's resourceVersion; 0: none.
func resourceVersionOf(obj metav1.Object) (uint64, error) {
	rv := obj.GetResourceVersion()
	if rv == "" {
		return 0, nil
	}
	return strconv.ParseUint(rv, 10, 64) // its error text is part of Kubernetes' response
}

// matchCurrent checks the preconditions in an update or patch: the UID and the resourceVersion.
func matchCurrent(c change, obj, current kind.Object, name string) error {
	_, patched := c.opts.(*metav1.PatchOptions) // a patch that changes the UID is invalid, not a conflict
	if uid := obj.GetUID(); !patched && uid != "" && uid != current.GetUID() {
		return uidMismatchError(c, current.GetNamespace(), name, uid, current.GetUID())
	}
	v, err := resourceVersionOf(obj)
	switch {
	case err != nil:
		return err
	case v == 0 && c.res.UnconditionalUpdate:
		obj.SetResourceVersion(current.GetResourceVersion())
	case v == 0:
		return invalid.New(schema.GroupKind{Group: c.res.Group, Kind: c.res.Resource}, name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update"),
		})
	case obj.GetResourceVersion() != current.GetResourceVersion():
		return conflict(c.res, name)
	}
	return nil
}

// uidMismatchError rejects an update of an object with another UID than the client's.
func uidMismatchError(c change, ns, name string, want, is types.UID) error {
	return preconditionError(c, ns, name, fmt.Sprintf("UID in precondition: %v, UID in object meta: %v", want, is))
}

// preconditionError is the error of a failed precondition, in the words of Kubernetes' storage.
func preconditionError(c change, ns, name, what string) error {
	res := c.res
	key := objects.Config{Prefix: res.StorePrefix(), Namespaced: res.Namespaced}.KeyPrefix(ns) + name
	if c.dry {
		key = strings.TrimPrefix(key, strings.TrimSuffix(objects.Root, "/")) // a dry run does not know the storage path
	}
	return apierrors.NewConflict(res.GroupResource(), name,
		fmt.Errorf("StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, "+
			"AdditionalErrorMsg: Precondition failed: %s", key, what))
}

// meetsPreconditions reports whether an object meets the preconditions.
func meetsPreconditions(obj kind.Object, p *metav1.Preconditions) bool {
	return (p.UID == nil || *p.UID == obj.GetUID()) &&
		(p.ResourceVersion == nil || *p.ResourceVersion == obj.GetResourceVersion())
}

// checkPreconditions is the error if an object does not meet the preconditions.
func checkPreconditions(c change, obj kind.Object, p *metav1.Preconditions) error {
	if p.UID != nil && *p.UID != obj.GetUID() {
		return uidMismatchError(c, obj.GetNamespace(), obj.GetName(), *p.UID, obj.GetUID())
	}
	return preconditionError(c, obj.GetNamespace(), obj.GetName(),
		fmt.Sprintf("ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", *p.ResourceVersion,
			obj.GetResourceVersion()))
}

// preconditions checks the preconditions of a delete.
func preconditions(res *resources.Resource, name string, current kind.Object, p *metav1.Preconditions) error {
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
