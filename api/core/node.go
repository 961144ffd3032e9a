// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/resources"
)

// Node describes nodes. A node may be created with a status.
func Node() *kind.Kind {
	return kind.Spec[*corev1.Node]{
		Names: kind.Names{
			Version:    "v1",
			Kind:       "Node",
			Resource:   "nodes",
			Singular:   "node",
			ShortNames: []string{"no"},
		},
		New:           func() *corev1.Node { return &corev1.Node{} },
		NewList:       func() runtime.Object { return &corev1.NodeList{} },
		Default:       defaultNode,
		PrepareCreate: func(n *corev1.Node) { dropNodeFields(n, nil) },
		PrepareUpdate: func(n, old *corev1.Node) {
			n.Status = old.Status
			dropNodeFields(n, old)
		},
		Validate: validateNode,
		ValidateUpdate: func(n, old *corev1.Node) field.ErrorList {
			return append(validateNode(n), validateNodeUpdate(n, old)...)
		},
		Warnings: nodeWarnings,
		Fields: func(n *corev1.Node) fields.Set {
			return fields.Set{"spec.unschedulable": strconv.FormatBool(n.Spec.Unschedulable)}
		},
		Columns: nodeColumns,
		Row:     nodeRow,
		Status: &kind.Sub[*corev1.Node]{
			PrepareUpdate: func(n, old *corev1.Node) {
				n.Spec = old.Spec
				if old.Status.Config == nil {
					n.Status.Config = nil // dynamic kubelet configuration is gone
				}
			},
			ValidateUpdate: validateNodeUpdate,
		},
	}.Erase()
}

func defaultNode(n *corev1.Node) {
	if len(n.Status.Allocatable) == 0 && len(n.Status.Capacity) > 0 {
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
	resources.RoundUp(n.Status.Capacity)
	resources.RoundUp(n.Status.Allocatable)
	s := &n.Spec
	switch { // as for pod IPs, the old field wins where the two differ
	case s.PodCIDR == "" && len(s.PodCIDRs) > 0:
		s.PodCIDR = s.PodCIDRs[0]
	case s.PodCIDR != "" && (len(s.PodCIDRs) == 0 || s.PodCIDRs[0] != s.PodCIDR):
		s.PodCIDRs = []string{s.PodCIDR}
	}
}

// dropNodeFields drops what nodes no longer have, or have behind gates that are off, unless it is there already. old is
// nil on create.
func dropNodeFields(n, old *corev1.Node) {
	if old == nil || old.Spec.PodPreemptionPolicy == nil {
		n.Spec.PodPreemptionPolicy = nil
	}
	if old == nil || old.Spec.ConfigSource == nil {
		n.Spec.ConfigSource = nil
	}
	if old == nil || old.Status.Config == nil {
		n.Status.Config = nil
	}
}

func nodeWarnings(n, _ *corev1.Node) []string {
	var out []string
	if n.Spec.ConfigSource != nil {
		out = append(out, "spec.configSource: the feature is removed")
	}
	if n.Spec.DoNotUseExternalID != "" {
		out = append(out, "spec.externalID: this field is deprecated, and is unused by Kubernetes")
	}
	for i, podCIDR := range n.Spec.PodCIDRs {
		out = append(out, check.WarnCIDR(field.NewPath("spec", "podCIDRs").Index(i), podCIDR)...)
	}
	return out
}

var nodeColumns = []metav1.TableColumnDefinition{
	kind.NameColumn,
	{Name: "Status", Type: "string", Description: "The status of the node"},
	{Name: "Roles", Type: "string", Description: "The roles of the node"},
	kind.AgeColumn,
	{Name: "Version", Type: "string", Description: corev1.NodeSystemInfo{}.SwaggerDoc()["kubeletVersion"]},
	kind.Wide("Internal-IP", corev1.NodeStatus{}.SwaggerDoc()["addresses"]),
	kind.Wide("External-IP", corev1.NodeStatus{}.SwaggerDoc()["addresses"]),
	kind.Wide("OS-Image", corev1.NodeSystemInfo{}.SwaggerDoc()["osImage"]),
	kind.Wide("Kernel-Version", corev1.NodeSystemInfo{}.SwaggerDoc()["kernelVersion"]),
	kind.Wide("Container-Runtime", corev1.NodeSystemInfo{}.SwaggerDoc()["containerRuntimeVersion"]),
}

func nodeRow(node *corev1.Node) []any {
	info := &node.Status.NodeInfo
	unknown := func(s string) string {
		if s == "" {
			return "<unknown>"
		}
		return s
	}
	return []any{
		node.Name, nodeStatus(node), kind.OrNone(strings.Join(nodeRoles(node), ",")), kind.Age(node.CreationTimestamp),
		info.KubeletVersion,
		nodeAddress(node, corev1.NodeInternalIP), nodeAddress(node, corev1.NodeExternalIP),
		unknown(info.OSImage), unknown(info.KernelVersion), unknown(info.ContainerRuntimeVersion),
	}
}

func nodeStatus(n *corev1.Node) string {
	status := "Unknown"
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			status = "NotReady"
			if c.Status == corev1.ConditionTrue {
				status = "Ready"
			}
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	return status
}

// nodeRoles are the roles in the node's labels, sorted.
func nodeRoles(n *corev1.Node) []string {
	var roles []string
	for k, v := range n.Labels {
		if role, ok := strings.CutPrefix(k, "node-role.kubernetes.io/"); ok && role != "" {
			roles = append(roles, role)
		} else if k == "kubernetes.io/role" && v != "" {
			roles = append(roles, v)
		}
	}
	slices.Sort(roles)
	return slices.Compact(roles)
}

func nodeAddress(n *corev1.Node, t corev1.NodeAddressType) string {
	for _, a := range n.Status.Addresses {
		if a.Type == t {
			return a.Address
		}
	}
	return "<none>"
}
