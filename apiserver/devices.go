// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/invalid"
	"keelson/apiserver/access"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/writes"
	"keelson/auth"
)

// deviceGuard rejects claims with admin access to devices in namespaces without the label for it (KEP-5018), and
// changes of a claim's status that need further rights (KEP-4817).
type deviceGuard struct {
	reader     *access.Reader
	authorizer auth.Authorizer // nil: every right is there
}

// before returns guards in which the device guard comes first for the resources that have devices.
func (d deviceGuard) before(guards map[schema.GroupResource]writes.Guard) map[schema.GroupResource]writes.Guard {
	out := maps.Clone(guards)
	if out == nil {
		out = map[schema.GroupResource]writes.Guard{}
	}
	for _, resource := range []string{"resourceclaims", "resourceclaimtemplates"} {
		gr := schema.GroupResource{Group: resourcev1.GroupName, Resource: resource}
		next := guards[gr]
		out[gr] = func(ctx context.Context, a *auth.Attributes, obj, old runtime.Object) error {
			if err := d.check(ctx, a, obj, old); err != nil || next == nil {
				return err
			}
			return next(ctx, a, obj, old)
		}
	}
	return out
}

func (d deviceGuard) check(ctx context.Context, attrs *auth.Attributes, obj, old runtime.Object) error {
	var errs field.ErrorList
	kind := "ResourceClaim"
	name := ""
	switch o := obj.(type) {
	case *resourcev1.ResourceClaimTemplate:
		kind = "ResourceClaimTemplate"
		name = o.Name
		if old == nil {
			errs = d.adminAccess(ctx, attrs.Namespace, adminRequest(o.Spec.Spec.Devices.Requests))
		}
	case *resourcev1.ResourceClaim:
		name = o.Name
		before, _ := old.(*resourcev1.ResourceClaim)
		switch {
		case before == nil:
			errs = d.adminAccess(ctx, attrs.Namespace, adminRequest(o.Spec.Devices.Requests))
		case attrs.Subresource == "status":
			if adminResult(before.Status.Allocation) == nil {
				errs = d.adminAccess(ctx, attrs.Namespace, adminResult(o.Status.Allocation))
			}
			errs = append(errs, d.mayBind(ctx, attrs, &o.Status, &before.Status)...)
			errs = append(errs, d.mayReport(ctx, attrs, &o.Status, &before.Status)...)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return invalid.New(schema.GroupKind{Group: resourcev1.GroupName, Kind: kind}, name, errs)
}

// adminAccess checks the label of the namespace where a field of a claim gives admin access; nil: none does. The
// namespace is read consistently: a client that has just set or removed the label sees it in force.
func (d deviceGuard) adminAccess(ctx context.Context, namespace string, path *field.Path) field.ErrorList {
	if path == nil {
		return nil
	}
	found, err := d.reader.GetLatest(ctx, corev1.SchemeGroupVersion.WithResource("namespaces"), "", namespace)
	if err != nil {
		return field.ErrorList{
			field.InternalError(path, fmt.Errorf("could not retrieve namespace to verify admin access: %w", err)),
		}
	}
	if ns, ok := found.(*corev1.Namespace); ok && ns.Labels[resourcev1.DRAAdminNamespaceLabelKey] == "true" {
		return nil
	}
	return field.ErrorList{field.Forbidden(path,
		fmt.Sprintf("admin access to devices requires the `%s: true` label on the containing namespace",
			resourcev1.DRAAdminNamespaceLabelKey))}
}

// adminRequest returns the path of the first request for admin access; nil: there is none.
func adminRequest(requests []resourcev1.DeviceRequest) *field.Path {
	i := slices.IndexFunc(requests, func(r resourcev1.DeviceRequest) bool {
		return r.Exactly != nil && r.Exactly.AdminAccess != nil && *r.Exactly.AdminAccess
	})
	if i < 0 {
		return nil
	}
	return field.NewPath("spec", "devices", "requests").Index(i).Child("adminAccess")
}

// adminResult returns the path of the first device that is allocated for admin access; nil: there is none.
func adminResult(of *resourcev1.AllocationResult) *field.Path {
	if of == nil {
		return nil
	}
	i := slices.IndexFunc(of.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
		return r.AdminAccess != nil && *r.AdminAccess
	})
	if i < 0 {
		return nil
	}
	return field.NewPath("status", "allocation", "devices", "results").Index(i).Child("adminAccess")
}

// mayBind requires the right to resourceclaims/binding, in all namespaces, of who allocates or reserves a claim: the
// scheduler and the claim controller.
func (d deviceGuard) mayBind(
	ctx context.Context, attrs *auth.Attributes, status, old *resourcev1.ResourceClaimStatus,
) field.ErrorList {
	if apiequality.Semantic.DeepEqual(status.Allocation, old.Allocation) && apiequality.Semantic.DeepEqual(
		status.ReservedFor, old.ReservedFor) {
		return nil
	}
	need := *attrs
	need.Subresource = resourcev1.SubresourceBinding
	need.Namespace = ""
	need.Name = ""
	if err := d.authorizes(ctx, &need); err != nil {
		return field.ErrorList{field.Forbidden(field.NewPath("status", "allocation"),
			fmt.Sprintf(
				"changing status.allocation or status.reservedFor requires resource=%q, verb=%q permission: %v",
				"resourceclaims/binding", attrs.Verb, err))}
	}
	return nil
}

// mayReport requires the right to resourceclaims/driver, by the name of each driver whose devices have another status.
// A driver's pod on the node of the devices needs it for the verb associated-node:VERB, any other writer for
// arbitrary-node:VERB.
func (d deviceGuard) mayReport(
	ctx context.Context, attrs *auth.Attributes, status, old *resourcev1.ResourceClaimStatus,
) (errs field.ErrorList) {
	if status.Allocation == nil {
		return nil // the status of its devices goes with it
	}
	verbs := []string{resourcev1.VerbPrefixArbitraryNode + attrs.Verb}
	if onNodeOf(attrs.User, status.Allocation) {
		verbs = slices.Insert(verbs, 0, resourcev1.VerbPrefixAssociatedNode+attrs.Verb)
	}
	for _, driver := range changedDrivers(status.Devices, old.Devices) {
		var first error
		allowed := slices.ContainsFunc(verbs, func(verb string) bool {
			need := *attrs
			need.Verb = verb
			need.Subresource = resourcev1.SubresourceDriver
			need.Name = driver
			err := d.authorizes(ctx, &need)
			if first == nil {
				first = err
			}
			return err == nil
		})
		if !allowed {
			errs = invalid.Append(errs, field.Forbidden(field.NewPath("status", "devices"),
				fmt.Sprintf("changing status.devices requires resource=%q, verb=%q permission: %v",
					"resourceclaims/driver", verbs, first)))
		}
	}
	return errs
}

// authorizes returns the 403 error if the request's user lacks a right.
func (d deviceGuard) authorizes(ctx context.Context, attrs *auth.Attributes) error {
	if d.authorizer == nil || attrs.User == nil {
		return nil
	}
	decision, err := d.authorizer.Authorize(ctx, attrs)
	if decision.Verdict == auth.Allow {
		return nil
	}
	reason := decision.Reason
	if err != nil {
		reason = strings.TrimSuffix(err.Error()+": "+reason, ": ")
	}
	return pipeline.Forbidden(attrs, reason)
}

// changedDrivers returns the drivers whose devices were added, removed or changed, sorted.
func changedDrivers(devices, old []resourcev1.AllocatedDeviceStatus) []string {
	type key struct{ driver, pool, device, share string }
	keyOf := func(d *resourcev1.AllocatedDeviceStatus) key {
		k := key{driver: d.Driver, pool: d.Pool, device: d.Device}
		if d.ShareID != nil {
			k.share = *d.ShareID
		}
		return k
	}
	before := map[key]*resourcev1.AllocatedDeviceStatus{}
	for i := range old {
		before[keyOf(&old[i])] = &old[i]
	}
	drivers := map[string]bool{}
	for i := range devices {
		d := &devices[i]
		had := before[keyOf(d)]
		if had == nil || !apiequality.Semantic.DeepEqual(*had, *d) {
			drivers[d.Driver] = true
		}
		delete(before, keyOf(d))
	}
	for removed := range before {
		drivers[removed.driver] = true
	}
	return slices.Sorted(maps.Keys(drivers))
}

// onNodeOf reports whether user is a service account in a pod on the one node that has the devices of an allocation.
func onNodeOf(user *auth.User, of *resourcev1.AllocationResult) bool {
	if user == nil || of.NodeSelector == nil || len(of.NodeSelector.NodeSelectorTerms) != 1 {
		return false
	}
	term := &of.NodeSelector.NodeSelectorTerms[0]
	if len(term.MatchExpressions) != 0 || len(term.MatchFields) != 1 {
		return false
	}
	f := &term.MatchFields[0]
	if f.Key != "metadata.name" || f.Operator != corev1.NodeSelectorOpIn || len(f.Values) != 1 {
		return false
	}
	node, ok := pipeline.AccountNode(user)
	return ok && node == f.Values[0]
}
