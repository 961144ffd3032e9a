// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/plugins/noderesources"
	"keelson/scheduler/state"
)

// Limits of the search for pods whose end would help.
const (
	maxJobsTried  = 64  // nodes
	maxJobPods    = 512 // pods of a node
	maxPodsTried  = 16  // with all filters
	maxPodsLooked = 512
	fitPlugin     = "NodeResourcesFit"
)

// leaves names what would make room if it left: the Job whose end would let the pod fit on most nodes, or else one pod.
func leaves(a *framework.Attempt) string {
	if job := jobToWaitFor(a); job != "" {
		return job
	}
	return podToWaitFor(a)
}

// podToWaitFor names a pod in the place of which this one would fit: the least important one of the first node that has
// any.
func podToWaitFor(attempt *framework.Attempt) string {
	tried := 0
	looked := 0
	for i := range attempt.Refused {
		refusal := &attempt.Refused[i]
		if refusal.Status.Code != framework.Unschedulable || attempt.DrainedNodes[refusal.Node.Name] {
			continue
		}
		var best *state.PodInfo
		missing := noderesources.Shortages(&attempt.Pod.Request, refusal.Node)
		for _, p := range refusal.Node.Pods {
			if looked++; looked > maxPodsLooked || tried == maxPodsTried {
				break
			}
			if comesBack(p) || !covers(p, missing) || best != nil && !lessImportant(p, best) {
				continue
			}
			tried++
			if without := []*state.PodInfo{p}; framework.Check(
				framework.AdjustedFilters(attempt.Filters, refusal.Node, nil, without), refusal.Node.With(nil,
					without)) == nil {
				best = p
			}
		}
		if best != nil {
			return fmt.Sprintf("fits on %s when pod %s is gone", refusal.Node.Name, best.Key)
		}
		if looked > maxPodsLooked || tried == maxPodsTried {
			break
		}
	}
	return ""
}

// covers reports whether a pod has what is missing on its node.
func covers(p *state.PodInfo, missing []noderesources.Shortage) bool {
	for _, s := range missing {
		uses := p.Request.Get(s.Name)
		if s.Name == corev1.ResourcePods {
			uses = 1
		}
		if s.Used-uses+s.Requested > s.Allocatable {
			return false
		}
	}
	return true
}

// comesBack reports whether a pod that leaves is recreated on the same node.
func comesBack(p *state.PodInfo) bool {
	owner := metav1.GetControllerOfNoCopy(p.Pod)
	return owner != nil && (owner.Kind == "DaemonSet" || owner.Kind == "Node")
}

// lessImportant reports whether p leaves more easily than q.
func lessImportant(p, q *state.PodInfo) bool {
	if leaving := p.Pod.DeletionTimestamp != nil; leaving != (q.Pod.DeletionTimestamp != nil) {
		return leaving
	}
	return p.Priority < q.Priority
}

// jobToWaitFor names the Job whose end would let the pod fit on most nodes.
func jobToWaitFor(attempt *framework.Attempt) string {
	nodes := map[string][]string{}
	tried := 0
	for _, r := range attempt.Refused {
		if r.Status.Plugin != fitPlugin || r.Status.Code != framework.Unschedulable || len(r.Node.Pods) > maxJobPods {
			continue
		}
		if tried++; tried > maxJobsTried {
			break
		}
		for job, pods := range jobsOn(r.Node) {
			if framework.Check(framework.AdjustedFilters(attempt.Filters, r.Node, nil, pods),
				r.Node.With(nil, pods)) == nil {
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
