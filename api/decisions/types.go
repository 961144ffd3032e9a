// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// GroupVersion is decisions.keelson.io/v1alpha1.
var GroupVersion = schema.GroupVersion{Group: "decisions.keelson.io", Version: "v1alpha1"}

// AddToScheme registers the group's types.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &PodDecision{}, &PodDecisionList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// Results of an attempt.
const (
	Scheduled     = "Scheduled"
	Unschedulable = "Unschedulable"
	// Preempting: no node fits, and pods of one have to go for this pod.
	Preempting = "Preempting"
	// BindFailed: a node was chosen and the binding could not be written.
	BindFailed = "BindFailed"
)

// PodDecision is the scheduler's last attempt for the pod of the same name. Its creationTimestamp is when the attempt
// began.
type PodDecision struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Status            PodDecisionStatus `json:"status"`
}

// PodDecisionStatus is what the attempt found.
type PodDecisionStatus struct {
	PodUID types.UID `json:"podUID"`
	Result string    `json:"result"`
	// Node is where the pod goes, or where room is made for it.
	Node string `json:"node,omitempty"`
	// Reason is the result in a few words, Message that of the FailedScheduling event.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	Attempt int32  `json:"attempt"`
	// Nodes were looked at, Feasible of them fit.
	Nodes    int32           `json:"nodes"`
	Feasible int32           `json:"feasible"`
	Queued   metav1.Duration `json:"queued"`
	Took     metav1.Duration `json:"took"`
	// ExtensionPoints are those that ran, in order.
	ExtensionPoints []ExtensionPoint `json:"extensionPoints,omitempty"`
	// Scores are of the chosen node and then of the next best; RunnerUp is the second of them.
	Scores   []NodeScore `json:"scores,omitempty"`
	RunnerUp string      `json:"runnerUp,omitempty"`
	// Rules are those that plugins' scores are the sum of; each node's rules are in their order.
	Rules []Rule `json:"rules,omitempty"`
	// Tied nodes had the highest total, and one of them was picked at random; 0: only one had it.
	Tied int32 `json:"tied,omitempty"`
	// Refusals are of single nodes, bounded in large clusters; RefusedBy counts all by reason.
	Refusals  []Refusal      `json:"refusals,omitempty"`
	RefusedBy []RefusalGroup `json:"refusedBy,omitempty"`
	// Fixes would make the pod fit, the nearest first.
	Fixes []string `json:"fixes,omitempty"`
	// WaitsFor is what makes the scheduler try again.
	WaitsFor   string      `json:"waitsFor,omitempty"`
	Preemption *Preemption `json:"preemption,omitempty"`
}

// ExtensionPoint is a step of the scheduling framework and how long its plugins took.
type ExtensionPoint struct {
	Name string          `json:"name"`
	Took metav1.Duration `json:"took"`
}

// NodeScore is a feasible node's total over all plugins.
type NodeScore struct {
	Node    string        `json:"node"`
	Total   int64         `json:"total"`
	Plugins []PluginScore `json:"plugins,omitempty"`
	Rules   []RuleScore   `json:"rules,omitempty"`
}

// PluginScore is one plugin's: as it gave it, from 0 to 100, and times its weight.
type PluginScore struct {
	Plugin     string `json:"plugin"`
	Raw        int64  `json:"raw"`
	Normalized int64  `json:"normalized"`
	Weight     int64  `json:"weight"`
	Weighted   int64  `json:"weighted"`
	// Facts are what the raw score was computed from, of plugins that say so, for the first nodes; nil: unknown.
	Facts *ScoreFacts `json:"facts,omitempty"`
}

// ScoreFacts are what a plugin computed a node's score from.
type ScoreFacts struct {
	// Balance is NodeResourcesBalancedAllocation's.
	Balance *Balance `json:"balance,omitempty"`
	// Images are the pod's images that nodes have, for ImageLocality, which adds up their sizes, each times the share
	// of the nodes that have it. A sum below MinImageBytes gives 0.
	Images        []NodeImage `json:"images,omitempty"`
	MinImageBytes int64       `json:"minImageBytes,omitempty"`
}

// Balance is how equally the resources of a node are in use: 100 minus the standard deviation of their utilizations in
// percent, which of two is half their difference.
type Balance struct {
	Resources []Utilization `json:"resources,omitempty"`
	Without   int64         `json:"without"`
	With      int64         `json:"with"`
}

// Utilization is the part of a resource of a node that is requested, without the pod and with it, in percent.
type Utilization struct {
	Resource string  `json:"resource"`
	Without  float64 `json:"without"`
	With     float64 `json:"with"`
}

// NodeImage is an image of the pod: its size on this node (0: it is not there), and how many of all nodes have it.
type NodeImage struct {
	Image string `json:"image"`
	Bytes int64  `json:"bytes,omitempty"`
	Nodes int32  `json:"nodes"`
	Of    int32  `json:"of"`
}

// NewPluginScore returns a plugin's score, from what it gave the node.
func NewPluginScore(plugin string, raw, normalized, weight int64) PluginScore {
	return PluginScore{
		Plugin:     plugin,
		Raw:        raw,
		Normalized: normalized,
		Weight:     weight,
		Weighted:   normalized * weight,
	}
}

// From returns the score with what it was computed from.
func (s PluginScore) From(facts *ScoreFacts) PluginScore {
	s.Facts = facts
	return s
}

// Rule is a score of a policy. From is SchedulingPolicy or configuration, Field its place in the policy's spec, Weight
// its own times the plugin's.
type Rule struct {
	Plugin     string `json:"plugin"`
	Policy     string `json:"policy"`
	From       string `json:"from"`
	Field      string `json:"field"`
	Expression string `json:"expression"`
	Weight     int64  `json:"weight"`
}

// RuleScore is what a rule gave a node: the value of its expression (true: 100), from 0 to 100, and times the weight.
// Failed: it could not be evaluated, and gave 0.
type RuleScore struct {
	Raw        float64 `json:"raw"`
	Normalized int64   `json:"normalized"`
	Weighted   int64   `json:"weighted"`
	Failed     bool    `json:"failed,omitempty"`
}

// Refusal is the first filter that refused a node, and what the node is short of.
type Refusal struct {
	Node     string `json:"node"`
	Plugin   string `json:"plugin"`
	Reason   string `json:"reason"`
	Shortage string `json:"shortage,omitempty"`
	// Taint is the taint that the pod does not tolerate, if that is why.
	Taint *Taint `json:"taint,omitempty"`
	// Nearest: the node is the closest to a fit; Hint is a change that would make the pod fit there. Only the story has
	// them: Fixes names what would help.
	Nearest bool   `json:"-"`
	Hint    string `json:"-"`
}

// Taint is a taint of a node.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// String returns key=value:effect, as kubectl does.
func (t *Taint) String() string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

// RefusalGroup counts nodes that one plugin refused for one reason; Plugin is empty where only the reason was counted.
type RefusalGroup struct {
	Plugin string   `json:"plugin,omitempty"`
	Reason string   `json:"reason"`
	Nodes  int32    `json:"nodes"`
	Names  []string `json:"names,omitempty"` // some of them
}

// Preemption describes the victims of the pod, and why it preempts those.
type Preemption struct {
	Node string `json:"node"`
	// Victims are the most important first, at most 16; Count counts all.
	Victims []Victim `json:"victims,omitempty"`
	Count   int32    `json:"count"`
	// PDBViolations counts victims whose disruption budget is violated, Reprieved the less important pods of the node
	// that may stay.
	PDBViolations int32  `json:"pdbViolations,omitempty"`
	Reprieved     int32  `json:"reprieved,omitempty"`
	Candidates    int32  `json:"candidates,omitempty"`
	RunnerUp      string `json:"runnerUp,omitempty"`
	Why           string `json:"why,omitempty"`
}

// Victim is a pod that has to go.
type Victim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Priority  int32  `json:"priority"`
}

// PodDecisionList is a list of PodDecisions.
type PodDecisionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []PodDecision `json:"items"`
}

// DeepCopyObject returns a copy that shares nothing.
func (d *PodDecision) DeepCopyObject() runtime.Object {
	if d == nil {
		return nil
	}
	out := &PodDecision{TypeMeta: d.TypeMeta, Status: d.Status.deepCopy()}
	d.DeepCopyInto(&out.ObjectMeta)
	return out
}

// clone returns a shallow copy; nil stays nil.
func clone[T any](of *T) *T {
	if of == nil {
		return nil
	}
	out := *of
	return &out
}

func (f *ScoreFacts) deepCopy() *ScoreFacts {
	out := clone(f)
	if out == nil {
		return nil
	}
	out.Images = slices.Clone(f.Images)
	if out.Balance = clone(f.Balance); out.Balance != nil {
		out.Balance.Resources = slices.Clone(f.Balance.Resources)
	}
	return out
}

func (s *PodDecisionStatus) deepCopy() PodDecisionStatus {
	out := *s
	out.ExtensionPoints = slices.Clone(s.ExtensionPoints)
	out.Refusals = slices.Clone(s.Refusals)
	for i := range out.Refusals {
		out.Refusals[i].Taint = clone(out.Refusals[i].Taint)
	}
	out.Fixes = slices.Clone(s.Fixes)
	out.Scores = slices.Clone(s.Scores)
	out.Rules = slices.Clone(s.Rules)
	for i := range out.Scores {
		out.Scores[i].Plugins = slices.Clone(s.Scores[i].Plugins)
		for j := range out.Scores[i].Plugins {
			out.Scores[i].Plugins[j].Facts = out.Scores[i].Plugins[j].Facts.deepCopy()
		}
		out.Scores[i].Rules = slices.Clone(s.Scores[i].Rules)
	}
	out.RefusedBy = slices.Clone(s.RefusedBy)
	for i := range out.RefusedBy {
		out.RefusedBy[i].Names = slices.Clone(s.RefusedBy[i].Names)
	}
	if s.Preemption != nil {
		p := *s.Preemption
		p.Victims = slices.Clone(p.Victims)
		out.Preemption = &p
	}
	return out
}

// DeepCopyObject returns a copy that shares nothing.
func (l *PodDecisionList) DeepCopyObject() runtime.Object {
	if l == nil {
		return nil
	}
	out := &PodDecisionList{TypeMeta: l.TypeMeta}
	l.DeepCopyInto(&out.ListMeta)
	for i := range l.Items {
		if c, ok := l.Items[i].DeepCopyObject().(*PodDecision); ok {
			out.Items = append(out.Items, *c)
		}
	}
	return out
}
