// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"keelson/kubelet/podinfo"
	"keelson/kubelet/runtimestate"
)

// reasonRestarting is why containers wait that a rule of one of them restarts together.
const reasonRestarting = "RestartingAllContainers"

// A restart of all containers (KEP-5532) begins a new life of the pod. Every container carries the life that it was
// created in, so the runtime alone knows how far a restart has come: a container of an earlier life is stopped, and
// then counts as one that never ran, with its logs and its count of restarts.

// currentLife returns the life that the pod's containers should have: the newest one, or the one after it if a
// container of the newest ended with a code whose rule restarts all.
func (in *Input) currentLife() int {
	if in.Observed == nil {
		return 0
	}
	newest := 0
	for i := range in.Observed.Containers {
		newest = max(newest, in.Observed.Containers[i].Life)
	}
	for i := range in.Observed.Containers {
		cur := &in.Observed.Containers[i]
		if cur.Life != newest || !cur.Exited() {
			continue
		}
		container, kind := podinfo.Find(in.Pod, cur.Name)
		if container != nil && kind != podinfo.Ephemeral && podinfo.RestartsAll(container, cur.ExitCode) {
			return newest + 1
		}
	}
	return newest
}

// latest is the newest run of a container in the pod's current life; nil: it has not run in it.
func (in *Input) latest(name string) *runtimestate.Container {
	return in.inLife(in.Observed.Latest(name))
}

// latestIn is latest in one sandbox.
func (in *Input) latestIn(sandbox, name string) *runtimestate.Container {
	return in.inLife(in.Observed.LatestIn(sandbox, name))
}

func (in *Input) inLife(c *runtimestate.Container) *runtimestate.Container {
	if c == nil || c.Life < in.life {
		return nil
	}
	return c
}

// restartedWith reports whether a container ended in an earlier life of the pod.
func (in *Input) restartedWith(last *runtimestate.Container) bool {
	return last.Exited() && last.Life < in.life
}

// restartAll stops what is left of the pod's earlier life, at once and without hooks, as Kubernetes does. It reports
// whether there is something left: nothing starts before it has ended.
func (d *decision) restartAll() bool {
	for key, f := range d.Flights {
		if f.Action.Op == OpStart && f.Action.Life < d.life {
			d.plan.Restarting = true
			d.plan.Cancel = append(d.plan.Cancel, key)
		}
	}
	slices.Sort(d.plan.Cancel)
	for i := range d.Observed.Containers {
		cur := &d.Observed.Containers[i]
		if cur.Life >= d.life || !alive(cur) {
			continue
		}
		d.plan.Restarting = true
		d.endContainer(Action{
			Op:        OpStop,
			Container: cur.Name,
			ID:        cur.ID,
			Event:     "Stopping container " + cur.Name + ", all containers of the pod restart",
		})
	}
	if !d.plan.Restarting {
		return false
	}
	for container, kind := range podinfo.All(d.Pod) {
		if kind != podinfo.Ephemeral && !d.Observed.Latest(container.Name).Running() {
			d.plan.Waiting[container.Name] = Waiting{Reason: reasonRestarting}
		}
	}
	return true
}
