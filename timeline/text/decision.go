// SPDX-License-Identifier: Apache-2.0

package text

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/decisions"
	"keelson/event"
	"keelson/lib/words"
	"keelson/timeline/story"
)

// PodDecision is a pod's last attempt as the API serves it, nil for nil. The caller may modify the result but not the
// elements of its slices.
func PodDecision(decided *story.Decided) *decisions.PodDecision {
	if decided == nil {
		return nil
	}
	out := &decisions.PodDecision{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(decided.At)},
		Status:     decided.Attempt.PodDecisionStatus,
	}
	s := &out.Status
	s.Message = message(decided.Attempt)
	s.Took.Duration = decided.Took
	s.ExtensionPoints = extensionPoints(s.ExtensionPoints, decided.Bind, decided.BindTook)
	s.Result, s.Node, s.Reason = outcome(decided)
	if len(s.RefusedBy) == 0 {
		s.RefusedBy = refusedBy(decided.Attempt.Reasons)
	}
	if len(s.Scores) > 1 {
		s.RunnerUp = s.Scores[1].Node
	}
	return out
}

// message is the scheduler's message, with the state of the pod's group.
func message(a *decisions.Attempt) string {
	switch {
	case a.PodGroup == "":
		return a.Message
	case a.Message == "":
		return "pod group " + a.PodGroup
	}
	return a.Message + "; pod group " + a.PodGroup
}

// outcome is an attempt's result, its node, and a short reason.
func outcome(d *story.Decided) (result, node, reason string) {
	decision := d.Attempt
	switch {
	case decision.Node != "" && d.BindErr != "":
		return decisions.BindFailed, decision.Node, d.BindErr
	case decision.Node != "" && decision.Feasible == 1:
		return decisions.Scheduled, decision.Node, "the only node that fits"
	case decision.Node != "" && decision.Tied > 1:
		return decisions.Scheduled, decision.Node, fmt.Sprintf("one of %d with the highest score", decision.Tied)
	case decision.Node != "":
		return decisions.Scheduled, decision.Node, "the highest score"
	case decision.Preemption != nil:
		return decisions.Preempting, decision.Preemption.Node,
			fmt.Sprintf("%s must go", words.Count(decision.Preemption.Count, "pod"))
	}
	return decisions.Unschedulable, "", cmp.Or(counted(decision.Reasons), decision.Message)
}

// extensionPoints are those of an attempt and of its binding, which takes took; bound is nil before it.
func extensionPoints(
	tried []decisions.ExtensionPoint, bound *event.Bind, took time.Duration,
) []decisions.ExtensionPoint {
	if bound == nil {
		return tried
	}
	all := decisions.PodDecisionStatus{ExtensionPoints: slices.Clone(tried)}
	all.AddPoint("Reserve", bound.Reserve)
	all.AddPoint("Permit", bound.Permit)
	all.AddPoint("PreBind", bound.PreBind)
	all.AddPoint("Bind", took-bound.PreBind)
	return all.ExtensionPoints
}

// refusedBy groups nodes by reason only, the most frequent first.
func refusedBy(reasons map[string]int) []decisions.RefusalGroup {
	var out []decisions.RefusalGroup
	for reason, n := range reasons {
		out = append(out, decisions.RefusalGroup{Reason: reason, Nodes: int32(n)}) // a number of nodes
	}
	slices.SortFunc(out, func(x, y decisions.RefusalGroup) int {
		return cmp.Or(cmp.Compare(y.Nodes, x.Nodes), cmp.Compare(x.Reason, y.Reason))
	})
	return out
}
