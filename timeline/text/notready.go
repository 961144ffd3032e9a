// SPDX-License-Identifier: Apache-2.0

package text

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
	// mostReasons bounds the number of reasons, and mostMessage the bytes of a message.
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

// ReasonKilling is the reason of the events by which a kubelet says why it ends a container.
const ReasonKilling = "Killing"

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
	if a.Update != "" {
		r.add("%s", a.Update)
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

// initContainers explains the first init container that is not done; the others and the containers wait for it.
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
			r.container(name, container, status) // the containers start while it runs
			continue
		case notCreated(status):
			r.attachments()
			r.creating(name+" is", []string{container.Name})
		case status.State.Running != nil && !sidecar:
			text := fmt.Sprintf("%s runs since %s; the containers start after it", name,
				status.State.Running.StartedAt.Local().Format(time.TimeOnly))
			r.add("%s%s", text, r.lastRun(container.Name, status))
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
	if len(creating) > 0 {
		r.attachments()
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

// creating explains containers that are not created yet, with the newest warning: about volumes, devices, the sandbox,
// an image.
func (r *reasons) creating(what string, names []string) {
	if w := r.newest(func(w *Warning) bool { return aboutPod(w) || slices.Contains(names, w.Container) }); w != nil {
		r.add("%s not created yet: %s: %s", what, w.Reason, w.text())
		return
	}
	r.add("%s being created", what)
}

// attachments lists volumes that are not attached to the node yet.
func (r *reasons) attachments() {
	for _, a := range r.a.Attachments {
		text := fmt.Sprintf("volume %s (claim %s) is not attached to node %s: VolumeAttachment %s waits for the "+
			"attacher %s", a.Volume, a.Claim, r.a.Pod.Spec.NodeName, a.Name, a.Attacher)
		if a.Error != "" {
			text += ": " + short(a.Error)
		}
		r.add("%s", text)
	}
}

// aboutPod reports whether a warning is about a pod that has a node, and not about one of its containers.
func aboutPod(w *Warning) bool { return w.Container == "" && w.Reason != "FailedScheduling" }

// container explains why a container is not ready.
func (r *reasons) container(name string, ctr *corev1.Container, status *corev1.ContainerStatus) {
	switch st := status.State; {
	case st.Waiting != nil:
		text := name + " waits: " + cmp.Or(st.Waiting.Reason, "ContainerCreating")
		if st.Waiting.Message != "" {
			text += ": " + short(st.Waiting.Message)
		}
		r.add("%s%s", text, r.lastRun(ctr.Name, status))
	case st.Terminated != nil:
		r.add("%s %s", name, r.ended(ctr.Name, st.Terminated))
	case st.Running != nil && !started(status) && ctr.StartupProbe != nil:
		r.probe(name, status, "Startup")
	case st.Running != nil && ctr.ReadinessProbe != nil:
		r.probe(name, status, "Readiness")
	default:
		r.add("%s is not ready", name)
	}
}

// probe describes the last attempt of a failing probe.
func (r *reasons) probe(name string, status *corev1.ContainerStatus, kind string) {
	last := ""
	if end := status.LastTerminationState.Terminated; end != nil && r.killedBy(status.Name, end) != "" {
		last = r.lastRun(status.Name, status)
	}
	w := r.unhealthy(status.Name, kind)
	if w == nil {
		r.add("%s runs, and its %s probe has not succeeded yet%s", name, strings.ToLower(kind), last)
		return
	}
	r.add("%s runs, but is not ready: %s%s", name, w.text(), last)
}

// unhealthy is the newest failure of a container's probe; nil: none is known.
func (r *reasons) unhealthy(container, kind string) *Warning {
	return r.newest(func(w *Warning) bool {
		return w.Container == container && w.Reason == "Unhealthy" && strings.HasPrefix(w.Message, kind+" probe")
	})
}

// lastRun says how the run of a container before the current one ended; empty: there was none.
func (r *reasons) lastRun(container string, status *corev1.ContainerStatus) string {
	last := status.LastTerminationState.Terminated
	if last == nil {
		return ""
	}
	return "; its last run " + r.ended(container, last)
}

// ended says how a run of a container ended. A probe that made the kubelet end it comes before the exit code: a program
// that ends well when it is asked to has the exit code 0.
func (r *reasons) ended(container string, run *corev1.ContainerStateTerminated) string {
	if by := r.killedBy(container, run); by != "" {
		return "was killed by its kubelet: " + by + "; it " + ended(run)
	}
	return ended(run)
}

// killedBy says which probe's failure made the kubelet end a run, from what the kubelet has recorded, else from events:
// a kubelet drops events where there are many. Empty: none is known.
func (r *reasons) killedBy(container string, run *corev1.ContainerStateTerminated) string {
	const late = 2 * time.Second // times in a status have whole seconds
	during := func(at time.Time) bool {
		return !at.Before(run.StartedAt.Truncate(time.Second)) && !at.After(run.FinishedAt.Add(late))
	}
	for _, k := range r.a.killed {
		if k.Container == container && during(k.At) {
			return fmt.Sprintf("its %s probe %s", k.Probe, k.Result)
		}
	}
	for i := range r.a.Kills {
		kill := &r.a.Kills[i]
		if kill.Container != container || !during(kill.Last) {
			continue
		}
		for _, kind := range []string{"Liveness", "Startup"} {
			if !strings.Contains(kill.Message, "failed "+strings.ToLower(kind)+" probe") {
				continue
			}
			if w := r.unhealthy(container, kind); w != nil {
				return w.text()
			}
			return kind + " probe failed"
		}
	}
	return ""
}

// endedByProbes says which containers of a pod that succeeded were ended because of a probe; empty: none.
func (a *Around) endedByProbes() string {
	r := &reasons{a: a}
	var out []string
	for i := range a.Pod.Status.ContainerStatuses {
		status := &a.Pod.Status.ContainerStatuses[i]
		if run := status.State.Terminated; run != nil && r.killedBy(status.Name, run) != "" {
			out = append(out, "container "+status.Name+" "+r.ended(status.Name, run))
		}
	}
	return strings.Join(out, "; ")
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
	return fmt.Sprintf("%s (%slast at %s)", strings.TrimRight(short(w.Message), ".: \n"), times,
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
