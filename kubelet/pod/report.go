// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podkind "keelson/api/core/pod"
	"keelson/event"
	"keelson/kubelet/pod/decide"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/probe"
	"keelson/kubelet/runtimestate"
	"keelson/kubelet/status"
)

// The actions of the loop itself, which are in no plan. They have a turn and a back-off as the others.
const (
	opStatus = "status" // write the status
	opMirror = "mirror" // make or replace the mirror pod
)

// reported is what the worker remembers of the pod's status.
type reported struct {
	waitsSince time.Time // since when a status waits for further changes; zero: none does
	ips        []string  // of the last sandbox that was ready
}

// report brings the API's status of the pod up to date. written is true when there is nothing left to write; at is when
// a status that waits for further changes is due.
func (l *loop) report(ctx context.Context, in decide.Input, plan decide.Plan, v view) (written bool, at time.Time) {
	l.s.containers.announce(l.env.Events, in, plan)
	l.s.resizes.announce(l.env.Events, in)
	if v.gone && !l.static {
		return true, time.Time{}
	}
	if l.static {
		if done, at := l.keepMirror(ctx, v); !done {
			return v.gone, at
		}
	}
	target := v.pod
	if l.static {
		target = v.mirror
	}
	next := status.Build(l.statusInput(in, plan, v.pod))
	patch, err := status.Patch(&corev1.Pod{ObjectMeta: target.ObjectMeta, Status: target.Status}, &next)
	if err != nil {
		l.env.Log.Error("compute pod status", "pod", podinfo.FullName(v.pod), "err", err)
		return false, time.Time{}
	}
	if patch == nil {
		l.s.report.waitsSince = time.Time{}
		return !in.Flying(opStatus), time.Time{}
	}
	if in.Flying(opStatus) {
		return false, time.Time{}
	}
	if f, ok := in.Failed[opStatus]; ok && in.Now.Before(f.Retry) {
		return false, f.Retry
	}
	if until := l.s.report.wait(in, plan, l.env.StatusBatchPeriod); !until.IsZero() {
		return false, until
	}
	l.s.report.waitsSince = time.Time{}
	l.launch(ctx, decide.Action{Op: opStatus}, func(ctx context.Context) func() {
		return l.writeStatus(ctx, target, patch, &next)
	})
	return false, time.Time{}
}

func (l *loop) statusInput(in decide.Input, plan decide.Plan, pod *corev1.Pod) status.Input {
	if in.Observed.Current() != nil {
		l.s.report.ips = l.starter.podIPs(in)
	}
	si := status.Input{
		Pod:         pod,
		Observed:    in.Observed,
		ProbeResult: in.Result,
		Started:     in.Started,
		Terminal:    plan.Terminal,
		HostIPs:     l.env.HostIPs,
		PodIPs:      l.s.report.ips,
		RuntimeName: l.env.RuntimeName,
		Now:         in.Now,
		Restarting:  plan.Restarting,
		Waiting:     map[string]status.Reason{},
		TerminationMessage: func(_ *corev1.Container, c *runtimestate.Container) string {
			return l.s.containers.run(c.ID).message
		},
		Health: func(c *corev1.Container) []corev1.ResourceStatus {
			now := slices.Concat(l.env.Plugins.Health(l.uid, c.Name), l.env.Devices.Health(pod, c))
			return l.s.containers.name(c.Name).deviceHealth(now)
		},
	}
	if in.Refused != nil {
		si.ResizePending = &status.Reason{Reason: in.Refused.Reason, Message: in.Refused.Message}
	} else {
		si.Resizing = in.WantsResize()
		si.PodResizing = in.PodWantsResize()
		si.ResizeError = in.ResizeError()
	}
	for name, r := range plan.Waiting {
		si.Waiting[name] = status.Reason{Reason: r.Reason, Message: r.Message}
	}
	if in.End != nil {
		si.End = status.End{
			Phase:     in.End.Phase,
			Reason:    in.End.Reason,
			Message:   in.End.Message,
			Condition: in.End.Condition,
		}
		si.Rejected = in.End.Rejected
	}
	return si
}

// deviceHealth is how the devices of a container are; now is what is known of those that it has. That of devices which
// were given back since is the last one that was known: a pod that ended says what its devices were like.
func (c *container) deviceHealth(now []corev1.ResourceStatus) []corev1.ResourceStatus {
	if len(now) > 0 {
		c.health = podinfo.MergeHealth(c.health, now...)
	}
	return c.health
}

// wait returns until when a status may wait for further changes, which is a period at most; zero: it must be written
// now.
func (r *reported) wait(in decide.Input, plan decide.Plan, period time.Duration) time.Time {
	if !onTheWay(in, plan, period) {
		return time.Time{}
	}
	if r.waitsSince.IsZero() {
		r.waitsSince = in.Now
	}
	until := r.waitsSince.Add(period)
	if !in.Now.Before(until) {
		return time.Time{}
	}
	return until
}

// onTheWay reports whether the status is expected to change soon.
func onTheWay(in decide.Input, plan decide.Plan, soon time.Duration) bool {
	if shown := podkind.Condition(in.Pod, corev1.AllContainersRestarting); plan.Restarting &&
		(shown == nil || shown.Status != corev1.ConditionTrue) {
		return false // who watches must see it
	}
	passing := func(op decide.Op) bool {
		switch op {
		case decide.OpSandbox, decide.OpStart, decide.OpStop, decide.OpStopSandbox, decide.OpTearDown, decide.OpResize,
			decide.OpResizePod:
			return true
		case decide.OpVolumes:
			return !in.VolumesDone
		case decide.OpRemoveContainer, decide.OpRemoveSandbox, decide.OpDelete, decide.OpForget:
		}
		return false
	}
	for _, a := range plan.Actions {
		if passing(a.Op) {
			return true
		}
	}
	for _, f := range in.Flights {
		if passing(f.Action.Op) {
			return true
		}
	}
	for i := range in.Observed.Containers {
		c := &in.Observed.Containers[i]
		if _, k := podinfo.Find(in.Pod, c.Name); k == podinfo.Init && c.Running() &&
			in.Now.Sub(c.Started) < soon {
			return true // most init containers end in a moment
		}
	}
	for _, t := range plan.Probes {
		if t.Probe.InitialDelaySeconds == 0 && in.Now.Sub(t.Started) < soon &&
			in.ProbeResult(t.ContainerID, t.Kind) == probe.Unknown {
			return true
		}
	}
	return false
}

// writeStatus patches pods/status.
func (l *loop) writeStatus(ctx context.Context, target *corev1.Pod, patch []byte, next *corev1.PodStatus) func() {
	begin := time.Now()
	got, err := l.env.API.PodWrites(target.Namespace).PatchStatus(ctx, target.Name, patch)
	d := &event.Status{From: string(target.Status.Phase), To: string(next.Phase), Ready: status.Ready(next)}
	if ctx.Err() == nil {
		l.starter.mark(event.StepStatus, begin, err, d)
		if err == nil && d.Ready && !status.Ready(&target.Status) {
			l.starter.mark(event.StepReady, begin, nil, d)
		}
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		got = l.readAgain(ctx, target)
	}
	return func() {
		if got != nil && got.UID == target.UID {
			l.inbox.answered(got)
		}
		if err == nil || apierrors.IsConflict(err) && got != nil {
			if err == nil && d.From == string(corev1.PodPending) && d.To == string(corev1.PodRunning) {
				l.noteStart(target, next)
			}
			l.s.actions.clear(opStatus) // after a conflict: the next step compares with what the server has
			return
		}
		l.s.actions.fail(opStatus, 200*time.Millisecond, 10*time.Second)
		if !apierrors.IsNotFound(err) && ctx.Err() == nil {
			l.env.Log.Warn("write pod status", "pod", podinfo.FullName(target), "err", err)
		}
	}
}

// readAgain returns the server's version of a pod whose status could not be written; nil: it is unknown. It notes a pod
// that is gone.
func (l *loop) readAgain(ctx context.Context, target *corev1.Pod) *corev1.Pod {
	got, err := l.env.API.CoreV1().Pods(target.Namespace).Get(ctx, target.Name, metav1.GetOptions{})
	if err != nil {
		got = nil
	}
	if (apierrors.IsNotFound(err) || got != nil && got.UID != target.UID) && !l.static {
		l.inbox.notify(Gone)
	}
	return got
}

// keepMirror creates or replaces the mirror pod of a static pod. done is true when it exists and may carry a status.
func (l *loop) keepMirror(ctx context.Context, v view) (done bool, at time.Time) {
	hash := v.pod.Annotations[podinfo.AnnotationHash]
	fits := v.mirror != nil && v.mirror.DeletionTimestamp == nil &&
		v.mirror.Annotations[podinfo.AnnotationMirror] == hash
	if fits && !v.gone {
		return true, time.Time{}
	}
	if l.s.actions.flying(opMirror) || v.mirror == nil && v.gone {
		return false, time.Time{}
	}
	if f, ok := l.s.actions.failed[opMirror]; ok && time.Now().Before(f.Retry) {
		return false, f.Retry
	}
	l.launch(ctx, decide.Action{Op: opMirror}, func(ctx context.Context) func() { return l.replaceMirror(ctx, v) })
	return false, time.Time{}
}

func (l *loop) replaceMirror(ctx context.Context, v view) func() {
	pods := l.env.API.PodWrites(v.pod.Namespace)
	var made *corev1.Pod
	var err error
	if v.mirror != nil {
		zero := int64(0)
		err = pods.Delete(ctx, v.mirror.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &zero,
			Preconditions:      &metav1.Preconditions{UID: &v.mirror.UID},
		})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			err = nil
		}
	}
	if err == nil && !v.gone {
		made, err = pods.Create(ctx, mirrorOf(v.pod))
	}
	return func() {
		if err != nil {
			l.s.actions.fail(opMirror, time.Second, time.Minute)
			if ctx.Err() == nil && !apierrors.IsAlreadyExists(err) {
				l.env.Log.Warn("make mirror pod", "pod", podinfo.FullName(v.pod), "err", err)
			}
			return
		}
		l.s.actions.clear(opMirror)
		if made != nil {
			l.inbox.update(made)
		}
	}
}

// mirrorOf returns the mirror pod of a static pod.
func mirrorOf(pod *corev1.Pod) *corev1.Pod {
	m := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:            pod.Name,
			Namespace:       pod.Namespace,
			Labels:          pod.Labels,
			OwnerReferences: pod.OwnerReferences,
			Annotations:     map[string]string{},
		},
		Spec: *pod.Spec.DeepCopy(),
	}
	maps.Copy(m.Annotations, pod.Annotations)
	m.Annotations[podinfo.AnnotationMirror] = pod.Annotations[podinfo.AnnotationHash]
	return m
}
