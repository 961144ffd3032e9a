// SPDX-License-Identifier: Apache-2.0

// Package policy compiles and evaluates scheduling policies: filter and score rules in CEL, from the scheduler's configuration file or
// from SchedulingPolicy objects. The plugin CELPolicy runs them, the scheduler follows the objects. It does no I/O.
//
// Invariants:
//  1. A Policy is immutable; what it remembers of nodes only repeats what it would find out again.
//  2. An expression is compiled once per policy. What it may cost is estimated then, and limited each time it is evaluated.
//  3. An expression cannot do more than give a value, an error or run out of its limit: none of them ends the scheduler.
package policy

import (
	_ "embed" // of the definition

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Plugin is the name of the plugin that runs policies.
const Plugin = "CELPolicy"

// Resource are the SchedulingPolicy objects, CRD the name of their definition.
var (
	Resource = schema.GroupVersionResource{Group: "scheduling.keelson.dev", Version: "v1", Resource: "schedulingpolicies"}
	CRD      = Resource.Resource + "." + Resource.Group
)

// Manifest defines SchedulingPolicy, and lets a scheduler read them: YAML to be applied once.
//
//go:embed schedulingpolicy.yaml
var Manifest []byte

// Spec is what a policy says: the spec of a SchedulingPolicy.
type Spec struct {
	// The policy is about pods that all of these let in; what is empty lets in all.
	SchedulerNames    []string              `json:"schedulerNames,omitempty"`
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	PodSelector       *metav1.LabelSelector `json:"podSelector,omitempty"`
	// Match is an expression over pod.
	Match string `json:"match,omitempty"`
	// FailurePolicy is what a match or filter does that cannot be evaluated: Fail (by default) refuses, Ignore lets in.
	FailurePolicy string   `json:"failurePolicy,omitempty"`
	Filters       []Filter `json:"filters,omitempty"`
	Scores        []Score  `json:"scores,omitempty"`
}

// Where a policy was written (Policy.From): as an object, or in the scheduler's configuration file.
const (
	FromObject = "SchedulingPolicy"
	FromFile   = "configuration"
)

// What FailurePolicy may say.
const (
	Fail   = "Fail"
	Ignore = "Ignore"
)

// Filter lets a pod onto the nodes for which its expression over pod and node is true.
type Filter struct {
	Expression string `json:"expression"`
	// Message is told where the filter refuses; MessageExpression makes one of pod and node, and goes first.
	Message           string `json:"message,omitempty"`
	MessageExpression string `json:"messageExpression,omitempty"`
}

// Score gives nodes points: a number, taken as 0 to 100, or a bool (0 or 100).
type Score struct {
	Expression string `json:"expression"`
	// Weight multiplies it, 1 to 100; 1 by default.
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

// Bounds of what is read, as the definition of SchedulingPolicy has them too.
const (
	MaxPolicies   = 256 // that are in effect
	maxRules      = 16  // filters of a policy, and scores
	maxExpression = 4096
	maxMessage    = 256
	maxWeight     = 100
)
