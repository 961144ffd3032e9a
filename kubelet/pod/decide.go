// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	podkind "keelson/api/core/pod"
	"keelson/kubelet/observed"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/probe"
)

// reasonDeadline is why a pod ends whose activeDeadlineSeconds are over.
const reasonDeadline = "DeadlineExceeded"

// Decide returns the plan for one pod.
func Decide(in Input) Plan {
	p := Plan{Waiting: map[string]Waiting{}}
	switch {
	case in.Gone || in.Pod.DeletionTimestamp != nil:
		p.Stopping = true
		in.stop(&p)
	case in.End != nil || podkind.TerminalPhase(in.Pod.Status.Phase):
		in.stop(&p)
	default:
		if end := in.deadline(&p); end != nil {
			p.End = end
			in.End = end
			in.stop(&p)
			break
		}
		in.keepUp(&p)
	}
	return p
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
func (in *Input) keepUp(p *Plan) {
	box := in.Observed.Current()
	if in.finished() {
		over := !in.anyAlive()
		p.Terminal = over && in.free()
		in.stopContainers(p, "")
		if over {
			in.settleDown(p)
		}
		return
	}
	if !in.VolumesDone || in.VolumesDirt {
		in.do(p, Action{Op: OpVolumes})
	}
	if !in.VolumesDone {
		in.explainAll(p)
		return
	}
	if box == nil {
		in.newSandbox(p)
		in.explainAll(p)
		return
	}
	in.containers(p, box)
	in.removeDead(p)
	in.explainAll(p)
}

// newSandbox replaces a sandbox that is gone or broken. Whatever still runs in an old one ends first.
func (in *Input) newSandbox(p *Plan) {
	if in.anyAlive() {
		in.stopContainers(p, "Pod sandbox changed, it will be killed and re-created.")
		return
	}
	for _, s := range in.Observed.Sandboxes {
		if s.Ready {
			in.do(p, Action{Op: OpStopSandbox, ID: s.ID})
		}
	}
	attempt := uint32(0)
	if len(in.Observed.Sandboxes) > 0 {
		attempt = in.Observed.Sandboxes[0].Attempt + 1
	}
	in.do(p, Action{Op: OpSandbox, Attempt: attempt})
}

// containers starts what may start: init containers in order, then the main ones together; ephemeral ones at any time.
func (in *Input) containers(p *Plan, box *observed.Sandbox) {
	pod := in.Pod
	begun := in.mainsBegun(box.ID)
	initialized := true
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if podinfo.Sidecar(c) {
			in.keepRunning(p, box, c, podinfo.SideCar)
			if !begun && !in.Started(c, in.Observed.LatestIn(box.ID, c.Name)) {
				initialized = false
				break
			}
			continue
		}
		if begun {
			continue
		}
		if cur := in.Observed.LatestIn(box.ID, c.Name); cur.Exited() && cur.ExitCode == 0 &&
			!in.flying(startKey(c.Name)) {
			continue
		}
		in.keepRunning(p, box, c, podinfo.Init)
		initialized = false
		break
	}
	if initialized {
		for i := range pod.Spec.Containers {
			in.keepRunning(p, box, &pod.Spec.Containers[i], podinfo.Main)
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		if in.Observed.Latest(c.Name) == nil {
			in.start(p, &c, nil)
		}
	}
}

// mainsBegun reports whether a main container was ever created in the sandbox: then its init containers are done.
func (in *Input) mainsBegun(sandbox string) bool {
	for i := range in.Pod.Spec.Containers {
		if in.Observed.LatestIn(sandbox, in.Pod.Spec.Containers[i].Name) != nil {
			return true
		}
	}
	return false
}

// keepRunning starts a container, starts it again, or stops it because a probe says so.
func (in *Input) keepRunning(p *Plan, box *observed.Sandbox, c *corev1.Container, k podinfo.Kind) {
	cur := in.Observed.LatestIn(box.ID, c.Name)
	last := in.Observed.Latest(c.Name)
	switch {
	case in.flying(startKey(c.Name)):
		if in.flying(Action{Op: OpStop, ID: idOf(cur)}.Key()) {
			return
		}
		if cur.Running() && k != podinfo.Init {
			// the post-start hook may take long: startup and liveness must not wait for it
			in.probes(p, box, c, cur, true)
		}
	case cur == nil:
		in.start(p, c, last)
	case cur.Running():
		in.watch(p, box, c, cur, k)
	case cur.Exited():
		if !podinfo.RestartAfter(in.Pod, c, k, cur.ExitCode) {
			return
		}
		over, until := in.Crashes[c.Name].Over(cur.Finished, in.Now)
		if over {
			in.start(p, c, last)
			return
		}
		p.wakeAt(until)
		p.Waiting[c.Name] = Waiting{
			Reason: "CrashLoopBackOff",
			Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s",
				in.Crashes[c.Name].Delay, c.Name, podinfo.FullName(in.Pod)),
		}
	case cur.State == stateCreated:
		in.restartCreated(p, c, cur)
	default: // the runtime lost it
		in.do(p, Action{
			Op:        OpStop,
			Container: c.Name,
			ID:        cur.ID,
			Grace:     podinfo.GracePeriodSeconds(in.Pod),
			Event:     fmt.Sprintf("Container %s is in unknown state, try killing it before restart", c.Name),
		})
	}
}

func idOf(c *observed.Container) string {
	if c == nil {
		return ""
	}
	return c.ID
}

func startKey(name string) string { return Action{Op: OpStart, Container: name}.Key() }

// start begins a container. If its last try failed and the back-off is not over, it says instead why the container
// waits.
func (in *Input) start(p *Plan, c *corev1.Container, last *observed.Container) {
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
func (in *Input) restartCreated(p *Plan, c *corev1.Container, cur *observed.Container) {
	in.startAction(p, Action{
		Op:        OpStart,
		Container: c.Name,
		Restart:   cur.Restart,
		Replace:   cur.ID,
	})
}

func (in *Input) startAction(p *Plan, a Action) {
	if in.do(p, a) {
		return
	}
	in.explain(p, a.Container)
}

// explain says why a container whose start failed waits.
func (in *Input) explain(p *Plan, name string) {
	w, until := in.Failed[startKey(name)].shown(in.Now)
	p.Waiting[name] = w
	p.wakeAt(until)
}

// watch looks after a running container: its probes, and whether it must end because of them or of a changed image.
func (in *Input) watch(p *Plan, box *observed.Sandbox, c *corev1.Container, cur *observed.Container, k podinfo.Kind) {
	if h := cur.Annotations[observed.AnnotationHash]; h != "" && h != podinfo.Hash(c) {
		in.do(p, Action{
			Op:        OpStop,
			Container: c.Name,
			ID:        cur.ID,
			Grace:     podinfo.GracePeriodSeconds(in.Pod),
			Hook:      true,
			Event:     fmt.Sprintf("Container %s definition changed, will be restarted", c.Name),
		})
		return
	}
	if in.Refused == nil && in.resizable(c, cur) {
		if k != podinfo.Init && in.mustRestart(c, cur) {
			in.do(p, Action{
				Op:        OpStop,
				Container: c.Name,
				ID:        cur.ID,
				Grace:     podinfo.GracePeriodSeconds(in.Pod),
				Hook:      true,
				Event:     fmt.Sprintf("Container %s resize requires restart", c.Name),
			})
			return
		}
		in.do(p, Action{Op: OpResize, Container: c.Name, ID: cur.ID})
	}
	if k == podinfo.Init {
		return
	}
	in.probes(p, box, c, cur, false)
}

// probes lists the container's probes and stops it when one has failed for good. While hook is set its post-start hook
// runs.
func (in *Input) probes(p *Plan, box *observed.Sandbox, c *corev1.Container, cur *observed.Container, hook bool) {
	ip := in.HostIP
	if len(box.IPs) > 0 {
		ip = box.IPs[0]
	}
	kinds := []probe.Kind{probe.Liveness, probe.Readiness}
	if c.StartupProbe != nil && in.result(cur.ID, probe.Startup) != probe.Success {
		kinds = []probe.Kind{probe.Startup}
	} else if hook {
		kinds = []probe.Kind{probe.Liveness}
	}
	for _, k := range kinds {
		pr := probe.Of(c, k)
		if pr == nil {
			continue
		}
		if k == probe.Readiness || in.result(cur.ID, k) != probe.Failure {
			p.Probes = append(p.Probes, probe.Target{
				Key:       probe.Key{ContainerID: cur.ID, Kind: k},
				Pod:       in.Pod,
				Container: c,
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
		if k == probe.Startup {
			what = "startup"
		}
		in.do(p, Action{
			Op:        OpStop,
			Container: c.Name,
			ID:        cur.ID,
			Grace:     grace,
			Hook:      true,
			Event:     fmt.Sprintf("Container %s failed %s probe, will be restarted", c.Name, what),
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
func (in *Input) Started(c *corev1.Container, cur *observed.Container) bool {
	if !cur.Running() || in.flying(startKey(c.Name)) {
		return false
	}
	return c.StartupProbe == nil || in.result(cur.ID, probe.Startup) == probe.Success
}

// explainAll gives every container that has not run a reason to wait.
func (in *Input) explainAll(p *Plan) {
	reason := "ContainerCreating"
	if len(in.Pod.Spec.InitContainers) > 0 {
		reason = "PodInitializing"
	}
	box := in.Observed.Current()
	begun := box != nil && in.mainsBegun(box.ID)
	for c, k := range podinfo.All(in.Pod) {
		if _, ok := p.Waiting[c.Name]; ok || begun && k == podinfo.Init {
			continue
		}
		if f, ok := in.Failed[startKey(c.Name)]; ok && in.Now.Before(f.Retry) && !in.Observed.Latest(c.Name).Running() {
			in.explain(p, c.Name)
			continue
		}
		if in.flying(startKey(c.Name)) || in.Observed.Latest(c.Name) == nil {
			p.Waiting[c.Name] = Waiting{Reason: reason}
		}
	}
}
