// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"slices"
	"strings"

	"keelson/api/decisions"
	"keelson/scheduler/framework"
)

// Limits for pods without a node.
const (
	maxGroups  = 16
	maxNames   = 3
	maxVictims = 16
	// step separates what has to be done one after the other.
	step = "; then: "
)

// groups counts all refusals by plugin and reason, the most frequent first.
func groups(attempt *framework.Attempt) []decisions.RefusalGroup {
	type key struct{ plugin, reason string }
	at := map[key]int{}
	var out []decisions.RefusalGroup
	group := func(st *framework.Status) *decisions.RefusalGroup {
		k := key{plugin: st.Plugin}
		if len(st.Reasons) == 1 {
			k.reason = st.Reasons[0]
		} else {
			k.reason = strings.Join(st.Reasons, ", ")
		}
		i, ok := at[k]
		if !ok {
			i = len(out)
			at[k] = i
			out = append(out, decisions.RefusalGroup{Plugin: k.plugin, Reason: k.reason})
		}
		return &out[i]
	}
	var g *decisions.RefusalGroup
	for i := range attempt.Refused {
		if i == 0 || attempt.Refused[i].Status != attempt.Refused[i-1].Status {
			g = group(attempt.Refused[i].Status)
		}
		if g.Nodes++; len(g.Names) < maxNames {
			g.Names = append(g.Names, attempt.Refused[i].Node.Name)
		}
	}
	if attempt.ExcludedBy != nil {
		group(attempt.ExcludedBy).Nodes += int32(attempt.Excluded)
	}
	if attempt.PreFilterStatus != nil {
		group(attempt.PreFilterStatus).Nodes = int32(len(attempt.Snapshot.Nodes))
	}
	slices.SortStableFunc(out, func(x, y decisions.RefusalGroup) int {
		return cmp.Or(cmp.Compare(y.Nodes, x.Nodes), cmp.Compare(x.Plugin, y.Plugin), cmp.Compare(x.Reason, y.Reason))
	})
	return out[:min(len(out), maxGroups)]
}

// fixes returns what would make the pod fit: the hints, and what leaves: those with fewer steps first.
func fixes(x *framework.Explained) []string {
	out := slices.Clone(x.Hints)
	if x.Leaves != "" {
		out = append(out, x.Leaves)
	}
	slices.SortStableFunc(out, func(a, b string) int { return strings.Count(a, step) - strings.Count(b, step) })
	return out
}

// hints returns the hint of the nearest node, and the hint of another plugin.
func hints(attempt *framework.Attempt, verdicts []decisions.Refusal) []string {
	var out []string
	for i := range verdicts {
		if verdicts[i].Nearest {
			out = append(out, verdicts[i].Hint)
			if other := otherHint(attempt, verdicts[i].Plugin); other != "" {
				out = append(out, other)
			}
			break
		}
	}
	if name := missingNode(attempt); name != "" {
		out = append(out, "add a node named "+name)
	}
	return out
}

// missingNode returns the first of the nodes that the pod asks for by name, if there is none of them.
func missingNode(a *framework.Attempt) string {
	for i := range a.Filters {
		names := a.Filters[i].NodeNames
		if len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool {
			return a.Snapshot.Node(name) != nil
		}) {
			return names[0]
		}
	}
	return ""
}

// otherHint returns the hint for a node that another plugin than not refused.
func otherHint(a *framework.Attempt, plugin string) string {
	explained := map[string]int{}
	for i := range a.Refused[:min(len(a.Refused), maxExplained)] {
		r := &a.Refused[i]
		if r.Status.Plugin == plugin || explained[r.Status.Plugin] == maxNames {
			continue
		}
		explained[r.Status.Plugin]++
		if m := explainRefusal(a, r); m.Hint != "" && m.distance < farDistance {
			return m.Hint
		}
	}
	return ""
}

// Preemption returns the victims of the preemption of a pod or group.
func Preemption(preemption *framework.Preemption) *decisions.Preemption {
	if preemption == nil {
		return nil
	}
	out := &decisions.Preemption{
		Node:          preemption.Node,
		Count:         int32(len(preemption.Victims)),
		PDBViolations: int32(preemption.PDBViolations),
		Reprieved:     int32(preemption.Reprieved),
		Candidates:    int32(preemption.Candidates),
		RunnerUp:      preemption.RunnerUp,
		Why:           preemption.Why,
	}
	for _, v := range preemption.Victims[:min(len(preemption.Victims), maxVictims)] {
		out.Victims = append(out.Victims, decisions.Victim{
			Namespace: v.Pod.Namespace,
			Name:      v.Pod.Name,
			Priority:  v.Priority,
		})
	}
	return out
}
