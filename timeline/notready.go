// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	podapi "keelson/api/core/pod"
)

const (
	// mostReasons bounds how many reasons are told, and mostMessage the bytes of a message.
	mostReasons = 8
	mostMessage = 512
)

// Warning is a Warning event about a pod.
type Warning struct {
	Reason, Message string
	Container       string // its name; empty: the event is about the pod
	Count           int32
	Last            time.Time
}

// WarningOf is what an event says. It may have been recorded in either form: with a count, or as a series.
func WarningOf(event *corev1.Event) Warning {
	warning := Warning{
		Reason:  event.Reason,
		Message: event.Message,
		Count:   max(event.Count, 1),
		Last:    event.LastTimestamp.Time,
	}
	if event.Series != nil {
		warning.Count = max(event.Series.Count, 1)
		warning.Last = event.Series.LastObservedTime.Time
	}
	if warning.Last.IsZero() {
		warning.Last = event.EventTime.Time
	}
	if _, name, ok := strings.Cut(event.InvolvedObject.FieldPath, "{"); ok {
		warning.Container = strings.TrimSuffix(name, "}")
	}
	return warning
}

// reasons collects why a pod that has a node is not Ready.
type reasons struct {
	a   *Around
	out []string
}

// notReady says why a pod that has a node is not Ready, in the words of its kubelet: what containers wait for, failed
// probes, readiness gates. It is empty for a pod that is Ready, has succeeded, is being deleted, or has no node.
func (a *Around) notReady() []string {
	pod := a.Pod
	if pod.Spec.NodeName == "" || a.NodeGone || pod.DeletionTimestamp != nil || podapi.Ready(pod) ||
		pod.Status.Phase == corev1.PodSucceeded ||
		pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "" { // that is how it ended
		return nil
	}
	r := &reasons{a: a}
	if c := a.nodeCondition(); c != nil && c.Status != corev1.ConditionTrue {
		r.add("its node %s is not Ready, so this may be old: %s", pod.Spec.NodeName, c.Message)
	}
	if !r.initContainers() {
		r.containers()
	}
	if c := podapi.Condition(pod, corev1.PodReady); c != nil && c.Reason == "ReadinessGatesNotReady" {
		r.add("its containers are ready, but %s", c.Message)
	}
	if len(r.out) > mostReasons {
		r.out = append(r.out[:mostReasons], fmt.Sprintf("and %d more", len(r.out)-mostReasons))
	}
	return r.out
}

func (a *Around) nodeCondition() *corev1.NodeCondition {
	if a.Node == nil {
		return nil
	}
	i := slices.IndexFunc(a.Node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady
	})
	if i < 0 {
		return nil
	}
	return &a.Node.Status.Conditions[i]
}

func (r *reasons) add(format string, args ...any) {
	r.out = append(r.out, clean(fmt.Sprintf(format, args...)))
}

// initContainers tells of the first init container that is not done; the others and the containers wait for it.
func (r *reasons) initContainers() bool {
	p := r.a.Pod
	for i := range p.Spec.InitContainers {
		container := &p.Spec.InitContainers[i]
		sidecar := container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways
		status := statusOf(p.Status.InitContainerStatuses, container.Name)
		name := fmt.Sprintf("init container %s (%d of %d)", container.Name, i+1, len(p.Spec.InitContainers))
		switch {
		case status == nil:
			continue // its kubelet has not reported it
		case sidecar && status.Ready && started(status), !sidecar && status.State.Terminated != nil &&
			status.State.Terminated.ExitCode == 0:
			continue
		case sidecar && started(status):
			r.container(name, container, status) // the containers start beside it
			continue
		case notCreated(status):
			r.creating(name+" is", []string{container.Name})
		case status.State.Running != nil && !sidecar:
			text := fmt.Sprintf("%s runs since %s; the containers start after it", name,
				status.State.Running.StartedAt.Local().Format(time.TimeOnly))
			if last := status.LastTerminationState.Terminated; last != nil {
				text += "; its last run " + ended(last)
			}
			r.add("%s", text)
		default:
			r.container(name, container, status)
		}
		return true
	}
	return false
}

func (r *reasons) containers() {
	p := r.a.Pod
	if len(p.Status.ContainerStatuses) == 0 && r.newest(aboutPod) == nil {
		r.add("the kubelet of its node %s has not reported anything about it yet", p.Spec.NodeName)
		return
	}
	var creating []string
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		s := statusOf(p.Status.ContainerStatuses, c.Name)
		if s == nil || notCreated(s) {
			creating = append(creating, c.Name)
		} else if !s.Ready {
			r.container("container "+c.Name, c, s)
		}
	}
	switch len(creating) {
	case 0:
	case 1:
		r.creating("container "+creating[0]+" is", creating)
	default:
		r.creating("containers "+strings.Join(creating, ", ")+" are", creating)
	}
}

// notCreated reports whether a container waits for its first creation, and its kubelet gives no reason.
func notCreated(s *corev1.ContainerStatus) bool {
	w := s.State.Waiting
	return w != nil && w.Message == "" && (w.Reason == "" || w.Reason == "ContainerCreating" ||
		w.Reason == "PodInitializing")
}

// creating tells of containers that are not created yet, with the newest warning: about volumes, devices, the sandbox,
// an image.
func (r *reasons) creating(what string, names []string) {
	if w := r.newest(func(w *Warning) bool { return aboutPod(w) || slices.Contains(names, w.Container) }); w != nil {
		r.add("%s not created yet: %s: %s", what, w.Reason, w.text())
		return
	}
	r.add("%s being created", what)
}

// aboutPod reports whether a warning is about a pod that has a node, and not about one of its containers.
func aboutPod(w *Warning) bool { return w.Container == "" && w.Reason != "FailedScheduling" }

// container tells why a container is not ready.
func (r *reasons) container(name string, ctr *corev1.Container, status *corev1.ContainerStatus) {
	switch st := status.State; {
	case st.Waiting != nil:
		text := name + " waits: " + cmp.Or(st.Waiting.Reason, "ContainerCreating")
		if st.Waiting.Message != "" {
			text += ": " + short(st.Waiting.Message)
		}
		if last := status.LastTerminationState.Terminated; last != nil {
			text += "; its last run " + ended(last)
		}
		r.add("%s", text)
	case st.Terminated != nil:
		r.add("%s %s", name, ended(st.Terminated))
	case st.Running != nil && !started(status) && ctr.StartupProbe != nil:
		r.probe(name, ctr.Name, "Startup")
	case st.Running != nil && ctr.ReadinessProbe != nil:
		r.probe(name, ctr.Name, "Readiness")
	default:
		r.add("%s is not ready", name)
	}
}

// probe tells what the last attempt of a probe that fails has got.
func (r *reasons) probe(name, container, kind string) {
	w := r.newest(func(w *Warning) bool {
		return w.Container == container && w.Reason == "Unhealthy" && strings.HasPrefix(w.Message, kind+" probe")
	})
	if w == nil {
		r.add("%s runs, and its %s probe has not succeeded yet", name, strings.ToLower(kind))
		return
	}
	r.add("%s runs, but is not ready: %s", name, w.text())
}

func (r *reasons) newest(about func(*Warning) bool) (newest *Warning) {
	for i := range r.a.Warnings {
		if w := &r.a.Warnings[i]; about(w) && (newest == nil || w.Last.After(newest.Last)) {
			newest = w
		}
	}
	return newest
}

// text is the event's message, with how often and when it was recorded.
func (w *Warning) text() string {
	times := ""
	if w.Count > 1 {
		times = fmt.Sprintf("%d times, ", w.Count)
	}
	return fmt.Sprintf("%s (%slast at %s)", strings.TrimRight(short(w.Message), ". \n"), times,
		w.Last.Local().Format(time.TimeOnly))
}

func ended(t *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("ended with exit code %d", t.ExitCode)
	if t.Reason != "" {
		text += " (" + t.Reason + ")"
	}
	if t.Message != "" {
		text += ": " + short(strings.TrimSpace(t.Message))
	}
	return text
}

func short(text string) string {
	if len(text) <= mostMessage {
		return text
	}
	return strings.ToValidUTF8(text[:mostMessage], "") + "..."
}

func started(s *corev1.ContainerStatus) bool { return s.Started != nil && *s.Started }

func statusOf(list []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	i := slices.IndexFunc(list, func(s corev1.ContainerStatus) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &list[i]
}
