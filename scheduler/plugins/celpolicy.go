// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"

	"keelson/api/invalid"
	"keelson/scheduler/framework"
	"keelson/scheduler/policy"
	"keelson/scheduler/state"
)

// CELPolicy filters and scores nodes by CEL expressions: those of the configuration file, then those of
// SchedulingPolicy objects.
type CELPolicy struct {
	// Profile is the profile's scheduler name.
	Profile string
	// Own are the policies of the file. Objects are those of the API; nil: none.
	Own     []*policy.Policy
	Objects *policy.Set
	// Namespaces has the labels of namespaces for QueueingHints; nil: they are not known.
	Namespaces corelisters.NamespaceLister
}

func newCELPolicy(args any, handle *framework.Handle, s *Shared) (*framework.Plugin, error) {
	celPolicy := &CELPolicy{Profile: handle.Profile, Objects: s.Policies}
	if handle.Informers != nil {
		celPolicy.Namespaces = handle.Informers.Core().V1().Namespaces().Lister()
	}
	switch a := args.(type) {
	case nil:
	case *policy.Args:
		own, wrong := a.CompileAll(nil)
		if len(wrong) > 0 {
			return nil, invalid.Error(wrong)
		}
		celPolicy.Own = own
		for _, o := range own {
			o.OnError = func(message string) {
				handle.Log.Warn("scheduling policy of the configuration", "policy", o.Name, "trouble", message)
			}
		}
	default:
		return nil, fmt.Errorf("plugin %s: its arguments are a %T", policy.Plugin, args)
	}
	return celPolicy.Plugin(), nil
}

// Plugin returns the descriptor.
func (p *CELPolicy) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:      policy.Plugin,
		PreFilter: p.PreFilter,
		PreScore:  p.PreScore,
		Events:    p.events(),
	}
}

// all returns the policies in effect.
func (p *CELPolicy) all() []*policy.Policy {
	if p.Objects == nil {
		return p.Own
	}
	objects := p.Objects.All()
	if len(p.Own) == 0 {
		return objects
	}
	return append(slices.Clip(p.Own), objects...)
}

// evaluationKey is the CycleState key by which PreFilter passes the policies that apply to the pod to PreScore.
var evaluationKey = framework.NewKey[*policy.Evaluation]("policies")

// PreFilter finds the policies that apply to the pod.
func (p *CELPolicy) PreFilter(
	c *framework.CycleState, pod *state.PodInfo, s *state.Snapshot,
) (framework.NodeFilter, *framework.Status) {
	policies := p.all()
	if len(policies) == 0 {
		return framework.NodeFilter{}, nil
	}
	j, st := policy.NewEvaluation(policies, p.Profile, pod, s)
	if st != nil {
		return framework.NodeFilter{}, st
	}
	evaluationKey.Write(c, j)
	if !j.HasFilters() {
		return framework.NodeFilter{}, nil
	}
	return j.NodeFilter(), nil
}

// PreScore uses the policies that PreFilter found. It finds them itself when the profile disables CELPolicy for
// PreFilter.
func (p *CELPolicy) PreScore(
	c *framework.CycleState, pod *state.PodInfo, s *state.Snapshot, _ []*state.NodeInfo,
) framework.NodeScorer {
	policies := p.all()
	if len(policies) == 0 {
		return framework.NodeScorer{}
	}
	j, ok := evaluationKey.Read(c)
	if !ok {
		var st *framework.Status
		if j, st = policy.NewEvaluation(policies, p.Profile, pod, s); st != nil {
			return framework.NodeScorer{}
		}
	}
	return j.NodeScorer()
}

// events names what may help: a change of fields that the pod's filters read, or of a policy.
func (p *CELPolicy) events() []framework.ClusterEventWithHint {
	const nodes = framework.NodeAdd | framework.NodeLabels | framework.NodeTaints | framework.NodeAllocatable |
		framework.NodeDeclaredFeatures | framework.NodeOther
	const pods = framework.AssignedPodAdd | framework.AssignedPodScaleDown | framework.AssignedPodDelete
	return []framework.ClusterEventWithHint{
		{
			Kinds: nodes,
			QueueingHintFn: func(pod *state.PodInfo, e *framework.Event) bool {
				policies := p.all()
				ns, known := p.labelsOf(pod)
				return policy.EventKinds(policies, p.Profile, pod, ns, known)&e.Kinds != 0 &&
					policy.Admits(policies, p.Profile, pod, ns, known, &state.NodeInfo{
						Node: e.NewNode,
						Name: e.NewNode.Name,
					})
			},
		},
		{
			Kinds: pods,
			QueueingHintFn: func(pod *state.PodInfo, e *framework.Event) bool {
				ns, known := p.labelsOf(pod)
				return policy.EventKinds(p.all(), p.Profile, pod, ns, known)&e.Kinds != 0
			},
		},
		{
			Kinds: framework.NamespaceLabels,
			QueueingHintFn: func(*state.PodInfo, *framework.Event) bool {
				return policy.SelectNamespaces(p.all())
			},
		},
		{
			Kinds:    framework.Objects,
			Resource: policy.Resource,
			QueueingHintFn: func(pod *state.PodInfo, e *framework.Event) bool {
				old, ok := e.OldObject.(*policy.Policy)
				ns, known := p.labelsOf(pod)
				return ok && old.MayApply(p.Profile, pod, ns, known)
			},
		},
		{Kinds: framework.UnscheduledPodUpdate},
	}
}

func (p *CELPolicy) labelsOf(pod *state.PodInfo) (_ labels.Set, known bool) {
	if p.Namespaces == nil {
		return nil, false
	}
	ns, err := p.Namespaces.Get(pod.Pod.Namespace)
	if err != nil {
		return nil, false
	}
	return ns.Labels, true
}
