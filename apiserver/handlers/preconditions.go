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

	"keelson/api/kind"
	"keelson/apiserver/objects"
	"keelson/apiserver/registry"
)

// version is the number that an object's resourceVersion says; 0, which is also written "0", is none.
func version(obj metav1.Object) (uint64, error) {
	rv := obj.GetResourceVersion()
	if rv == "" {
		return 0, nil
	}
	return strconv.ParseUint(rv, 10, 64) // its words are those of Kubernetes' answer
}

// matchCurrent judges what an update or a patch says the object was: its uid, for who replaces it, and its version.
func matchCurrent(c change, obj, current kind.Object, name string) error {
	_, patched := c.opts.(*metav1.PatchOptions) // a patch that changes the uid is invalid, no conflict
	if uid := obj.GetUID(); !patched && uid != "" && uid != current.GetUID() {
		return otherUID(c, current.GetNamespace(), name, uid, current.GetUID())
	}
	v, err := version(obj)
	switch {
	case err != nil:
		return err
	case v == 0 && c.res.UnconditionalUpdate:
		obj.SetResourceVersion(current.GetResourceVersion())
	case v == 0:
		return apierrors.NewInvalid(schema.GroupKind{Group: c.res.Group, Kind: c.res.Resource}, name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update"),
		})
	case obj.GetResourceVersion() != current.GetResourceVersion():
		return conflict(c.res, name)
	}
	return nil
}

// otherUID refuses to replace an object that is not the one the client read.
func otherUID(c change, ns, name string, want, is types.UID) error {
	return unmet(c, ns, name, fmt.Sprintf("UID in precondition: %v, UID in object meta: %v", want, is))
}

// unmet words, as the store of Kubernetes does, what an object is not.
func unmet(c change, ns, name, what string) error {
	res := c.res
	key := objects.Config{Prefix: res.StorePrefix(), Namespaced: res.Namespaced}.KeyPrefix(ns) + name
	if c.dry {
		key = strings.TrimPrefix(key, strings.TrimSuffix(objects.Root, "/")) // a dry run does not know where in the store objects are
	}
	return apierrors.NewConflict(res.GroupResource(), name, fmt.Errorf("StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, "+
		"AdditionalErrorMsg: Precondition failed: %s", key, what))
}

// stored tells whether an object is the one that p wants.
func stored(obj kind.Object, p *metav1.Preconditions) bool {
	return (p.UID == nil || *p.UID == obj.GetUID()) && (p.ResourceVersion == nil || *p.ResourceVersion == obj.GetResourceVersion())
}

// otherThan says why an object is not the one that p wants.
func otherThan(c change, obj kind.Object, p *metav1.Preconditions) error {
	if p.UID != nil && *p.UID != obj.GetUID() {
		return otherUID(c, obj.GetNamespace(), obj.GetName(), *p.UID, obj.GetUID())
	}
	return unmet(c, obj.GetNamespace(), obj.GetName(),
		fmt.Sprintf("ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", *p.ResourceVersion, obj.GetResourceVersion()))
}

// preconditions judges what a deletion says the object is.
func preconditions(res *registry.Resource, name string, current kind.Object, p *metav1.Preconditions) error {
	if p == nil {
		return nil
	}
	// The refusal names the kind where others name the resource, as in Kubernetes.
	what := schema.GroupResource{Group: res.Group, Resource: res.GVK().Kind}
	if p.UID != nil && *p.UID != current.GetUID() {
		return apierrors.NewConflict(what, name, fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). "+
			"The object might have been deleted and then recreated", *p.UID, current.GetUID()))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != current.GetResourceVersion() {
		return apierrors.NewConflict(what, name, fmt.Errorf("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). "+
			"The object might have been modified", *p.ResourceVersion, current.GetResourceVersion()))
	}
	return nil
}
