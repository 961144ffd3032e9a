// SPDX-License-Identifier: Apache-2.0

package writes

import (
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/kind"
	"keelson/api/meta"
	"keelson/apiserver/resources"
)

// checkMetadata validates the metadata of obj, or of its subresource sub, after an update.
func checkMetadata(res *resources.Resource, sub string, obj, old kind.Object) field.ErrorList {
	p := field.NewPath("metadata")
	if errs := meta.TooLarge(obj, p); len(errs) > 0 {
		return errs
	}
	segment := path.ValidatePathSegmentName //nolint:staticcheck // the check that Kubernetes uses here
	errs := validation.ValidateObjectMetaAccessor(obj, res.Namespaced, segment, p)
	errs = append(errs, validation.ValidateObjectMetaAccessorUpdate(obj, old, p)...)
	if sub == "" && !res.NameOnCreate || sub != "" && res.NameInSubresources {
		errs = append(errs, validation.ValidateObjectMetaAccessor(obj, res.Namespaced, res.ValidateName, p)...)
	}
	if !res.TakesAnyFinalizer(sub) {
		errs = append(errs, meta.Finalizers(obj)...)
	}
	return errs
}
