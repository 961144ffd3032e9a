// SPDX-License-Identifier: Apache-2.0

// Package policy compiles and evaluates scheduling policies: filter and score rules in CEL, from the scheduler's
// configuration file or from SchedulingPolicy objects. The plugin CELPolicy evaluates them; the package objects watches
// the objects. This package does no I/O.
//
// Invariants:
//  1. A Policy is immutable, except for its caches of values per node. A cached value equals a new evaluation.
//  2. An expression is compiled once per policy. Its worst cost is estimated then, and its cost is limited in each
//     evaluation.
//  3. An expression returns a value or an error, or reaches its cost limit. None of them ends the scheduler.
package policy

import (
	_ "embed" // for Manifest

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Plugin is the name of the plugin that runs policies.
const Plugin = "CELPolicy"

// Resource is the resource of SchedulingPolicy objects, CRD the name of its CustomResourceDefinition.
var (
	Resource = schema.GroupVersionResource{
		Group:    "scheduling.keelson.dev",
		Version:  "v1",
		Resource: "schedulingpolicies",
	}
	CRD = Resource.Resource + "." + Resource.Group
)

// Manifest has the CustomResourceDefinition of SchedulingPolicy and the RBAC objects with which a scheduler may read
// them.
//
//go:embed schedulingpolicy.yaml
var Manifest []byte

// Spec is the spec of a SchedulingPolicy.
type Spec struct {
	// The policy applies to pods that match all of these fields. An empty field matches all pods.
	SchedulerNames    []string              `json:"schedulerNames,omitempty"`
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	PodSelector       *metav1.LabelSelector `json:"podSelector,omitempty"`
	// Match is an expression over pod.
	Match string `json:"match,omitempty"`
	// FailurePolicy decides about a match or filter that cannot be evaluated: Fail (default) refuses, Ignore accepts.
	FailurePolicy string   `json:"failurePolicy,omitempty"`
	Filters       []Filter `json:"filters,omitempty"`
	Scores        []Score  `json:"scores,omitempty"`
}

// Where a policy was written (Policy.From): as an object, or in the scheduler's configuration file.
const (
	FromObject = "SchedulingPolicy"
	FromFile   = "configuration"
)

// The values of FailurePolicy.
const (
	Fail   = "Fail"
	Ignore = "Ignore"
)

// Filter accepts the nodes for which its expression over pod and node is true.
type Filter struct {
	Expression string `json:"expression"`
	// Message is the reason of a refusal. MessageExpression computes the reason from pod and node, and takes
	// precedence.
	Message           string `json:"message,omitempty"`
	MessageExpression string `json:"messageExpression,omitempty"`
}

// Score scores nodes: a number, capped to 0..100, or a bool (0 or 100).
type Score struct {
	Expression string `json:"expression"`
	// Weight multiplies the score, 1 to 100; default 1.
	Weight *int32 `json:"weight,omitempty"`
}

// Args are the arguments of the plugin in a KubeSchedulerConfiguration.
type Args struct {
	metav1.TypeMeta `json:",inline"`
	Policies        []Named `json:"policies,omitempty"`
}

// Named is a policy of the file.
type Named struct {
	Name string `json:"name"`
	Spec `json:",inline"`
}

// Limits; the CustomResourceDefinition has the same.
const (
	MaxPolicies   = 256 // in effect at the same time
	maxRules      = 16  // filters of a policy, and also scores
	maxExpression = 4096
	maxMessage    = 256
	maxWeight     = 100
)
