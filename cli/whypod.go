// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"keelson/timeline/cause"
	"keelson/timeline/story"
	"keelson/timeline/text"
)

func (f *storyFlags) why(ctx context.Context, name string) (*story.Why, error) {
	w, _, err := f.whyAround(ctx, name)
	return w, err
}

// whyAround reads the scheduler's decision about a pod and, if needed, related objects and events. For a pod that is
// deleted or may not be read there is no Around.
func (f *storyFlags) whyAround(ctx context.Context, name string) (*story.Why, *text.Around, error) {
	why := &story.Why{}
	at := url.PathEscape(f.namespace) + "/" + url.PathEscape(name)
	asked := f.read(ctx, "/keelson/v1/why/"+at, why)
	foreign := errors.Is(asked, errForeign)
	if asked != nil && !apierrors.IsNotFound(asked) && !foreign {
		return nil, nil, asked
	}
	around := &text.Around{Pod: &corev1.Pod{}, Foreign: foreign, Now: time.Now()}
	err := f.read(ctx, "/api/v1/namespaces/"+url.PathEscape(f.namespace)+"/pods/"+url.PathEscape(name), around.Pod)
	switch {
	case err != nil && foreign:
		return nil, nil, err
	case err != nil && asked != nil:
		return nil, nil, f.unknown(ctx, name, asked)
	case err != nil:
		if apierrors.IsNotFound(err) { // else the user may not read it: the stored decision is still shown
			why.Vanished(time.Now())
		}
		return why, nil, nil
	}
	if asked != nil {
		why.Namespace = f.namespace
		why.Name = name
		why.Partial = true
	}
	if node := around.Pod.Spec.NodeName; node != "" {
		around.Node = &corev1.Node{}
		if err := f.read(ctx, "/api/v1/nodes/"+url.PathEscape(node), around.Node); err != nil {
			around.Node = nil
			around.NodeGone = apierrors.IsNotFound(err)
		}
		if !podkind.Ready(around.Pod) || around.Pod.DeletionTimestamp != nil {
			f.unready(ctx, around)
		}
	} else {
		around.Group = f.group(ctx, around.Pod)
		if why.Decision == nil {
			around.Scheduler = f.scheduler(ctx)
		}
	}
	text.Explain(why, around)
	if asked != nil && why.Reason == "" {
		return nil, nil, f.unknown(ctx, name, asked)
	}
	return why, around, nil
}

// waits is why the pod of a story is not Ready, though it may have been; empty: it is, or unknown.
func (f *storyFlags) waits(ctx context.Context, s *story.Story) string {
	w, a, err := f.whyAround(ctx, s.Name)
	if err != nil || a == nil || string(a.Pod.UID) != s.UID && s.UID != "" {
		return ""
	}
	return text.Waits(w, a)
}

// unready reads what may keep a pod with a node from being Ready, or from its end.
func (f *storyFlags) unready(ctx context.Context, around *text.Around) {
	f.events(ctx, around)
	if len(podkind.Claims(around.Pod)) > 0 {
		around.Attachments = f.attachments(ctx, around.Pod)
	}
	by := metav1.GetControllerOf(around.Pod)
	if by == nil || by.Kind != "StatefulSet" {
		return
	}
	var set appsv1.StatefulSet
	var list corev1.PodList
	ns := url.PathEscape(f.namespace)
	if f.read(ctx, "/apis/apps/v1/namespaces/"+ns+"/statefulsets/"+url.PathEscape(by.Name), &set) != nil ||
		f.read(ctx, f.inNamespace("pods"), &list) != nil {
		return
	}
	update, waitsFor := cause.Update(&set, ownedBy(list.Items, map[types.UID]bool{by.UID: true}))
	if waitsFor == around.Pod.Name {
		around.Update = update
	}
}

// events reads the Warning events about a pod, and those about containers that its kubelet ends. Those of a static pod
// name it by the UID in its mirror's annotation.
func (f *storyFlags) events(ctx context.Context, around *text.Around) {
	p := around.Pod
	query := url.Values{"fieldSelector": {"involvedObject.kind=Pod,involvedObject.name=" + p.Name}}
	var list corev1.EventList
	if f.read(ctx, f.inNamespace("events")+"?"+query.Encode(), &list) != nil {
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
func (f *storyFlags) attachments(ctx context.Context, pod *corev1.Pod) []text.Attachment {
	var all storagev1.VolumeAttachmentList
	if f.read(ctx, "/apis/storage.k8s.io/v1/volumeattachments", &all) != nil {
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
		if name == "" || f.read(ctx, f.inNamespace("persistentvolumeclaims/"+url.PathEscape(name)), &claim) != nil {
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
func (f *storyFlags) group(ctx context.Context, pod *corev1.Pod) *text.Group {
	name := podkind.Group(pod)
	if name == "" {
		return nil
	}
	g := &text.Group{Name: name, MinCount: 1}
	o := &schedulingv1beta1.PodGroup{}
	err := f.read(ctx, "/apis/scheduling.k8s.io/v1beta1/namespaces/"+url.PathEscape(f.namespace)+"/podgroups/"+
		url.PathEscape(name), o)
	if g.Missing = apierrors.IsNotFound(err); g.Missing {
		return g
	}
	var pods corev1.PodList
	if err != nil || f.read(ctx, "/api/v1/namespaces/"+url.PathEscape(f.namespace)+"/pods", &pods) != nil {
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
func (f *storyFlags) scheduler(ctx context.Context) string { return f.component(ctx, "scheduler", "") }

// component is what is wrong with a control plane component, with a prefix; empty: nothing known.
func (f *storyFlags) component(ctx context.Context, name, lead string) string {
	var s corev1.ComponentStatus
	if f.read(ctx, "/api/v1/componentstatuses/"+name, &s) != nil {
		return ""
	}
	for _, c := range s.Conditions {
		if c.Type == corev1.ComponentHealthy && c.Status != corev1.ConditionTrue {
			return lead + c.Message + c.Error
		}
	}
	return ""
}

// read gets an object from the API server.
func (f *storyFlags) read(ctx context.Context, path string, into any) error {
	body, err := f.get(ctx, path)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}
