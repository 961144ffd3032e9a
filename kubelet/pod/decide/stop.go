// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/podinfo"
	"keelson/kubelet/probe"
	"keelson/kubelet/runtimestate"
)

const stateCreated = runtimeapi.ContainerState_CONTAINER_CREATED

// stop removes a pod's containers, sandbox and volumes, and when no source wants the pod any more its API object and
// its traces.
func (d *decision) stop() {
	for key, f := range d.Flights {
		if f.Action.Op == OpStart || f.Action.Op == OpVolumes || f.Action.Op == OpSandbox {
			d.plan.Cancel = append(d.plan.Cancel, key)
		}
	}
	slices.Sort(d.plan.Cancel)
	if len(d.plan.Cancel) > 0 {
		return // they end soon, and only then it is known what there is to stop
	}
	if d.anyAlive() {
		d.stopContainers("")
		return
	}
	d.plan.Terminal = d.free()
	d.settleDown()
	if !d.plan.Stopping || len(d.plan.Actions) > 0 || !d.TornDown || !d.StatusDone && !d.Gone {
		return
	}
	if !d.Gone && !d.Local && !d.Deleted {
		d.do(Action{Op: OpDelete})
		return
	}
	if d.Gone || d.Deleted {
		d.do(Action{Op: OpForget})
	}
}

// settleDown stops sandboxes, then undoes devices and volumes. No container runs any more.
func (d *decision) settleDown() {
	busy := false
	for _, s := range d.Observed.Sandboxes {
		if s.Ready {
			d.do(Action{Op: OpStopSandbox, ID: s.ID})
			busy = true
		}
	}
	// A sandbox under way would be made with the ids that are given back here.
	if !busy && !d.TornDown && !d.Flying(string(OpVolumes)) && !d.Flying(string(OpSandbox)) {
		d.do(Action{Op: OpTearDown})
	}
}

// free reports whether the pod holds no devices: they are given back before the API learns that the pod has ended,
// since another pod may wait for them. A pod that the node rejected may have some from before the kubelet was started.
func (in *Input) free() bool {
	without := len(in.Pod.Spec.ResourceClaims) == 0 && in.Pod.Status.ExtendedResourceClaimStatus == nil
	return in.TornDown || without
}

// anyAlive reports whether a container runs, or may run because its start is under way.
func (in *Input) anyAlive() bool {
	for i := range in.Observed.Containers {
		if alive(&in.Observed.Containers[i]) {
			return true
		}
	}
	for _, f := range in.Flights {
		if f.Action.Op == OpStart {
			return true
		}
	}
	return false
}

func alive(c *runtimestate.Container) bool {
	return c.Running() || c.State == runtimeapi.ContainerState_CONTAINER_UNKNOWN
}

// stopContainers stops everything that runs: first all but the sidecars, then the sidecars from the last to the first.
// The grace period and the pre-stop hooks of all begin together, as in Kubernetes (KEP-753): a sidecar only waits for
// its signal. Probes of what still runs go on, so that readiness stays true to the end; liveness does not matter any
// more.
func (d *decision) stopContainers(event string) {
	grace := podinfo.GracePeriodSeconds(d.Pod)
	if d.End != nil && d.End.Grace != nil {
		grace = max(min(grace, *d.End.Grace), 1)
	}
	rank := map[string]int{} // sidecars by position; others stop before any of them
	for i := range d.Pod.Spec.InitContainers {
		if podinfo.Sidecar(&d.Pod.Spec.InitContainers[i]) {
			rank[d.Pod.Spec.InitContainers[i].Name] = i + 1
		}
	}
	var running []*runtimestate.Container
	last := -1
	for i := range d.Observed.Containers {
		c := &d.Observed.Containers[i]
		if !alive(c) {
			continue
		}
		running = append(running, c)
		if r, ok := rank[c.Name]; !ok {
			last = len(d.Pod.Spec.InitContainers) + 1
		} else {
			last = max(last, r)
		}
	}
	for _, container := range running {
		action := Action{
			Op:        OpStop,
			Container: container.Name,
			ID:        container.ID,
			Grace:     grace,
			Hook:      true,
			Event:     event,
		}
		if action.Event == "" {
			action.Event = "Stopping container " + container.Name
		}
		if r, ok := rank[container.Name]; ok && r < last {
			action.Op = OpPreStop
		}
		d.endContainer(action)
	}
	d.lastProbes()
}

// endContainer begins or continues the end of a container.
func (d *decision) endContainer(action Action) {
	hook := action
	hook.Op = OpPreStop
	for _, key := range []string{action.Key(), hook.Key()} {
		f, ok := d.Flights[key]
		switch {
		case ok && f.Action.Grace > action.Grace:
			d.plan.Cancel = append(d.plan.Cancel, key) // asked again to be quicker
			return
		case ok:
			return
		}
	}
	if began, ok := d.Ending[action.ID]; ok && action.Op == OpPreStop && began <= action.Grace {
		return // it waits for its turn
	}
	d.do(action)
}

func (d *decision) lastProbes() {
	box := d.Observed.Current()
	if box == nil {
		return
	}
	for container, k := range podinfo.All(d.Pod) {
		cur := d.Observed.LatestIn(box.ID, container.Name)
		if k == podinfo.Init || k == podinfo.Ephemeral || !cur.Running() || container.ReadinessProbe == nil {
			continue
		}
		ip := d.HostIP
		if len(box.IPs) > 0 {
			ip = box.IPs[0]
		}
		d.plan.Probes = append(d.plan.Probes, probe.Target{
			Key:       probe.Key{ContainerID: cur.ID, Kind: probe.Readiness},
			Pod:       d.Pod,
			Container: container,
			Probe:     container.ReadinessProbe,
			PodIP:     ip,
			Started:   cur.Started,
		})
	}
}

// finished reports whether the pod's work is over by itself: an init container failed for good, or every main container
// ended and none starts again. (Sidecars may still run.)
func (in *Input) finished() bool {
	if in.Pod.Spec.RestartPolicy == corev1.RestartPolicyNever && in.lost() {
		return true
	}
	for i := range in.Pod.Spec.InitContainers {
		c := &in.Pod.Spec.InitContainers[i]
		if podinfo.Sidecar(c) || in.Flying(startKey(c.Name)) {
			continue
		}
		if cur := in.latest(c.Name); cur.Exited() && cur.ExitCode != 0 && !podinfo.RestartAfter(in.Pod, c,
			podinfo.Init, cur.ExitCode) {
			return true
		}
	}
	for i := range in.Pod.Spec.Containers {
		c := &in.Pod.Spec.Containers[i]
		cur := in.latest(c.Name)
		if !cur.Exited() || in.Flying(startKey(c.Name)) || podinfo.RestartAfter(in.Pod, c, podinfo.Main, cur.ExitCode) {
			return false
		}
	}
	return len(in.Pod.Spec.Containers) > 0
}

// lostStatus is the API's status of a container that has run and that the runtime does not know any more; nil: it does,
// or there is none.
func (in *Input) lostStatus(name string) *corev1.ContainerStatus {
	if in.Observed.Latest(name) != nil {
		return nil
	}
	if was := StatusOf(&in.Pod.Status, name); was != nil && was.ContainerID != "" {
		return was
	}
	return nil
}

// lost reports whether a main container has run and the runtime knows none of them: the node was cleaned, or the
// runtime lost its data.
func (in *Input) lost() bool {
	ran := false
	for i := range in.Pod.Spec.Containers {
		name := in.Pod.Spec.Containers[i].Name
		if in.Observed.Latest(name) != nil || in.Flying(startKey(name)) {
			return false
		}
		ran = ran || in.lostStatus(name) != nil
	}
	return ran
}

// removeDead removes what is not needed: of each container all but the newest run and the one before it, and empty old
// sandboxes.
func (d *decision) removeDead() {
	kept := map[string]int{}
	used := map[string]bool{}
	for i := range d.Observed.Containers {
		c := &d.Observed.Containers[i]
		kept[c.Name]++
		if kept[c.Name] > 2 && !alive(c) && !d.Flying(startKey(c.Name)) {
			d.do(Action{Op: OpRemoveContainer, Container: c.Name, ID: c.ID})
			continue
		}
		used[c.SandboxID] = true
	}
	for i, s := range d.Observed.Sandboxes {
		if i > 0 && !s.Ready && !used[s.ID] {
			d.do(Action{Op: OpRemoveSandbox, ID: s.ID})
		}
	}
}

// StatusOf returns the status of a container of any kind; nil: there is none.
func StatusOf(status *corev1.PodStatus, name string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{
		status.ContainerStatuses, status.InitContainerStatuses, status.EphemeralContainerStatuses,
	} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
