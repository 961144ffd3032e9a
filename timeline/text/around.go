// SPDX-License-Identifier: Apache-2.0

package text

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	podapi "keelson/api/core/pod"
	"keelson/lib/words"
	"keelson/timeline/story"
)

// defaultScheduler is the name of Keelson's scheduler in spec.schedulerName.
const defaultScheduler = "default-scheduler"

// Around holds API objects that explain why a pod waits, or is not Ready.
type Around struct {
	Pod *corev1.Pod
	// Node is the pod's node; nil: it has none, or it may not be read. NodeGone means that it does not exist.
	Node     *corev1.Node
	NodeGone bool
	// Warnings are the Warning events about a pod that has a node, Kills those about containers that its kubelet ended.
	Warnings, Kills []Warning
	// Attachments are the volumes of a pod that are not attached to its node yet.
	Attachments []Attachment
	// Update says that the update of its StatefulSet waits for the pod; empty: it does not, or the pod has none.
	Update string
	// Now is the time of the question.
	Now time.Time

	killed []story.ProbeKill
	// Group is the pod group of a pod without a node; nil: none, or unknown.
	Group *Group
	// Refusing is what helps a node that refused a pod without a node; empty: unknown, or the scheduler proposes more.
	Refusing []string
	// Scheduler is what is wrong with Keelson's scheduler; empty: nothing known.
	Scheduler string
	// Foreign means that the API server is not Keelson's: it has no marks. Withheld means that the user may not read
	// them.
	Foreign, Withheld bool
}

// Names in the objects of fake nodes (simulate).
const (
	simulatedBy = "keelson.dev/simulated-by"
	fakeTaint   = "keelson.dev/fake"
)

// fake says that nothing runs on a fake node; empty: the pod's node is none.
func (a *Around) fake() string {
	if a.Node == nil || a.Node.Annotations[simulatedBy] == "" {
		return ""
	}
	return fmt.Sprintf("node %s is a fake node: nothing runs there, and the pod is Running in name only, without "+
		"logs, exec and packets", a.Node.Name)
}

// Attachment is a volume whose VolumeAttachment to the pod's node is not attached.
type Attachment struct {
	Name, Attacher string // of the VolumeAttachment
	Volume, Claim  string
	Error          string // the attacher's last; empty: none
}

// Waits explains what keeps the pod from being Ready: why it has no node, or what its kubelet says, or why it is
// still there though it is deleted; empty: it is Ready or has ended. Explain comes first.
func Waits(w *story.Why, a *Around) string {
	switch decision := w.Decision; {
	case w.Gone, a.Pod == nil:
	case a.Pod.DeletionTimestamp != nil:
		return strings.Join(w.Terminating, "; ")
	case podapi.Terminal(a.Pod):
	case a.NodeGone:
		return fmt.Sprintf("there is no node %s, so nothing runs it", a.Pod.Spec.NodeName)
	case a.Pod.Spec.NodeName != "":
		return strings.Join(w.NotReady, "; ")
	case w.Pending != "":
		return w.Pending
	case w.Reason != "":
		return w.Reason
	case decision == nil:
		return "the scheduler has not tried it yet"
	case decision.Message != "" && w.Next != "":
		return strings.TrimSuffix(decision.Message, ".") + "; it is tried again when " + w.Next
	default:
		return decision.Message
	}
	return ""
}

// Group is the state of a pod group.
type Group struct {
	Name           string
	Missing        bool
	Pods, MinCount int
}

// waits explains why the scheduler does not try the group's pods yet; empty: it does.
func (g *Group) waits() string {
	switch {
	case g == nil:
		return ""
	case g.Missing:
		return fmt.Sprintf("it waits for its pod group %s, which does not exist", g.Name)
	case g.Pods < g.MinCount:
		return fmt.Sprintf("waits for %s of group %s (%d of %d)", words.Count(g.MinCount-g.Pods, "more pod"),
			g.Name, g.Pods, g.MinCount)
	}
	return ""
}

// Explain sets w.NotReady, w.Terminating and w.Help, and w.Reason when no decision of Keelson's scheduler explains the
// pod's node: none was requested or none was needed.
func Explain(w *story.Why, around *Around) {
	pod := around.Pod
	// more useful than who deletes the pod afterwards
	if s := &pod.Status; s.Phase == corev1.PodFailed && s.Reason != "" {
		w.Ended = s.Reason
		if s.Message != "" {
			w.Ended += ": " + s.Message
		}
	}
	around.killed = w.KilledBy
	if pod.Status.Phase == corev1.PodSucceeded && w.Ended == "" {
		w.Ended = around.endedByProbes()
	}
	w.Fake = around.fake()
	w.NotReady = around.notReady()
	terminating(w, around)
	w.Help = around.help()
	node := pod.Spec.NodeName
	gone := ""
	if around.NodeGone {
		gone = fmt.Sprintf("; there is no node %s, so nothing runs it, and the pod garbage collector will delete it",
			node)
	}
	switch decision := w.Decision; {
	case node != "" && decision != nil && decision.Node == node:
		if gone != "" {
			w.Reason = "on " + node + gone
		}
	case node != "" && pod.Annotations[corev1.MirrorPodAnnotationKey] != "":
		w.Node = node
		w.Reason = fmt.Sprintf("on %s: a static pod, which its kubelet read from a file; no scheduler was asked%s",
			node, gone)
	case node != "" && around.Foreign:
		w.Node = node
		w.Reason = "on " + node + ": the API server is not Keelson's and has no record of why" + gone
	case node != "" && around.Withheld:
		w.Node = node
		w.Reason = "on " + node + ": the scheduler's decision takes the right to get the path /keelson/v1/why" + gone
	case node != "" && w.BoundBy != "" && w.BoundBy != story.SchedulerUser:
		w.Node = node
		w.Reason = fmt.Sprintf("on %s: bound by %s, not by the scheduler%s", node, w.BoundBy, gone)
	case node != "" && w.BoundBy == "" && !w.Partial:
		w.Node = node
		w.Reason = fmt.Sprintf("on %s: its spec.nodeName said so when it was made; no scheduler was asked%s", node,
			gone)
	case node != "":
		w.Node = node
		w.Reason = "on " + node + ": what the scheduler thought of it is not remembered; it was made before this " +
			"server started, or long ago" + gone
	default:
		w.Pending = around.pending(w)
		if w.Pending != "" {
			w.Reason = "Pending: " + w.Pending
		}
	}
}

// pending explains why a pod has no node; empty: a decision of Keelson's scheduler does, or it has not tried yet.
func (a *Around) pending(w *story.Why) string {
	pod := a.Pod
	switch {
	case len(pod.Spec.SchedulingGates) > 0:
		names := make([]string, len(pod.Spec.SchedulingGates))
		for i, g := range pod.Spec.SchedulingGates {
			names[i] = g.Name
		}
		return fmt.Sprintf("held back by its scheduling gates (%s); it is scheduled once "+
			"spec.schedulingGates is empty", strings.Join(names, ", "))
	case a.Group.waits() != "":
		return a.Group.waits()
	case a.Foreign:
		return otherScheduler(pod) + " (the API server is not Keelson's: it has no record of each node)"
	case a.Withheld:
		return otherScheduler(pod)
	case cmp.Or(pod.Spec.SchedulerName, defaultScheduler) != defaultScheduler && w.Since.IsZero() && w.Decision == nil:
		// no profile of Keelson's scheduler has it
		return otherScheduler(pod)
	case w.Decision == nil && a.Scheduler != "":
		return "the scheduler does not work: " + a.Scheduler
	}
	return ""
}

// otherScheduler explains why a pod of a scheduler that is not Keelson's has no node.
func otherScheduler(p *corev1.Pod) string {
	if c := podapi.Condition(p, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse &&
		c.Reason != corev1.PodReasonSchedulingGated && c.Message != "" {
		return fmt.Sprintf("the scheduler %q found no node for it: %s", p.Spec.SchedulerName,
			strings.TrimSuffix(c.Message, "."))
	}
	return fmt.Sprintf("it waits for the scheduler %q, which has not bound it; does one of that name run?",
		p.Spec.SchedulerName)
}
