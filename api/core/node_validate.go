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

func validateNode(n *corev1.Node) field.ErrorList {
	l := check.At(nil)
	l.Add(meta.Finalizers(n)...)
	taints(l, n.Spec.Taints)
	nodeResources(l, &n.Status)
	if swap := n.Status.NodeInfo.Swap; swap != nil && swap.Capacity != nil && *swap.Capacity <= 0 {
		l.Invalid("metadata.nodeSwapStatus.capacity", *swap.Capacity, "must be greater than zero")
	}
	declaredFeatures(l, n.Status.DeclaredFeatures)
	if len(n.Spec.PodCIDRs) > 0 {
		l.In("spec")
		l.In("podCIDRs")
		podCIDRs(l, n.Spec.PodCIDRs)
		l.Out()
		l.Out()
	}
	return l.Errors()
}

// taints reports below metadata, where Kubernetes has reported them ever since they were an annotation.
func taints(l *check.List, list []corev1.Taint) {
	if len(list) == 0 {
		return
	}
	var seen check.Set
	l.In("metadata")
	l.In("taints")
	for i := range list {
		t := &list[i]
		l.Index(i)
		l.Qualified("key", t.Key)
		if msgs := validation.IsValidLabelValue(t.Value); len(msgs) > 0 {
			l.Invalid("value", t.Value, strings.Join(msgs, ";"))
		}
		podspec.TaintEffect(l, t.Effect)
		if !seen.Add(t.Key + "\x00" + string(t.Effect)) {
			twice := field.Duplicate(l.Path(""), *t)
			twice.Detail = "taints must be unique by key and effect pair"
			l.Add(twice)
		}
		l.Out()
	}
	l.Out()
	l.Out()
}

func nodeResources(l *check.List, s *corev1.NodeStatus) {
	l.In("status")
	each := func(child string, list corev1.ResourceList) {
		from := l.Len()
		l.In(child)
		for n, q := range list {
			l.In(string(n)) // a child, not a key, as Kubernetes prints it
			podspec.Quantity(l, n, q)
			l.Out()
		}
		l.Out()
		l.Sort(from)
	}
	each("capacity", s.Capacity)
	each("allocatable", s.Allocatable)
	l.Out()
}

var featureName = regexp.MustCompile(`^([A-Z][A-Za-z0-9]+)(/[A-Za-z][A-Za-z0-9]+)*$`)

// declaredFeatures wants names of features, each once and in order.
func declaredFeatures(l *check.List, names []string) {
	l.In("status")
	l.In("declaredFeatures")
	for i, name := range names {
		l.Index(i)
		switch {
		case len(name) > 253:
			l.Invalid("", name, fmt.Sprintf("invalid feature name %q: must be no more than 253 characters", name))
		case !featureName.MatchString(name):
			l.Invalid("", name,
				fmt.Sprintf("invalid feature name %q: must start with an UpperCamelCase segment, with subsequent "+
					"segments separated by '/' "+
					"(e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes",
					name))
		}
		l.Out()
		if i+1 == len(names) {
			break
		}
		l.Index(i + 1)
		switch next := names[i+1]; {
		case name == next:
			l.Duplicate("", next)
		case name > next:
			l.Invalid("", next, "list must be sorted alphabetically")
		}
		l.Out()
	}
	l.Out()
	l.Out()
}

func podCIDRs(l *check.List, cidrs []string) {
	for i, cidr := range cidrs {
		l.Index(i)
		l.CIDR("", cidr)
		l.Out()
	}
	if len(cidrs) < 2 {
		return
	}
	dual, err := utilnet.IsDualStackCIDRStrings(cidrs)
	if err != nil {
		l.Add(field.InternalError(l.Path(""),
			fmt.Errorf("invalid PodCIDRs. failed to check with dual stack with error:%w", err)))
	}
	if !dual || len(cidrs) > 2 {
		l.Invalid("", cidrs, "may specify no more than one CIDR for each IP family")
	}
}

// validateNodeUpdate is run for the node and for its status: addresses once, and what identifies the node stays.
func validateNodeUpdate(n, old *corev1.Node) field.ErrorList {
	l := check.At(nil)
	if len(n.Finalizers) > 0 && !slices.Equal(n.Finalizers, old.Finalizers) {
		l.Add(meta.Finalizers(n)...)
	}
	nodeResources(l, &n.Status)
	declaredFeatures(l, n.Status.DeclaredFeatures)
	seen := make(map[corev1.NodeAddress]bool, len(n.Status.Addresses))
	l.In("status")
	l.In("addresses")
	for i, a := range n.Status.Addresses {
		if seen[a] {
			l.Index(i)
			l.Duplicate("", a)
			l.Out()
		}
		seen[a] = true
	}
	l.Out()
	if c := n.Status.Config; c != nil {
		l.In("config")
		l.Within("assigned", func() { configSource(l, c.Assigned, true) })
		l.Within("active", func() { configSource(l, c.Active, true) })
		l.Within("lastKnownGood", func() { configSource(l, c.LastKnownGood, true) })
		l.Out()
	}
	l.Out()
	l.In("spec")
	if was := old.Spec.PodCIDRs; len(was) > 0 && !slices.Equal(was, n.Spec.PodCIDRs) {
		// One error for each range that differs, but one alone when their number does.
		times := 1
		if len(was) == len(n.Spec.PodCIDRs) {
			times = 0
			for i := range was {
				if was[i] != n.Spec.PodCIDRs[i] {
					times++
				}
			}
		}
		for range times {
			l.Forbidden("podCIDRs", "node updates may not change podCIDR except from \"\" to valid")
		}
	}
	if was := old.Spec.ProviderID; was != "" && was != n.Spec.ProviderID {
		l.Forbidden("providerID", "node updates may not change providerID except from \"\" to valid")
	}
	l.In("configSource")
	configSource(l, n.Spec.ConfigSource, false)
	l.Out()
	l.Out()
	taints(l, n.Spec.Taints)
	if n.Spec.DoNotUseExternalID != old.Spec.DoNotUseExternalID {
		l.Forbidden("spec.externalID", "may not be updated")
	}
	return l.Errors()
}

// configSource checks the remains of dynamic kubelet configuration, in the spec or the status.
func configSource(l *check.List, s *corev1.NodeConfigSource, status bool) {
	if s == nil {
		return
	}
	c := s.ConfigMap
	if c == nil {
		l.Invalid("", s, "exactly one reference subfield must be non-nil")
		return
	}
	l.In("configMap")
	defer l.Out()
	switch {
	case status:
		if c.UID == "" {
			l.Required("uid", "uid must be set in status")
		}
		if c.ResourceVersion == "" {
			l.Required("resourceVersion", "resourceVersion must be set in status")
		}
	default:
		if c.UID != "" {
			l.Forbidden("uid", "uid must not be set in spec")
		}
		if c.ResourceVersion != "" {
			l.Forbidden("resourceVersion", "resourceVersion must not be set in spec")
		}
	}
	if c.Namespace == "" {
		l.Required("namespace", "namespace must be set")
	} else {
		l.Name("namespace", c.Namespace, apivalidation.ValidateNamespaceName)
	}
	if c.Name == "" {
		l.Required("name", "name must be set")
	} else {
		l.Name("name", c.Name, apivalidation.NameIsDNSSubdomain)
	}
	if c.KubeletConfigKey == "" {
		l.Required("kubeletConfigKey", "kubeletConfigKey must be set")
	} else {
		l.ConfigKey("kubeletConfigKey", c.KubeletConfigKey)
	}
}
