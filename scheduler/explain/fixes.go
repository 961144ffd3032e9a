// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/lib/mark"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// Limits for pods without a node.
const (
	maxGroups    = 16
	maxNames     = 3
	maxVictims   = 16
	maxJobsTried = 64  // nodes
	maxJobPods   = 512 // pods of a node
	fitPlugin    = "NodeResourcesFit"
)

// groups counts all refusals by plugin and reason, the most frequent first.
func groups(a *framework.Attempt) []mark.Group {
	type key struct{ plugin, reason string }
	at := map[key]int{}
	var out []mark.Group
	group := func(st *framework.Status) *mark.Group {
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
			out = append(out, mark.Group{Plugin: k.plugin, Reason: k.reason})
		}
		return &out[i]
	}
	var g *mark.Group
	for i := range a.Refused {
		if i == 0 || a.Refused[i].Status != a.Refused[i-1].Status {
			g = group(a.Refused[i].Status)
		}
		if g.Nodes++; len(g.Names) < maxNames {
			g.Names = append(g.Names, a.Refused[i].Node.Name)
		}
	}
	if a.ExcludedBy != nil {
		group(a.ExcludedBy).Nodes += a.Excluded
	}
	if a.PreFilterStatus != nil {
		group(a.PreFilterStatus).Nodes = len(a.Snapshot.Nodes)
	}
	slices.SortStableFunc(out, func(x, y mark.Group) int {
		return cmp.Or(cmp.Compare(y.Nodes, x.Nodes), cmp.Compare(x.Plugin, y.Plugin), cmp.Compare(x.Reason, y.Reason))
	})
	return out[:min(len(out), maxGroups)]
}

// fixes returns what would make the pod fit: the hints, and the Job whose end helps most.
func fixes(x *framework.Explained) []string {
	if x.Job == "" {
		return x.Hints
	}
	return append(slices.Clip(x.Hints), x.Job)
}

// hints returns the hint of the nearest node, and the hint of another plugin.
func hints(a *framework.Attempt, verdicts []mark.Verdict) []string {
	var out []string
	for i := range verdicts {
		if verdicts[i].Nearest {
			out = append(out, verdicts[i].Hint)
			if other := otherHint(a, verdicts[i].Plugin); other != "" {
				out = append(out, other)
			}
			break
		}
	}
	return out
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

// jobToWaitFor names the Job whose end would let the pod fit on most nodes.
func jobToWaitFor(a *framework.Attempt) string {
	nodes := map[string][]string{}
	tried := 0
	for _, r := range a.Refused {
		if r.Status.Plugin != fitPlugin || r.Status.Code != framework.Unschedulable || len(r.Node.Pods) > maxJobPods {
			continue
		}
		if tried++; tried > maxJobsTried {
			break
		}
		for job, pods := range jobsOn(r.Node) {
			if framework.Check(framework.AdjustedFilters(a.Filters, r.Node, nil, pods), r.Node.With(nil, pods)) == nil {
				nodes[job] = append(nodes[job], r.Node.Name)
			}
		}
	}
	best := ""
	for job, free := range nodes {
		if best == "" || len(free) > len(nodes[best]) || len(free) == len(nodes[best]) && job < best {
			best = job
		}
	}
	switch n := len(nodes[best]); n {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("%s frees up when job %s ends", nodes[best][0], best)
	default:
		return fmt.Sprintf("%d nodes free up when job %s ends", n, best)
	}
}

// jobsOn returns the pods of Jobs on a node, by the Job's namespace and name.
func jobsOn(n *state.NodeInfo) map[string][]*state.PodInfo {
	var out map[string][]*state.PodInfo
	for _, p := range n.Pods {
		if owner := metav1.GetControllerOfNoCopy(p.Pod); owner != nil && owner.Kind == "Job" {
			if out == nil {
				out = map[string][]*state.PodInfo{}
			}
			key := p.Pod.Namespace + "/" + owner.Name
			out[key] = append(out[key], p)
		}
	}
	return out
}

// Preemption returns the victims of the preemption of a pod or group.
func Preemption(p *framework.Preemption) *mark.Preemption {
	if p == nil {
		return nil
	}
	out := &mark.Preemption{
		Node: p.Node, Count: len(p.Victims), PDBViolations: p.PDBViolations, Reprieved: p.Reprieved, Candidates: p.Candidates, RunnerUp: p.RunnerUp, Why: p.Why,
	}
	for _, v := range p.Victims[:min(len(p.Victims), maxVictims)] {
		out.Victims = append(out.Victims, mark.Victim{Namespace: v.Pod.Namespace, Name: v.Pod.Name, Priority: v.Priority})
	}
	return out
}
