// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/kind"
	"keelson/api/meta"
	"keelson/apiserver/registry"
)

// nameOnce are the kinds, by resource.group, whose names Kubernetes looks at when an object is made, and at an update no more. As a name
// never changes, this decides about generateName alone.
var nameOnce = []string{
	"cronjobs.batch", "csidrivers.storage.k8s.io", "daemonsets.apps", "deployments.apps", "deviceclasses.resource.k8s.io",
	"devicetaintrules.resource.k8s.io", "horizontalpodautoscalers.autoscaling", "jobs.batch", "leases.coordination.k8s.io",
	"networkpolicies.networking.k8s.io", "podtemplates", "priorityclasses.scheduling.k8s.io", "replicasets.apps", "resourcequotas",
	"resourceslices.resource.k8s.io", "servicecidrs.networking.k8s.io", "services", "statefulsets.apps",
}

// anyFinalizers are the groups, and the kinds by resource.group, whose updates Kubernetes lets have finalizers of any name. (New objects are
// the business of each kind.)
var anyFinalizers = []string{
	"admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io",
	"cronjobs.batch/status", "events", "leases.coordination.k8s.io", "poddisruptionbudgets.policy", "poddisruptionbudgets.policy/status",
	"runtimeclasses.node.k8s.io",
}

// checkMetadata judges the metadata that an update of obj, or of its subresource sub, leads to.
func checkMetadata(res *registry.Resource, sub string, obj, old kind.Object) field.ErrorList {
	p := field.NewPath("metadata")
	what := res.GroupResource().String()
	errs := validation.ValidateObjectMetaAccessor(obj, res.Namespaced, path.ValidatePathSegmentName, p) //nolint:staticcheck // what Kubernetes checks here
	errs = append(errs, validation.ValidateObjectMetaAccessorUpdate(obj, old, p)...)
	if res.Custom != nil {
		return errs
	}
	if sub == "" && !slices.Contains(nameOnce, what) || sub != "" && what == "volumeattachments.storage.k8s.io" {
		errs = append(errs, validation.ValidateObjectMetaAccessor(obj, res.Namespaced, res.ValidateName, p)...)
	}
	if sub != "" {
		what += "/" + sub
	}
	if !slices.Contains(anyFinalizers, what) && !slices.Contains(anyFinalizers, res.Group) {
		errs = append(errs, meta.Finalizers(obj)...)
	}
	return errs
}
