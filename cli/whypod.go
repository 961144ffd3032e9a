// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	podkind "keelson/api/core/pod"
	"keelson/timeline"
)

func (f *storyFlags) why(ctx context.Context, name string) (*timeline.Why, error) {
	w, _, err := f.whyAround(ctx, name)
	return w, err
}

// whyAround reads the scheduler's decision about a pod and, if needed, related objects and events. For a pod that is
// deleted or may not be read there is no Around.
func (f *storyFlags) whyAround(ctx context.Context, name string) (*timeline.Why, *timeline.Around, error) {
	why := &timeline.Why{}
	at := url.PathEscape(f.namespace) + "/" + url.PathEscape(name)
	asked := f.read(ctx, "/keelson/v1/why/"+at, why)
	foreign := errors.Is(asked, errForeign)
	if asked != nil && !apierrors.IsNotFound(asked) && !foreign {
		return nil, nil, asked
	}
	around := &timeline.Around{Pod: &corev1.Pod{}, Foreign: foreign}
	err := f.read(ctx, "/api/v1/namespaces/"+url.PathEscape(f.namespace)+"/pods/"+url.PathEscape(name), around.Pod)
	switch {
	case err != nil && foreign:
		return nil, nil, err
	case err != nil && asked != nil:
		return nil, nil, f.unknown(ctx, name, asked)
	case err != nil:
		why.Gone = apierrors.IsNotFound(err) // or the user may not read it: the stored decision is still shown
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
		if !podkind.Ready(around.Pod) {
			around.Warnings = f.warnings(ctx, around.Pod)
		}
	} else {
		around.Group = f.group(ctx, around.Pod)
		if why.Decision == nil {
			around.Scheduler = f.scheduler(ctx)
		}
	}
	why.Explain(around)
	if asked != nil && why.Reason == "" {
		return nil, nil, f.unknown(ctx, name, asked)
	}
	return why, around, nil
}

// waits is why the pod of a story is not Ready, though it may have been; empty: it is, or unknown.
func (f *storyFlags) waits(ctx context.Context, s *timeline.Story) string {
	w, a, err := f.whyAround(ctx, s.Name)
	if err != nil || a == nil || string(a.Pod.UID) != s.UID && s.UID != "" {
		return ""
	}
	return w.Waits(a)
}

// warnings are the Warning events about a pod; those of a static pod name it by the UID in its mirror's annotation.
func (f *storyFlags) warnings(ctx context.Context, p *corev1.Pod) []timeline.Warning {
	query := url.Values{"fieldSelector": {"type=Warning,involvedObject.kind=Pod,involvedObject.name=" + p.Name}}
	var list corev1.EventList
	if f.read(ctx, f.inNamespace("events")+"?"+query.Encode(), &list) != nil {
		return nil
	}
	var out []timeline.Warning
	for i := range list.Items {
		if uid := string(list.Items[i].InvolvedObject.UID); uid == string(p.UID) ||
			uid == p.Annotations[corev1.MirrorPodAnnotationKey] {
			out = append(out, timeline.WarningOf(&list.Items[i]))
		}
	}
	return out
}

// group is the state of a pod's PodGroup; nil: it has none, or it may not be read.
func (f *storyFlags) group(ctx context.Context, pod *corev1.Pod) *timeline.Group {
	name := podkind.Group(pod)
	if name == "" {
		return nil
	}
	g := &timeline.Group{Name: name, MinCount: 1}
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
