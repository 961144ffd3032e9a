// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"context"
	"errors"
	"net/url"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podkind "keelson/api/core/pod"
	"keelson/api/decisions"
	"keelson/timeline/cause"
	"keelson/timeline/story"
	"keelson/timeline/text"
)

// Pod says why a pod is on its node, or on none, or not Ready: from the scheduler's decision and, if needed, related
// objects and events. For a pod that is deleted or may not be read there is no Around.
func (c *Caller) Pod(ctx context.Context, name string) (*story.Why, *text.Around, error) {
	why := &story.Why{}
	at := url.PathEscape(c.Namespace) + "/" + url.PathEscape(name)
	asked := c.read(ctx, "/keelson/v1/why/"+at, why)
	foreign := errors.Is(asked, ErrForeign)
	withheld := apierrors.IsForbidden(asked)
	if asked != nil && !apierrors.IsNotFound(asked) && !foreign && !withheld {
		return nil, nil, asked
	}
	around := &text.Around{
		Pod:      &corev1.Pod{},
		Foreign:  foreign,
		Withheld: withheld,
		Now:      time.Now(),
	}
	err := c.read(ctx, "/api/v1/namespaces/"+url.PathEscape(c.Namespace)+"/pods/"+url.PathEscape(name), around.Pod)
	switch {
	case err != nil && (foreign || withheld):
		return nil, nil, err
	case err != nil && asked != nil:
		return nil, nil, c.Unknown(ctx, name, asked)
	case err != nil:
		if apierrors.IsNotFound(err) { // else the user may not read it: the stored decision is still shown
			why.Vanished(time.Now())
		}
		return why, nil, nil
	}
	if asked != nil {
		why.Namespace = c.Namespace
		why.Name = name
		why.Partial = true
	}
	if node := around.Pod.Spec.NodeName; node != "" {
		around.Node = &corev1.Node{}
		if err := c.read(ctx, "/api/v1/nodes/"+url.PathEscape(node), around.Node); err != nil {
			around.Node = nil
			around.NodeGone = apierrors.IsNotFound(err)
		}
		if !podkind.Ready(around.Pod) || around.Pod.DeletionTimestamp != nil {
			c.unready(ctx, around)
		}
	} else {
		around.Group = c.group(ctx, around.Pod)
		if why.Decision == nil {
			around.Scheduler = c.scheduler(ctx)
		} else {
			around.Refusing = c.refusing(ctx, why.Decision)
		}
	}
	text.Explain(why, around)
	if asked != nil && why.Reason == "" {
		return nil, nil, c.Unknown(ctx, name, asked)
	}
	return why, around, nil
}

// refusing is what helps a node that refused the pod because Kubernetes has tainted it: for pressure on its disk, for a
// silent kubelet. The scheduler does not propose tolerations of such taints. Only the first nodes are looked at.
func (c *Caller) refusing(ctx context.Context, decision *decisions.Attempt) []string {
	const most = 3
	looked := 0
	for i := range decision.Refusals {
		r := &decision.Refusals[i]
		if r.Plugin != "TaintToleration" || looked == most {
			continue
		}
		looked++
		node := &corev1.Node{}
		if c.read(ctx, "/api/v1/nodes/"+url.PathEscape(r.Node), node) != nil || !cause.InTrouble(node) {
			continue
		}
		var out []string
		for _, next := range c.node(ctx, node).Next {
			out = append(out, "for node "+node.Name+": "+next)
		}
		return out
	}
	return nil
}

// Waits is why the pod of a story is not Ready, though it may have been; empty: it is, or unknown.
func (c *Caller) Waits(ctx context.Context, s *story.Story) string {
	w, a, err := c.Pod(ctx, s.Name)
	if err != nil || a == nil || string(a.Pod.UID) != s.UID && s.UID != "" {
		return ""
	}
	return text.Waits(w, a)
}

// unready reads what may keep a pod with a node from being Ready, or from its end.
func (c *Caller) unready(ctx context.Context, around *text.Around) {
	c.events(ctx, around)
	if len(podkind.Claims(around.Pod)) > 0 {
		around.Attachments = c.attachments(ctx, around.Pod)
	}
	by := metav1.GetControllerOf(around.Pod)
	if by == nil || by.Kind != "StatefulSet" {
		return
	}
	var set appsv1.StatefulSet
	var list corev1.PodList
	ns := url.PathEscape(c.Namespace)
	if c.read(ctx, "/apis/apps/v1/namespaces/"+ns+"/statefulsets/"+url.PathEscape(by.Name), &set) != nil ||
		c.read(ctx, c.inNamespace("pods"), &list) != nil {
		return
	}
	update, waitsFor := cause.Update(&set, ownedBy(list.Items, map[types.UID]bool{by.UID: true}))
	if waitsFor == around.Pod.Name {
		around.Update = update
	}
}

// events reads the Warning events about a pod, and those about containers that its kubelet ends. Those of a static pod
// name it by the UID in its mirror's annotation.
func (c *Caller) events(ctx context.Context, around *text.Around) {
	p := around.Pod
	query := url.Values{"fieldSelector": {"involvedObject.kind=Pod,involvedObject.name=" + p.Name}}
	var list corev1.EventList
	if c.read(ctx, c.inNamespace("events")+"?"+query.Encode(), &list) != nil {
		return
	}
	for i := range list.Items {
		event := &list.Items[i]
		uid := string(event.InvolvedObject.UID)
		switch {
		case uid != string(p.UID) && uid != p.Annotations[corev1.MirrorPodAnnotationKey]:
		case event.Type == corev1.EventTypeWarning:
			around.Warnings = append(around.Warnings, text.WarningOf(event))
		case event.Reason == text.ReasonKilling:
			around.Kills = append(around.Kills, text.WarningOf(event))
		}
	}
}

// attachments are the pod's volumes that wait for their VolumeAttachment to its node.
func (c *Caller) attachments(ctx context.Context, pod *corev1.Pod) []text.Attachment {
	var all storagev1.VolumeAttachmentList
	if c.read(ctx, "/apis/storage.k8s.io/v1/volumeattachments", &all) != nil {
		return nil
	}
	waiting := map[string]*storagev1.VolumeAttachment{} // by PersistentVolume
	for i := range all.Items {
		a := &all.Items[i]
		if pv := a.Spec.Source.PersistentVolumeName; pv != nil && a.Spec.NodeName == pod.Spec.NodeName &&
			!a.Status.Attached {
			waiting[*pv] = a
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	var out []text.Attachment
	for i := range pod.Spec.Volumes {
		name := podkind.ClaimName(pod, &pod.Spec.Volumes[i])
		var claim corev1.PersistentVolumeClaim
		if name == "" || c.read(ctx, c.inNamespace("persistentvolumeclaims/"+url.PathEscape(name)), &claim) != nil {
			continue
		}
		a := waiting[claim.Spec.VolumeName]
		if a == nil {
			continue
		}
		wait := text.Attachment{
			Name:     a.Name,
			Attacher: a.Spec.Attacher,
			Volume:   pod.Spec.Volumes[i].Name,
			Claim:    name,
		}
		if e := a.Status.AttachError; e != nil {
			wait.Error = e.Message
		}
		out = append(out, wait)
	}
	return out
}

// group is the state of a pod's PodGroup; nil: it has none, or it may not be read.
func (c *Caller) group(ctx context.Context, pod *corev1.Pod) *text.Group {
	name := podkind.Group(pod)
	if name == "" {
		return nil
	}
	g := &text.Group{Name: name, MinCount: 1}
	o := &schedulingv1beta1.PodGroup{}
	err := c.read(ctx, "/apis/scheduling.k8s.io/v1beta1/namespaces/"+url.PathEscape(c.Namespace)+"/podgroups/"+
		url.PathEscape(name), o)
	if g.Missing = apierrors.IsNotFound(err); g.Missing {
		return g
	}
	var pods corev1.PodList
	if err != nil || c.read(ctx, "/api/v1/namespaces/"+url.PathEscape(c.Namespace)+"/pods", &pods) != nil {
		return nil
	}
	if gang := o.Spec.SchedulingPolicy.Gang; gang != nil {
		g.MinCount = int(gang.MinCount)
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; podkind.Group(p) == name && !podkind.Terminal(p) &&
			(p.DeletionTimestamp == nil || p.Spec.NodeName != "") {
			g.Pods++
		}
	}
	return g
}

// scheduler is what is wrong with the scheduler; empty: nothing known.
func (c *Caller) scheduler(ctx context.Context) string { return c.component(ctx, "scheduler", "") }

// component is what is wrong with a control plane component, with a prefix; empty: nothing known.
func (c *Caller) component(ctx context.Context, name, lead string) string {
	var s corev1.ComponentStatus
	if c.read(ctx, "/api/v1/componentstatuses/"+name, &s) != nil {
		return ""
	}
	for _, condition := range s.Conditions {
		if condition.Type == corev1.ComponentHealthy && condition.Status != corev1.ConditionTrue {
			return lead + condition.Message + condition.Error
		}
	}
	return ""
}
