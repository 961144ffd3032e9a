// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	podkind "keelson/api/core/pod"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/probe"
	"keelson/kubelet/runtimestate"
)

const (
	// ReasonDeadline is why a pod ends whose activeDeadlineSeconds are over.
	ReasonDeadline = "DeadlineExceeded"
	// ReasonHeld is why a container waits whose pod is held back.
	ReasonHeld = "StartHeldBack"
)

// decision is one call of Decide: its Input, which answers questions, and the Plan that grows.
type decision struct {
	*Input

	plan Plan
}

// Decide returns the plan for one pod.
func Decide(in Input) Plan {
	in.life = in.currentLife()
	d := &decision{Input: &in, plan: Plan{Waiting: map[string]Waiting{}}}
	switch {
	case in.Gone || in.Pod.DeletionTimestamp != nil:
		d.plan.Stopping = true
		d.stop()
	case in.End != nil || podkind.TerminalPhase(in.Pod.Status.Phase):
		d.stop()
	default:
		if end := d.deadline(); end != nil {
			d.plan.End = end
			in.End = end
			d.stop()
			break
		}
		d.keepUp()
	}
	return d.plan
}

// deadline is the verdict on a pod that has been active for too long.
func (d *decision) deadline() *End {
	seconds := d.Pod.Spec.ActiveDeadlineSeconds
	start := d.Pod.Status.StartTime
	if seconds == nil || start == nil {
		return nil
	}
	at := start.Add(time.Duration(*seconds) * time.Second)
	if d.Now.Before(at) {
		d.plan.WakeAt(at)
		return nil
	}
	return &End{
		Phase:   corev1.PodFailed,
		Reason:  ReasonDeadline,
		Message: "Pod was active on the node longer than the specified deadline",
	}
}

// keepUp brings a pod that should run one round closer to running, or to its end when its work is over.
func (d *decision) keepUp() {
	box := d.Observed.Current()
	if d.restartAll() {
		return
	}
	if d.finished() {
		over := !d.anyAlive()
		d.plan.Terminal = over && d.free()
		d.stopContainers("")
		if over {
			d.settleDown()
		}
		return
	}
	if !d.VolumesDone || d.VolumesDirty {
		d.do(Action{Op: OpVolumes})
	}
	if !d.VolumesDone {
		d.explainAll()
		return
	}
	if box == nil {
		d.newSandbox()
		d.explainAll()
		return
	}
	d.containers(box)
	d.resizePod()
	d.removeDead()
	d.explainAll()
}

// newSandbox replaces a sandbox that is gone or broken. Whatever still runs in an old one ends first.
func (d *decision) newSandbox() {
	if d.anyAlive() {
		d.stopContainers("Pod sandbox changed, it will be killed and re-created.")
		return
	}
	for _, s := range d.Observed.Sandboxes {
		if s.Ready {
			d.do(Action{Op: OpStopSandbox, ID: s.ID})
		}
	}
	attempt := uint32(0)
	if len(d.Observed.Sandboxes) > 0 {
		attempt = d.Observed.Sandboxes[0].Attempt + 1
	}
	d.do(Action{Op: OpSandbox, Attempt: attempt})
}

// containers starts what may start: init containers in order, then the main ones together; ephemeral ones at any time.
func (d *decision) containers(box *runtimestate.Sandbox) {
	pod := d.Pod
	begun := d.MainsBegun(box.ID)
	initialized := true
	for i := range pod.Spec.InitContainers {
		container := &pod.Spec.InitContainers[i]
		if podinfo.Sidecar(container) {
			d.keepRunning(box, container, podinfo.SideCar)
			if !begun && !d.Started(container, d.latestIn(box.ID, container.Name)) {
				initialized = false
				break
			}
			continue
		}
		if begun {
			continue
		}
		if cur := d.latestIn(box.ID, container.Name); cur.Exited() && cur.ExitCode == 0 &&
			!d.Flying(startKey(container.Name)) {
			continue
		}
		d.keepRunning(box, container, podinfo.Init)
		initialized = false
		break
	}
	if initialized {
		for i := range pod.Spec.Containers {
			d.keepRunning(box, &pod.Spec.Containers[i], podinfo.Main)
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		if d.Observed.Latest(c.Name) == nil && d.lostStatus(c.Name) == nil {
			d.start(&c, nil)
		}
	}
}

// MainsBegun reports whether a main container was ever created in the sandbox: then its init containers are done.
func (in *Input) MainsBegun(sandbox string) bool {
	for i := range in.Pod.Spec.Containers {
		if in.latestIn(sandbox, in.Pod.Spec.Containers[i].Name) != nil {
			return true
		}
	}
	return false
}

// keepRunning starts a container, starts it again, or stops it because a probe says so.
func (d *decision) keepRunning(box *runtimestate.Sandbox, container *corev1.Container, kind podinfo.Kind) {
	cur := d.latestIn(box.ID, container.Name)
	last := d.Observed.Latest(container.Name)
	switch {
	case d.Flying(startKey(container.Name)):
		if d.Flying(Action{Op: OpStop, ID: idOf(cur)}.Key()) {
			return
		}
		if cur.Running() && kind != podinfo.Init {
			// the post-start hook may take long: startup and liveness must not wait for it
			d.probes(box, container, cur, true)
		}
	case cur == nil:
		if d.restartedWith(last) && d.backsOff(container, last) {
			return
		}
		d.start(container, last)
	case cur.Running():
		d.watch(box, container, cur, kind)
	case cur.Exited():
		if !podinfo.RestartAfter(d.Pod, container, kind, cur.ExitCode) {
			return
		}
		if !d.backsOff(container, cur) {
			d.start(container, last)
		}
	case cur.State == stateCreated:
		d.restartCreated(container, cur)
	default: // the runtime lost it
		d.do(Action{
			Op:        OpStop,
			Container: container.Name,
			ID:        cur.ID,
			Grace:     podinfo.GracePeriodSeconds(d.Pod),
			Event:     fmt.Sprintf("Container %s is in unknown state, try killing it before restart", container.Name),
		})
	}
}

// backsOff reports whether a container that ended must wait before its next start, and plans that.
func (d *decision) backsOff(container *corev1.Container, ended *runtimestate.Container) bool {
	over, until := d.Crashes[container.Name].Over(ended.Finished, d.Now, d.CrashMax)
	if over {
		return false
	}
	d.plan.WakeAt(until)
	d.plan.Waiting[container.Name] = Waiting{
		Reason: "CrashLoopBackOff",
		Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s",
			min(d.Crashes[container.Name].Delay, d.CrashMax), container.Name, podinfo.FullName(d.Pod)),
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
func (d *decision) start(c *corev1.Container, last *runtimestate.Container) {
	a := Action{Op: OpStart, Container: c.Name}
	switch was := d.lostStatus(c.Name); {
	case last != nil:
		a.Restart = last.Restart + 1
	case was != nil:
		a.Restart = int(was.RestartCount) + 1
	}
	d.startAction(a)
}

// restartCreated replaces a container that was created and never started, after a crash or a failed start.
func (d *decision) restartCreated(c *corev1.Container, cur *runtimestate.Container) {
	d.startAction(Action{
		Op:        OpStart,
		Container: c.Name,
		Restart:   cur.Restart,
		Replace:   cur.ID,
	})
}

func (d *decision) startAction(a Action) {
	a.Life = d.life
	if d.do(a) {
		return
	}
	d.explain(a.Container)
}

// explain says why a container whose start failed, or is held back, waits.
func (d *decision) explain(name string) {
	if d.Held != nil {
		d.plan.Waiting[name] = Waiting{Reason: ReasonHeld, Message: d.Held.Message}
		return
	}
	w, until := d.Failed[startKey(name)].shown(d.Now)
	d.plan.Waiting[name] = w
	d.plan.WakeAt(until)
}

// watch handles a running container: its probes, and whether it must end because of them or of a changed image.
func (d *decision) watch(
	box *runtimestate.Sandbox, container *corev1.Container, cur *runtimestate.Container, kind podinfo.Kind,
) {
	if h := cur.Annotations[runtimestate.AnnotationHash]; h != "" && h != podinfo.Hash(container) {
		d.do(Action{
			Op:        OpStop,
			Container: container.Name,
			ID:        cur.ID,
			Grace:     podinfo.GracePeriodSeconds(d.Pod),
			Hook:      true,
			Event:     fmt.Sprintf("Container %s definition changed, will be restarted", container.Name),
		})
		return
	}
	if d.Refused == nil && d.resizable(container, cur) {
		if kind != podinfo.Init && d.mustRestart(container, cur) {
			d.do(Action{
				Op:        OpStop,
				Container: container.Name,
				ID:        cur.ID,
				Grace:     podinfo.GracePeriodSeconds(d.Pod),
				Hook:      true,
				Event:     fmt.Sprintf("Container %s resize requires restart", container.Name),
			})
			return
		}
		d.do(Action{Op: OpResize, Container: container.Name, ID: cur.ID})
	}
	if kind == podinfo.Init {
		return
	}
	d.probes(box, container, cur, false)
}

// probes lists the container's probes and stops it when one has failed for good. While hook is set its post-start hook
// runs.
func (d *decision) probes(
	box *runtimestate.Sandbox, container *corev1.Container, cur *runtimestate.Container, hook bool,
) {
	ip := d.HostIP
	if len(box.IPs) > 0 {
		ip = box.IPs[0]
	}
	kinds := []probe.Kind{probe.Liveness, probe.Readiness}
	if container.StartupProbe != nil && d.ProbeResult(cur.ID, probe.Startup) != probe.Success {
		kinds = []probe.Kind{probe.Startup}
	} else if hook {
		kinds = []probe.Kind{probe.Liveness}
	}
	for _, kind := range kinds {
		pr := probe.Of(container, kind)
		if pr == nil {
			continue
		}
		if kind == probe.Readiness || d.ProbeResult(cur.ID, kind) != probe.Failure {
			d.plan.Probes = append(d.plan.Probes, probe.Target{
				Key:       probe.Key{ContainerID: cur.ID, Kind: kind},
				Pod:       d.Pod,
				Container: container,
				Probe:     pr,
				PodIP:     ip,
				Started:   cur.Started,
			})
			continue
		}
		// The probe's result holds until the container is gone. Another probe, perhaps by exec, would disturb its
		// termination.
		grace := podinfo.GracePeriodSeconds(d.Pod)
		if pr.TerminationGracePeriodSeconds != nil {
			grace = *pr.TerminationGracePeriodSeconds
		}
		what := "liveness"
		if kind == probe.Startup {
			what = "startup"
		}
		d.do(Action{
			Op:        OpStop,
			Container: container.Name,
			ID:        cur.ID,
			Grace:     grace,
			Hook:      true,
			Event:     fmt.Sprintf("Container %s failed %s probe, will be restarted", container.Name, what),
		})
	}
}

// ProbeResult is the last result of a container's probe of that kind; without one it is unknown.
func (in *Input) ProbeResult(id string, k probe.Kind) probe.Result {
	if in.Result == nil {
		return probe.Unknown
	}
	return in.Result(probe.Key{ContainerID: id, Kind: k})
}

// Started reports whether a container counts as started: it runs, its post-start hook and its startup probe are
// through.
func (in *Input) Started(c *corev1.Container, cur *runtimestate.Container) bool {
	if !cur.Running() || in.Flying(startKey(c.Name)) {
		return false
	}
	return c.StartupProbe == nil || in.ProbeResult(cur.ID, probe.Startup) == probe.Success
}

// explainAll gives every container that has not run a reason to wait.
func (d *decision) explainAll() {
	reason := "ContainerCreating"
	if len(d.Pod.Spec.InitContainers) > 0 {
		reason = "PodInitializing"
	}
	box := d.Observed.Current()
	begun := box != nil && d.MainsBegun(box.ID)
	for container, k := range podinfo.All(d.Pod) {
		if _, ok := d.plan.Waiting[container.Name]; ok || begun && k == podinfo.Init {
			continue
		}
		if d.Held != nil && !d.Observed.Latest(container.Name).Running() {
			d.explain(container.Name)
			continue
		}
		if f, ok := d.Failed[startKey(container.Name)]; ok && d.Now.Before(f.Retry) &&
			!d.Observed.Latest(container.Name).Running() {
			d.explain(container.Name)
			continue
		}
		last := d.latest(container.Name)
		if k == podinfo.Ephemeral {
			last = d.Observed.Latest(container.Name) // it never runs again
		}
		if d.Flying(startKey(container.Name)) || last == nil {
			d.plan.Waiting[container.Name] = Waiting{Reason: reason}
		}
	}
}
