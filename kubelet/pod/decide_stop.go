// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/podinfo"
	"keelson/kubelet/probe"
	"keelson/kubelet/runtimestate"
)

const stateCreated = runtimeapi.ContainerState_CONTAINER_CREATED

// stop brings a pod to nothing: containers, sandbox, volumes, and when nobody wants it any more its API object and its
// traces.
func (in *Input) stop(plan *Plan) {
	for key, f := range in.Flights {
		if f.Action.Op == OpStart || f.Action.Op == OpVolumes || f.Action.Op == OpSandbox {
			plan.Cancel = append(plan.Cancel, key)
		}
	}
	slices.Sort(plan.Cancel)
	if len(plan.Cancel) > 0 {
		return // they end soon, and only then it is known what there is to stop
	}
	if in.anyAlive() {
		in.stopContainers(plan, "")
		return
	}
	plan.Terminal = in.free()
	in.settleDown(plan)
	if !plan.Stopping || len(plan.Actions) > 0 || !in.TornDown || !in.StatusDone && !in.Gone {
		return
	}
	if !in.Gone && !in.Local && !in.Deleted {
		in.do(plan, Action{Op: OpDelete})
		return
	}
	if in.Gone || in.Deleted {
		in.do(plan, Action{Op: OpForget})
	}
}

// settleDown stops sandboxes, then undoes devices and volumes. No container runs any more.
func (in *Input) settleDown(p *Plan) {
	busy := false
	for _, s := range in.Observed.Sandboxes {
		if s.Ready {
			in.do(p, Action{Op: OpStopSandbox, ID: s.ID})
			busy = true
		}
	}
	// A sandbox under way would be made with the ids that are given back here.
	if !busy && !in.TornDown && !in.flying(string(OpVolumes)) && !in.flying(string(OpSandbox)) {
		in.do(p, Action{Op: OpTearDown})
	}
}

// free reports whether the pod holds no devices: they are given back before the API hears that the pod has ended, since
// another pod may wait for them. A pod that the node rejected may have some from before the kubelet was started.
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
func (in *Input) stopContainers(plan *Plan, event string) {
	grace := podinfo.GracePeriodSeconds(in.Pod)
	if in.End != nil && in.End.Grace != nil {
		grace = max(min(grace, *in.End.Grace), 1)
	}
	rank := map[string]int{} // sidecars by position; others stop before any of them
	for i := range in.Pod.Spec.InitContainers {
		if podinfo.Sidecar(&in.Pod.Spec.InitContainers[i]) {
			rank[in.Pod.Spec.InitContainers[i].Name] = i + 1
		}
	}
	var running []*runtimestate.Container
	last := -1
	for i := range in.Observed.Containers {
		c := &in.Observed.Containers[i]
		if !alive(c) {
			continue
		}
		running = append(running, c)
		if r, ok := rank[c.Name]; !ok {
			last = len(in.Pod.Spec.InitContainers) + 1
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
		in.endContainer(plan, action)
	}
	in.lastProbes(plan)
}

// endContainer begins the end of a container, or goes on with it.
func (in *Input) endContainer(plan *Plan, action Action) {
	hook := action
	hook.Op = OpPreStop
	for _, key := range []string{action.Key(), hook.Key()} {
		f, ok := in.Flights[key]
		switch {
		case ok && f.Action.Grace > action.Grace:
			plan.Cancel = append(plan.Cancel, key) // asked again to be quicker
			return
		case ok:
			return
		}
	}
	if began, ok := in.Ending[action.ID]; ok && action.Op == OpPreStop && began <= action.Grace {
		return // it waits for its turn
	}
	in.do(plan, action)
}

func (in *Input) lastProbes(plan *Plan) {
	box := in.Observed.Current()
	if box == nil {
		return
	}
	for container, k := range podinfo.All(in.Pod) {
		cur := in.Observed.LatestIn(box.ID, container.Name)
		if k == podinfo.Init || k == podinfo.Ephemeral || !cur.Running() || container.ReadinessProbe == nil {
			continue
		}
		ip := in.HostIP
		if len(box.IPs) > 0 {
			ip = box.IPs[0]
		}
		plan.Probes = append(plan.Probes, probe.Target{
			Key:       probe.Key{ContainerID: cur.ID, Kind: probe.Readiness},
			Pod:       in.Pod,
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
		if podinfo.Sidecar(c) || in.flying(startKey(c.Name)) {
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
		if !cur.Exited() || in.flying(startKey(c.Name)) || podinfo.RestartAfter(in.Pod, c, podinfo.Main, cur.ExitCode) {
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
	if was := statusOf(&in.Pod.Status, name); was != nil && was.ContainerID != "" {
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
		if in.Observed.Latest(name) != nil || in.flying(startKey(name)) {
			return false
		}
		ran = ran || in.lostStatus(name) != nil
	}
	return ran
}

// removeDead removes what nobody needs: of each container all but the newest run and the one before it, and empty old
// sandboxes.
func (in *Input) removeDead(plan *Plan) {
	kept := map[string]int{}
	used := map[string]bool{}
	for i := range in.Observed.Containers {
		c := &in.Observed.Containers[i]
		kept[c.Name]++
		if kept[c.Name] > 2 && !alive(c) && !in.flying(startKey(c.Name)) {
			in.do(plan, Action{Op: OpRemoveContainer, Container: c.Name, ID: c.ID})
			continue
		}
		used[c.SandboxID] = true
	}
	for i, s := range in.Observed.Sandboxes {
		if i > 0 && !s.Ready && !used[s.ID] {
			in.do(plan, Action{Op: OpRemoveSandbox, ID: s.ID})
		}
	}
}
