// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"

	"keelson/api/core/podspec"
	"keelson/api/internal/check"
	"keelson/api/meta"
)

func validateNode(node *corev1.Node) field.ErrorList {
	errs := check.At(nil)
	errs.Add(meta.Finalizers(node)...)
	taints(errs, node.Spec.Taints)
	nodeResources(errs, &node.Status)
	if swap := node.Status.NodeInfo.Swap; swap != nil && swap.Capacity != nil && *swap.Capacity <= 0 {
		errs.Invalid("metadata.nodeSwapStatus.capacity", *swap.Capacity, "must be greater than zero")
	}
	declaredFeatures(errs, node.Status.DeclaredFeatures)
	if len(node.Spec.PodCIDRs) > 0 {
		errs.In("spec")
		errs.In("podCIDRs")
		podCIDRs(errs, node.Spec.PodCIDRs)
		errs.Out()
		errs.Out()
	}
	return errs.Errors()
}

// taints reports below metadata, where Kubernetes has reported them ever since they were an annotation.
func taints(errs *check.List, list []corev1.Taint) {
	if len(list) == 0 {
		return
	}
	var seen check.Set
	errs.In("metadata")
	errs.In("taints")
	for i := range list {
		t := &list[i]
		errs.Index(i)
		errs.Qualified("key", t.Key)
		if msgs := validation.IsValidLabelValue(t.Value); len(msgs) > 0 {
			errs.Invalid("value", t.Value, strings.Join(msgs, ";"))
		}
		podspec.TaintEffect(errs, t.Effect)
		if !seen.Add(t.Key + "\x00" + string(t.Effect)) {
			twice := field.Duplicate(errs.Path(""), *t)
			twice.Detail = "taints must be unique by key and effect pair"
			errs.Add(twice)
		}
		errs.Out()
	}
	errs.Out()
	errs.Out()
}

func nodeResources(errs *check.List, nodeStatus *corev1.NodeStatus) {
	errs.In("status")
	each := func(child string, list corev1.ResourceList) {
		from := errs.Len()
		errs.In(child)
		for n, q := range list {
			errs.In(string(n)) // a child, not a key, as Kubernetes prints it
			podspec.Quantity(errs, n, q)
			errs.Out()
		}
		errs.Out()
		errs.Sort(from)
	}
	each("capacity", nodeStatus.Capacity)
	each("allocatable", nodeStatus.Allocatable)
	errs.Out()
}

var featureName = regexp.MustCompile(`^([A-Z][A-Za-z0-9]+)(/[A-Za-z][A-Za-z0-9]+)*$`)

// declaredFeatures wants names of features, each once and in order.
func declaredFeatures(errs *check.List, names []string) {
	errs.In("status")
	errs.In("declaredFeatures")
	for i, name := range names {
		errs.Index(i)
		switch {
		case len(name) > 253:
			errs.Invalid("", name, fmt.Sprintf("invalid feature name %q: must be no more than 253 characters", name))
		case !featureName.MatchString(name):
			errs.Invalid("", name,
				fmt.Sprintf("invalid feature name %q: must start with an UpperCamelCase segment, with subsequent "+
					"segments separated by '/' "+
					"(e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes",
					name))
		}
		errs.Out()
		if i+1 == len(names) {
			break
		}
		errs.Index(i + 1)
		switch next := names[i+1]; {
		case name == next:
			errs.Duplicate("", next)
		case name > next:
			errs.Invalid("", next, "list must be sorted alphabetically")
		}
		errs.Out()
	}
	errs.Out()
	errs.Out()
}

func podCIDRs(errs *check.List, cidrs []string) {
	for i, cidr := range cidrs {
		errs.Index(i)
		errs.CIDR("", cidr)
		errs.Out()
	}
	if len(cidrs) < 2 {
		return
	}
	dual, err := utilnet.IsDualStackCIDRStrings(cidrs)
	if err != nil {
		errs.Add(field.InternalError(errs.Path(""),
			fmt.Errorf("invalid PodCIDRs. failed to check with dual stack with error:%w", err)))
	}
	if !dual || len(cidrs) > 2 {
		errs.Invalid("", cidrs, "may specify no more than one CIDR for each IP family")
	}
}

// validateNodeUpdate is run for the node and for its status: addresses once, and what identifies the node stays.
func validateNodeUpdate(node, old *corev1.Node) field.ErrorList {
	errs := check.At(nil)
	if len(node.Finalizers) > 0 && !slices.Equal(node.Finalizers, old.Finalizers) {
		errs.Add(meta.Finalizers(node)...)
	}
	nodeResources(errs, &node.Status)
	declaredFeatures(errs, node.Status.DeclaredFeatures)
	seen := make(map[corev1.NodeAddress]bool, len(node.Status.Addresses))
	errs.In("status")
	errs.In("addresses")
	for i, a := range node.Status.Addresses {
		if seen[a] {
			errs.Index(i)
			errs.Duplicate("", a)
			errs.Out()
		}
		seen[a] = true
	}
	errs.Out()
	if c := node.Status.Config; c != nil {
		errs.In("config")
		errs.Within("assigned", func() { configSource(errs, c.Assigned, true) })
		errs.Within("active", func() { configSource(errs, c.Active, true) })
		errs.Within("lastKnownGood", func() { configSource(errs, c.LastKnownGood, true) })
		errs.Out()
	}
	errs.Out()
	errs.In("spec")
	if was := old.Spec.PodCIDRs; len(was) > 0 && !slices.Equal(was, node.Spec.PodCIDRs) {
		// One error for each range that differs, but one alone when their number does.
		times := 1
		if len(was) == len(node.Spec.PodCIDRs) {
			times = 0
			for i := range was {
				if was[i] != node.Spec.PodCIDRs[i] {
					times++
				}
			}
		}
		for range times {
			errs.Forbidden("podCIDRs", "node updates may not change podCIDR except from \"\" to valid")
		}
	}
	if was := old.Spec.ProviderID; was != "" && was != node.Spec.ProviderID {
		errs.Forbidden("providerID", "node updates may not change providerID except from \"\" to valid")
	}
	errs.In("configSource")
	configSource(errs, node.Spec.ConfigSource, false)
	errs.Out()
	errs.Out()
	taints(errs, node.Spec.Taints)
	if node.Spec.DoNotUseExternalID != old.Spec.DoNotUseExternalID {
		errs.Forbidden("spec.externalID", "may not be updated")
	}
	return errs.Errors()
}

// configSource checks the remains of dynamic kubelet configuration, in the spec or the status.
func configSource(errs *check.List, s *corev1.NodeConfigSource, status bool) {
	if s == nil {
		return
	}
	source := s.ConfigMap
	if source == nil {
		errs.Invalid("", s, "exactly one reference subfield must be non-nil")
		return
	}
	errs.In("configMap")
	defer errs.Out()
	switch {
	case status:
		if source.UID == "" {
			errs.Required("uid", "uid must be set in status")
		}
		if source.ResourceVersion == "" {
			errs.Required("resourceVersion", "resourceVersion must be set in status")
		}
	default:
		if source.UID != "" {
			errs.Forbidden("uid", "uid must not be set in spec")
		}
		if source.ResourceVersion != "" {
			errs.Forbidden("resourceVersion", "resourceVersion must not be set in spec")
		}
	}
	if source.Namespace == "" {
		errs.Required("namespace", "namespace must be set")
	} else {
		errs.Name("namespace", source.Namespace, apivalidation.ValidateNamespaceName)
	}
	if source.Name == "" {
		errs.Required("name", "name must be set")
	} else {
		errs.Name("name", source.Name, apivalidation.NameIsDNSSubdomain)
	}
	if source.KubeletConfigKey == "" {
		errs.Required("kubeletConfigKey", "kubeletConfigKey must be set")
	} else {
		errs.ConfigKey("kubeletConfigKey", source.KubeletConfigKey)
	}
}
