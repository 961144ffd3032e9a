// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	podkind "keelson/api/core/pod"
	"keelson/event"
	"keelson/kubelet/pod/decide"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/refs"
	"keelson/kubelet/runtimestate"
)

// take collects the news since the last round, and applies the results of the actions that ended.
func (l *loop) take() (News, view) {
	news, ended := l.inbox.take()
	for _, r := range ended {
		l.s.actions.end(r)
	}
	if news&NodeChanged != 0 {
		l.s.actions.clear(string(decide.OpSandbox))
	}
	if news&RefsChanged != 0 {
		// volumes that are being set up may have read what was there before
		l.s.volumes.dirty = l.s.volumes.done || l.s.actions.flying(decide.OpVolumes)
		l.s.actions.retry(func(key string, f decide.Failed) bool {
			return key == string(decide.OpVolumes) || f.Reason == reasonConfig
		})
	}
	return news, l.inbox.view() // after the results, which may have brought a newer version
}

// step does one round, as the package comment says, and returns when the next is due without being woken; zero: never.
func (l *loop) step(ctx context.Context) time.Time {
	news, view := l.take()
	if l.s.forgotten {
		return time.Time{} // its resources are released: nothing may be acquired again
	}
	if news&(RuntimeChanged|NodeChanged) != 0 || l.observed.Load() == nil {
		if !l.read(ctx, view.pod) {
			l.inbox.keep(RuntimeChanged)
			return time.Now().Add(min(time.Second<<min(l.s.readErr, 4), 10*time.Second))
		}
	}
	l.recall(view)
	l.noticePod(view.pod)
	in := l.input(view)

	// May the pod run here, and with these resources? A verdict that was made once stays.
	if !l.s.admission.done && !view.gone {
		if !l.admit(ctx, &in, view.pod) {
			return time.Time{}
		}
	}
	if end := l.eviction.verdict(); end != nil && l.s.end == nil {
		l.s.end = end
		in.End = end
	}
	in.Refused = l.resizeDenial(&in)
	plan := l.decideHeld(&in)
	if in.Refused != nil {
		plan.WakeAt(in.Now.Add(resizeRetry))
	}
	if plan.End != nil {
		if l.s.end == nil && plan.End.Reason == decide.ReasonDeadline {
			l.env.Events.Event(podRef(view.pod), corev1.EventTypeNormal, decide.ReasonDeadline, plan.End.Message)
		}
		l.s.end = plan.End
		in.End = plan.End
	}

	// The write of the status begins before the actions. The last actions of a pod need its final status to be
	// written, so the plan is made once more with it.
	l.useRefs(view.pod, plan)
	wake := plan.Wake
	written, at := l.report(ctx, in, plan, view)
	wake = earliest(wake, at)
	if written && plan.Terminal && !in.StatusDone {
		in.StatusDone = true
		plan = decide.Decide(in)
		wake = earliest(wake, plan.Wake)
	}
	if plan.Terminal && in.TornDown {
		l.eviction.complete()
	}

	l.env.Probes.Sync(ctx, l.uid, plan.Probes, func(id string) bool { return l.observed.Load().Find(id) != nil })
	for _, key := range plan.Cancel {
		l.s.actions.cancel(key)
	}
	for _, a := range plan.Actions {
		l.do(ctx, in, a)
	}
	l.leaveStart(in)
	if !plan.Terminal && !plan.Stopping {
		wake = earliest(wake, l.refreshVolumes())
	}
	return wake
}

// refreshVolumes marks the volumes' files as outdated when their refresh time has come. It returns that time.
func (l *loop) refreshVolumes() time.Time {
	at := l.s.volumes.refresh
	if !at.IsZero() && !time.Now().Before(at) {
		l.s.volumes.dirty = true
		l.s.volumes.refresh = time.Time{}
		l.inbox.notify(Nothing)
	}
	return at
}

// admission is how far the node is with taking the pod.
type admission struct {
	done bool
	room chan struct{} // closed when all pods that are preempted for this one have gone; nil: none is
}

// admit asks whether the pod may run here; false: not yet, the step is woken again.
func (l *loop) admit(ctx context.Context, in *decide.Input, pod *corev1.Pod) bool {
	if !fresh(*in) {
		l.s.admission.done = true
		l.env.Admission.Adopt(pod)
		return true
	}
	if l.s.admission.room != nil {
		select {
		case <-l.s.admission.room:
		default:
			return false
		}
	}
	end, leaving := l.env.Admission.Admit(ctx, pod)
	l.s.end = end
	in.End = end
	l.s.admission.room = nil
	if len(leaving) > 0 {
		room := make(chan struct{})
		l.s.admission.room = room
		l.ops.Go(func() {
			for _, one := range leaving {
				select {
				case <-one:
				case <-ctx.Done():
					return
				}
			}
			close(room)
			l.inbox.notify(Nothing)
		})
		return false
	}
	l.s.admission.done = true
	return true
}

// fresh reports whether no action of the pod was ever begun. Only such a pod needs admission; any other was admitted
// before.
func fresh(in decide.Input) bool {
	return len(in.Observed.Sandboxes) == 0 && in.Pod.Status.StartTime == nil && in.Pod.DeletionTimestamp == nil &&
		!podkind.TerminalPhase(in.Pod.Status.Phase)
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// input takes a snapshot of what Decide looks at. Actions read it while the loop runs, so its maps are copies.
func (l *loop) input(v view) decide.Input {
	in := decide.Input{
		Pod:      v.pod,
		Gone:     v.gone,
		Local:    l.static,
		Observed: l.observed.Load(),
		Now:      time.Now(),
		HostIP:   first(l.env.HostIPs),
		Flights:  l.s.actions.underWay(),
		Failed:   maps.Clone(l.s.actions.failed),
		CrashMax: l.env.CrashMax,
		Result:   l.env.Probes.Result,
		Limits:   l.s.resizes.limits,
		End:      l.s.end,
		Progress: decide.Progress{
			VolumesDone:  l.s.volumes.done,
			VolumesDirty: l.s.volumes.dirty,
			TornDown:     l.s.volumes.tornDown,
			Deleted:      l.s.deleted,
		},
	}
	l.s.containers.describe(&in)
	return in
}

func first(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}

// read asks the runtime about the pod, and notes exits.
func (l *loop) read(ctx context.Context, pod *corev1.Pod) bool {
	begin := time.Now()
	seen, err := runtimestate.Read(ctx, l.env.Runtime, l.uid)
	l.env.Metrics.PodRead(time.Since(begin))
	if err != nil {
		if ctx.Err() == nil {
			l.s.readErr++
			l.env.Log.Warn("read pod from the runtime", "pod", podinfo.FullName(pod), "err", err)
		}
		return false
	}
	l.s.readErr = 0
	if l.observed.Swap(seen) == nil {
		l.recallBackOff()
	}
	for i := range seen.Containers {
		container := &seen.Containers[i]
		record := l.s.containers.run(container.ID)
		if !container.Exited() || record.exited {
			continue
		}
		record.exited = true
		spec, kind := podinfo.Find(pod, container.Name)
		if spec != nil {
			record.message = terminationMessage(pod, spec, container)
		}
		if container.Finished.Before(l.s.seen) {
			continue // before our time
		}
		reason := container.Reason
		if reason == "" && container.ExitCode == 0 {
			reason = "Completed"
		} else if reason == "" {
			reason = "Error"
		}
		l.env.Metrics.ContainerTerminated(kind, container.ExitCode, reason)
		l.env.Marks.Emit(event.Event{
			Step:      event.StepContainerExited,
			Component: l.env.Component,
			At:        container.Finished,
			Subject:   l.subject,
			Detail: &event.Container{
				Name:     container.Name,
				ID:       container.ID,
				Init:     kind == podinfo.Init || kind == podinfo.SideCar,
				Restart:  container.Restart,
				ExitCode: int(container.ExitCode),
				Reason:   reason,
			},
		})
	}
	l.s.containers.keep(func(id string) bool { return seen.Find(id) != nil })
	return true
}

// useRefs watches the objects that the pod refers to. Once the pod is being stopped, its volumes stay as they are.
func (l *loop) useRefs(p *corev1.Pod, plan decide.Plan) {
	if plan.Terminal || plan.Stopping || l.s.end != nil {
		l.env.Refs.Use(l.uid, nil)
		return
	}
	used, err := refs.Of(p)
	if err != nil {
		used = nil // the pod does not start, see setUpVolumes and containerConfig
	}
	l.env.Refs.Use(l.uid, used)
}

// noticePod detects changes of pod fields that the downward API shows in volumes and environments.
func (l *loop) noticePod(p *corev1.Pod) {
	if !usesDownward(p) {
		return
	}
	now := downwardText(p)
	if l.s.downward != "" && l.s.downward != now {
		l.s.volumes.dirty = l.s.volumes.done
	}
	if l.s.downward != now {
		l.s.downward = now
		// a changed annotation may repair an environment or a subPathExpr
		l.s.actions.retry(func(_ string, f decide.Failed) bool { return f.Reason == reasonConfig })
	}
}

// downwardText is what the downward API shows of a pod.
func downwardText(p *corev1.Pod) string {
	var b strings.Builder
	for _, m := range []map[string]string{p.Labels, p.Annotations} {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			fmt.Fprintf(&b, "%q=%q,", k, m[k])
		}
		b.WriteByte(';')
	}
	for c := range podinfo.All(p) {
		b.WriteString(podinfo.ResourcesHash(p, c))
	}
	return b.String()
}

// usesDownward reports whether the pod uses the downward API for its labels or annotations.
func usesDownward(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.DownwardAPI != nil {
			return true
		}
		if v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
			return s.DownwardAPI != nil
		}) {
			return true
		}
	}
	for c := range podinfo.All(pod) {
		if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
			return e.ValueFrom != nil && e.ValueFrom.FieldRef != nil
		}) {
			return true
		}
	}
	return false
}
