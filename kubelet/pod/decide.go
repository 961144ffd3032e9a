// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	podkind "keelson/api/core/pod"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/probe"
	"keelson/kubelet/runtimestate"
)

// reasonDeadline is why a pod ends whose activeDeadlineSeconds are over.
const reasonDeadline = "DeadlineExceeded"

// Decide returns the plan for one pod.
func Decide(in Input) Plan {
	plan := Plan{Waiting: map[string]Waiting{}}
	in.life = in.currentLife()
	switch {
	case in.Gone || in.Pod.DeletionTimestamp != nil:
		plan.Stopping = true
		in.stop(&plan)
	case in.End != nil || podkind.TerminalPhase(in.Pod.Status.Phase):
		in.stop(&plan)
	default:
		if end := in.deadline(&plan); end != nil {
			plan.End = end
			in.End = end
			in.stop(&plan)
			break
		}
		in.keepUp(&plan)
	}
	return plan
}

// deadline is the verdict on a pod that has been active for too long.
func (in *Input) deadline(p *Plan) *End {
	d := in.Pod.Spec.ActiveDeadlineSeconds
	start := in.Pod.Status.StartTime
	if d == nil || start == nil {
		return nil
	}
	at := start.Add(time.Duration(*d) * time.Second)
	if in.Now.Before(at) {
		p.wakeAt(at)
		return nil
	}
	return &End{
		Phase:   corev1.PodFailed,
		Reason:  reasonDeadline,
		Message: "Pod was active on the node longer than the specified deadline",
	}
}

// keepUp brings a pod that should run one round closer to running, or to its end when its work is over.
func (in *Input) keepUp(plan *Plan) {
	box := in.Observed.Current()
	if in.restartAll(plan) {
		return
	}
	if in.finished() {
		over := !in.anyAlive()
		plan.Terminal = over && in.free()
		in.stopContainers(plan, "")
		if over {
			in.settleDown(plan)
		}
		return
	}
	if !in.VolumesDone || in.VolumesDirt {
		in.do(plan, Action{Op: OpVolumes})
	}
	if !in.VolumesDone {
		in.explainAll(plan)
		return
	}
	if box == nil {
		in.newSandbox(plan)
		in.explainAll(plan)
		return
	}
	in.containers(plan, box)
	in.resizePod(plan)
	in.removeDead(plan)
	in.explainAll(plan)
}

// newSandbox replaces a sandbox that is gone or broken. Whatever still runs in an old one ends first.
func (in *Input) newSandbox(plan *Plan) {
	if in.anyAlive() {
		in.stopContainers(plan, "Pod sandbox changed, it will be killed and re-created.")
		return
	}
	for _, s := range in.Observed.Sandboxes {
		if s.Ready {
			in.do(plan, Action{Op: OpStopSandbox, ID: s.ID})
		}
	}
	attempt := uint32(0)
	if len(in.Observed.Sandboxes) > 0 {
		attempt = in.Observed.Sandboxes[0].Attempt + 1
	}
	in.do(plan, Action{Op: OpSandbox, Attempt: attempt})
}

// containers starts what may start: init containers in order, then the main ones together; ephemeral ones at any time.
func (in *Input) containers(plan *Plan, box *runtimestate.Sandbox) {
	pod := in.Pod
	begun := in.mainsBegun(box.ID)
	initialized := true
	for i := range pod.Spec.InitContainers {
		container := &pod.Spec.InitContainers[i]
		if podinfo.Sidecar(container) {
			in.keepRunning(plan, box, container, podinfo.SideCar)
			if !begun && !in.Started(container, in.latestIn(box.ID, container.Name)) {
				initialized = false
				break
			}
			continue
		}
		if begun {
			continue
		}
		if cur := in.latestIn(box.ID, container.Name); cur.Exited() && cur.ExitCode == 0 &&
			!in.flying(startKey(container.Name)) {
			continue
		}
		in.keepRunning(plan, box, container, podinfo.Init)
		initialized = false
		break
	}
	if initialized {
		for i := range pod.Spec.Containers {
			in.keepRunning(plan, box, &pod.Spec.Containers[i], podinfo.Main)
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		if in.Observed.Latest(c.Name) == nil && in.lostStatus(c.Name) == nil {
			in.start(plan, &c, nil)
		}
	}
}

// mainsBegun reports whether a main container was ever created in the sandbox: then its init containers are done.
func (in *Input) mainsBegun(sandbox string) bool {
	for i := range in.Pod.Spec.Containers {
		if in.latestIn(sandbox, in.Pod.Spec.Containers[i].Name) != nil {
			return true
		}
	}
	return false
}

// keepRunning starts a container, starts it again, or stops it because a probe says so.
func (in *Input) keepRunning(plan *Plan, box *runtimestate.Sandbox, container *corev1.Container, kind podinfo.Kind) {
	cur := in.latestIn(box.ID, container.Name)
	last := in.Observed.Latest(container.Name)
	switch {
	case in.flying(startKey(container.Name)):
		if in.flying(Action{Op: OpStop, ID: idOf(cur)}.Key()) {
			return
		}
		if cur.Running() && kind != podinfo.Init {
			// the post-start hook may take long: startup and liveness must not wait for it
			in.probes(plan, box, container, cur, true)
		}
	case cur == nil:
		if in.restartedWith(last) && in.backsOff(plan, container, last) {
			return
		}
		in.start(plan, container, last)
	case cur.Running():
		in.watch(plan, box, container, cur, kind)
	case cur.Exited():
		if !podinfo.RestartAfter(in.Pod, container, kind, cur.ExitCode) {
			return
		}
		if !in.backsOff(plan, container, cur) {
			in.start(plan, container, last)
		}
	case cur.State == stateCreated:
		in.restartCreated(plan, container, cur)
	default: // the runtime lost it
		in.do(plan, Action{
			Op:        OpStop,
			Container: container.Name,
			ID:        cur.ID,
			Grace:     podinfo.GracePeriodSeconds(in.Pod),
			Event:     fmt.Sprintf("Container %s is in unknown state, try killing it before restart", container.Name),
		})
	}
}

// backsOff reports whether a container that ended must wait before its next start, and plans that.
func (in *Input) backsOff(plan *Plan, container *corev1.Container, ended *runtimestate.Container) bool {
	over, until := in.Crashes[container.Name].Over(ended.Finished, in.Now)
	if over {
		return false
	}
	plan.wakeAt(until)
	plan.Waiting[container.Name] = Waiting{
		Reason: "CrashLoopBackOff",
		Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s",
			in.Crashes[container.Name].Delay, container.Name, podinfo.FullName(in.Pod)),
	}
	return true
}

func idOf(c *runtimestate.Container) string {
	if c == nil {
		return ""
	}
	return c.ID
}

func startKey(name string) string { return Action{Op: OpStart, Container: name}.Key() }

// start begins a container. If its last try failed and the back-off is not over, it says instead why the container
// waits.
func (in *Input) start(p *Plan, c *corev1.Container, last *runtimestate.Container) {
	a := Action{Op: OpStart, Container: c.Name}
	switch was := in.lostStatus(c.Name); {
	case last != nil:
		a.Restart = last.Restart + 1
	case was != nil:
		a.Restart = int(was.RestartCount) + 1
	}
	in.startAction(p, a)
}

// restartCreated replaces a container that was created and never started, after a crash or a failed start.
func (in *Input) restartCreated(p *Plan, c *corev1.Container, cur *runtimestate.Container) {
	in.startAction(p, Action{
		Op:        OpStart,
		Container: c.Name,
		Restart:   cur.Restart,
		Replace:   cur.ID,
	})
}

func (in *Input) startAction(p *Plan, a Action) {
	a.Life = in.life
	if in.do(p, a) {
		return
	}
	in.explain(p, a.Container)
}

// explain says why a container whose start failed, or is held back, waits.
func (in *Input) explain(p *Plan, name string) {
	if in.Held != nil {
		p.Waiting[name] = Waiting{Reason: reasonHeld, Message: in.Held.Message}
		return
	}
	w, until := in.Failed[startKey(name)].shown(in.Now)
	p.Waiting[name] = w
	p.wakeAt(until)
}

// watch looks after a running container: its probes, and whether it must end because of them or of a changed image.
func (in *Input) watch(
	plan *Plan, box *runtimestate.Sandbox, container *corev1.Container, cur *runtimestate.Container, kind podinfo.Kind,
) {
	if h := cur.Annotations[runtimestate.AnnotationHash]; h != "" && h != podinfo.Hash(container) {
		in.do(plan, Action{
			Op:        OpStop,
			Container: container.Name,
			ID:        cur.ID,
			Grace:     podinfo.GracePeriodSeconds(in.Pod),
			Hook:      true,
			Event:     fmt.Sprintf("Container %s definition changed, will be restarted", container.Name),
		})
		return
	}
	if in.Refused == nil && in.resizable(container, cur) {
		if kind != podinfo.Init && in.mustRestart(container, cur) {
			in.do(plan, Action{
				Op:        OpStop,
				Container: container.Name,
				ID:        cur.ID,
				Grace:     podinfo.GracePeriodSeconds(in.Pod),
				Hook:      true,
				Event:     fmt.Sprintf("Container %s resize requires restart", container.Name),
			})
			return
		}
		in.do(plan, Action{Op: OpResize, Container: container.Name, ID: cur.ID})
	}
	if kind == podinfo.Init {
		return
	}
	in.probes(plan, box, container, cur, false)
}

// probes lists the container's probes and stops it when one has failed for good. While hook is set its post-start hook
// runs.
func (in *Input) probes(
	plan *Plan, box *runtimestate.Sandbox, container *corev1.Container, cur *runtimestate.Container, hook bool,
) {
	ip := in.HostIP
	if len(box.IPs) > 0 {
		ip = box.IPs[0]
	}
	kinds := []probe.Kind{probe.Liveness, probe.Readiness}
	if container.StartupProbe != nil && in.result(cur.ID, probe.Startup) != probe.Success {
		kinds = []probe.Kind{probe.Startup}
	} else if hook {
		kinds = []probe.Kind{probe.Liveness}
	}
	for _, kind := range kinds {
		pr := probe.Of(container, kind)
		if pr == nil {
			continue
		}
		if kind == probe.Readiness || in.result(cur.ID, kind) != probe.Failure {
			plan.Probes = append(plan.Probes, probe.Target{
				Key:       probe.Key{ContainerID: cur.ID, Kind: kind},
				Pod:       in.Pod,
				Container: container,
				Probe:     pr,
				PodIP:     ip,
				Started:   cur.Started,
			})
			continue
		}
		// The probe's result holds until the container is gone. Another probe, perhaps by exec, would disturb its
		// termination.
		grace := podinfo.GracePeriodSeconds(in.Pod)
		if pr.TerminationGracePeriodSeconds != nil {
			grace = *pr.TerminationGracePeriodSeconds
		}
		what := "liveness"
		if kind == probe.Startup {
			what = "startup"
		}
		in.do(plan, Action{
			Op:        OpStop,
			Container: container.Name,
			ID:        cur.ID,
			Grace:     grace,
			Hook:      true,
			Event:     fmt.Sprintf("Container %s failed %s probe, will be restarted", container.Name, what),
		})
	}
}

func (in *Input) result(id string, k probe.Kind) probe.Result {
	if in.Result == nil {
		return probe.Unknown
	}
	return in.Result(probe.Key{ContainerID: id, Kind: k})
}

// Started reports whether a container counts as started: it runs, its post-start hook and its startup probe are
// through.
func (in *Input) Started(c *corev1.Container, cur *runtimestate.Container) bool {
	if !cur.Running() || in.flying(startKey(c.Name)) {
		return false
	}
	return c.StartupProbe == nil || in.result(cur.ID, probe.Startup) == probe.Success
}

// explainAll gives every container that has not run a reason to wait.
func (in *Input) explainAll(plan *Plan) {
	reason := "ContainerCreating"
	if len(in.Pod.Spec.InitContainers) > 0 {
		reason = "PodInitializing"
	}
	box := in.Observed.Current()
	begun := box != nil && in.mainsBegun(box.ID)
	for container, k := range podinfo.All(in.Pod) {
		if _, ok := plan.Waiting[container.Name]; ok || begun && k == podinfo.Init {
			continue
		}
		if in.Held != nil && !in.Observed.Latest(container.Name).Running() {
			in.explain(plan, container.Name)
			continue
		}
		if f, ok := in.Failed[startKey(container.Name)]; ok && in.Now.Before(f.Retry) &&
			!in.Observed.Latest(container.Name).Running() {
			in.explain(plan, container.Name)
			continue
		}
		last := in.latest(container.Name)
		if k == podinfo.Ephemeral {
			last = in.Observed.Latest(container.Name) // it never runs again
		}
		if in.flying(startKey(container.Name)) || last == nil {
			plan.Waiting[container.Name] = Waiting{Reason: reason}
		}
	}
}
