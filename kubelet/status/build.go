// SPDX-License-Identifier: Apache-2.0

// Package status builds the PodStatus of a pod from the state of its containers and probes, and the smallest patch from
// the API's status to it. The pod workers call it. It does no I/O.
package status

import (
	"cmp"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podkind "keelson/api/core/pod"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/probe"
	"keelson/kubelet/runtimestate"
)

// Reason is a waiting container's reason and message.
type Reason struct{ Reason, Message string }

// Input is everything that a status depends on.
type Input struct {
	Pod         *corev1.Pod // Status is the one last written
	Observed    *runtimestate.Pod
	Waiting     map[string]Reason // by container
	ProbeResult func(probe.Key) probe.Result
	Started     func(*corev1.Container, *runtimestate.Container) bool
	// Health returns the health of a container's devices; nil: unknown. Resources that it does not return stay as in
	// the last status.
	Health func(*corev1.Container) []corev1.ResourceStatus
	// TerminationMessage is a dead container's termination message.
	TerminationMessage func(*corev1.Container, *runtimestate.Container) string
	// ResizePending is why a resize of the pod has not begun; nil: there is none.
	ResizePending *Reason
	// Restarting: containers are being stopped so that all of the pod start again.
	Restarting bool
	// Resizing: a resize is in progress. PodResizing: the pod as a whole does not have its new resources yet.
	Resizing, PodResizing bool
	// ResizeError is why a resize in progress goes no further; empty: nothing keeps it.
	ResizeError string
	// End is how the kubelet ends the pod; zero: it does not.
	End         End
	Terminal    bool // nothing runs, nothing will
	Rejected    bool // the pod was not admitted
	HostIPs     []string
	PodIPs      []string // known addresses of a pod without a ready sandbox
	RuntimeName string
	Now         time.Time
}

// End is what the status of a pod says that the kubelet ends.
type End struct {
	Phase     corev1.PodPhase
	Reason    string
	Message   string
	Condition *corev1.PodCondition // in addition to the usual ones; nil: none
}

// Build returns the pod's status. Fields and conditions of other components stay as they are in Pod.Status.
func Build(in Input) corev1.PodStatus {
	old := in.Pod.Status
	status := *old.DeepCopy()
	status.ObservedGeneration = in.Pod.Generation
	if status.StartTime == nil {
		t := metav1.NewTime(in.Now.Truncate(time.Second))
		status.StartTime = &t
	}
	status.QOSClass = podinfo.QOS(in.Pod)
	// also after a restart of the kubelet
	if in.Rejected || old.Phase == corev1.PodFailed && len(old.ContainerStatuses) == 0 {
		return rejected(old, status, in)
	}
	setAddresses(&status, in)
	status.InitContainerStatuses = nil
	status.ContainerStatuses = nil
	status.EphemeralContainerStatuses = nil
	for c, k := range podinfo.All(in.Pod) {
		cs := in.containerStatus(c, k)
		switch k {
		case podinfo.Init, podinfo.SideCar:
			status.InitContainerStatuses = append(status.InitContainerStatuses, cs)
		case podinfo.Main:
			cs.AllocatedResourcesStatus = in.deviceHealth(c)
			status.ContainerStatuses = append(status.ContainerStatuses, cs)
		case podinfo.Ephemeral:
			status.EphemeralContainerStatuses = append(status.EphemeralContainerStatuses, cs)
		}
	}
	podinfo.LimitHealth(status.ContainerStatuses)
	in.setPodResources(&status)
	if in.Terminal && (in.End.Phase != "" || in.Pod.DeletionTimestamp != nil) {
		markStatusUnknown(in.Pod, &status)
	}
	status.Phase = phase(in.Pod, &status, in.Terminal)
	switch {
	case in.End.Phase != "" && in.Terminal: // its resources are not free while a container runs
		status.Phase = in.End.Phase
		status.Reason = in.End.Reason
		status.Message = in.End.Message
	case podkind.TerminalPhase(old.Phase):
		status.Phase = old.Phase
	}
	setConditions(in, &status)
	setEndCondition(in, &status)
	setResizeConditions(in, &status)
	if equality.Semantic.DeepEqual(old, status) {
		return old
	}
	return status
}

// rejected is the status of a pod that was not admitted. As in Kubernetes it has no container statuses: kubectl would
// show those instead of the reason.
func rejected(old, s corev1.PodStatus, in Input) corev1.PodStatus {
	if podkind.TerminalPhase(old.Phase) {
		return old
	}
	s.Phase = in.End.Phase
	s.Reason = in.End.Reason
	s.Message = in.End.Message
	return s
}

func setAddresses(status *corev1.PodStatus, in Input) {
	if len(in.HostIPs) > 0 {
		status.HostIP = in.HostIPs[0]
		status.HostIPs = nil
		for _, ip := range in.HostIPs {
			status.HostIPs = append(status.HostIPs, corev1.HostIP{IP: ip})
		}
	}
	ips := in.PodIPs
	if box := in.Observed.Current(); box != nil && len(box.IPs) > 0 {
		ips = box.IPs
	}
	if in.Pod.Spec.HostNetwork && in.Observed.Current() != nil {
		ips = in.HostIPs
	}
	if len(ips) > 0 {
		status.PodIP = ips[0]
		status.PodIPs = nil
		for _, ip := range ips {
			status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: ip})
		}
	}
}

func (in Input) oldStatus(name string, k podinfo.Kind) *corev1.ContainerStatus {
	list := in.Pod.Status.ContainerStatuses
	switch k {
	case podinfo.Init, podinfo.SideCar:
		list = in.Pod.Status.InitContainerStatuses
	case podinfo.Ephemeral:
		list = in.Pod.Status.EphemeralContainerStatuses
	case podinfo.Main:
	}
	i := slices.IndexFunc(list, func(c corev1.ContainerStatus) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &list[i]
}

// deviceHealth returns the health of a container's devices, or the last one when they were freed.
func (in Input) deviceHealth(c *corev1.Container) []corev1.ResourceStatus {
	var before, now []corev1.ResourceStatus
	if prior := in.oldStatus(c.Name, podinfo.Main); prior != nil {
		before = prior.AllocatedResourcesStatus
	}
	if in.Health != nil {
		now = in.Health(c)
	}
	return podinfo.MergeHealth(before, now...)
}

// containerStatus builds the status of one container.
func (in Input) containerStatus(container *corev1.Container, kind podinfo.Kind) corev1.ContainerStatus {
	prior := in.oldStatus(container.Name, kind)
	cur := in.Observed.Latest(container.Name)
	if older(cur, prior) {
		cur = nil
	}
	wait, waits := in.Waiting[container.Name]
	if cur == nil && prior != nil && (prior.ContainerID != "" || prior.State.Terminated != nil) {
		return in.notFound(container, prior, wait, waits)
	}
	cs := corev1.ContainerStatus{Name: container.Name, Image: container.Image, Started: new(bool)}
	if cur == nil {
		cs.State = in.defaultWaiting(wait)
		if prior != nil {
			cs.RestartCount = prior.RestartCount
			cs.LastTerminationState = prior.LastTerminationState
		}
		in.setResources(container, nil, &cs)
		return cs
	}
	cs.ContainerID = in.RuntimeName + "://" + cur.ID
	cs.ImageID = cur.ImageRef
	cs.Image = cur.Image
	if cs.Image == "" || strings.HasPrefix(cs.Image, "sha256:") { // the runtime has no name for it
		cs.Image = container.Image
	}
	cs.RestartCount = int32(cur.Restart) // a count of restarts, each 10 s apart
	created := !cur.Running() && !cur.Exited()
	switch {
	case cur.Running() && !waits:
		cs.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(cur.Started.Truncate(time.Second))}
		*cs.Started = in.Started(container, cur)
		cs.Ready = in.ready(container, kind, cur, prior)
		cs.User = user(cur)
	case waits || created:
		cs.State.Waiting = &corev1.ContainerStateWaiting{
			Reason:  cmp.Or(wait.Reason, "ContainerCreating"),
			Message: wait.Message,
		}
	default:
		cs.State.Terminated = in.terminated(container, cur)
		cs.Ready = kind == podinfo.Init && cur.ExitCode == 0
	}
	in.setLastTermination(container, cur, prior, &cs)
	cs.VolumeMounts = volumeMounts(container, cur)
	in.setResources(container, cur, &cs)
	return cs
}

// older reports whether a container is an earlier run than the one that the status shows. The newer run was removed
// to reclaim disk, and what is known of it stays.
func older(cur *runtimestate.Container, prior *corev1.ContainerStatus) bool {
	return cur != nil && prior != nil && prior.ContainerID != "" && cur.Restart < int(prior.RestartCount)
}

// setLastTermination fills lastState: the run before the one shown in state.
func (in Input) setLastTermination(
	c *corev1.Container, cur *runtimestate.Container, prior *corev1.ContainerStatus, cs *corev1.ContainerStatus,
) {
	switch prev := in.Observed.Previous(c.Name); {
	case cs.State.Waiting != nil && cur.Exited():
		cs.LastTerminationState.Terminated = in.terminated(c, cur)
	case prev.Exited():
		cs.LastTerminationState.Terminated = in.terminated(c, prev)
	case prior == nil:
	case prior.ContainerID == cs.ContainerID:
		cs.LastTerminationState = prior.LastTerminationState
	case prior.State.Terminated != nil:
		cs.LastTerminationState = prior.State
	case prev == nil && prior.State.Running != nil:
		cs.LastTerminationState = statusUnknown(prior)
	case prev == nil:
		cs.LastTerminationState = prior.LastTerminationState
	}
}

// statusUnknown is the state of a container that was running and is not found in the runtime.
func statusUnknown(prior *corev1.ContainerStatus) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode:    137,
		Reason:      "ContainerStatusUnknown",
		Message:     "The container could not be located when the pod was deleted.  The container used to be Running",
		ContainerID: prior.ContainerID,
	}}
}

// notFound is the status of a container that ran before and is not found in the runtime.
func (in Input) notFound(
	container *corev1.Container, prior *corev1.ContainerStatus, wait Reason, waits bool,
) corev1.ContainerStatus {
	cs := *prior.DeepCopy()
	if cs.State.Terminated == nil {
		cs.State = corev1.ContainerState{}
		if cs.ContainerID != "" {
			cs.State = statusUnknown(prior)
		}
		cs.Ready = false
		cs.Started = new(bool)
	}
	if waits && !in.Terminal {
		if cs.State.Terminated != nil {
			cs.LastTerminationState = cs.State
		}
		cs.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
			Reason:  wait.Reason,
			Message: wait.Message,
		}}
		cs.Ready = false
		cs.Started = new(bool)
	}
	if cs.State == (corev1.ContainerState{}) {
		cs.State = in.defaultWaiting(wait)
	}
	in.setResources(container, nil, &cs)
	return cs
}

func (in Input) defaultWaiting(wait Reason) corev1.ContainerState {
	if wait.Reason == "" {
		wait.Reason = "ContainerCreating"
		if len(in.Pod.Spec.InitContainers) > 0 {
			wait.Reason = "PodInitializing"
		}
	}
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: wait.Reason, Message: wait.Message}}
}

// markStatusUnknown sets the state of containers that should have run and are not found in the runtime, when their pod
// was deleted or ended by the kubelet.
// Containers whose turn had not come stay in the state waiting.
func markStatusUnknown(pod *corev1.Pod, status *corev1.PodStatus) {
	reached := 0 // init containers that have begun, or whose successor has
	for i := range status.InitContainerStatuses {
		if !neverStarted(&status.InitContainerStatuses[i]) {
			reached = i + 1
		}
	}
	end := func(list []corev1.ContainerStatus) {
		for i := range list {
			if neverStarted(&list[i]) {
				list[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
					ExitCode: 137,
					Reason:   "ContainerStatusUnknown",
					Message:  "The container could not be located when the pod was terminated",
				}}
			}
		}
	}
	end(status.InitContainerStatuses[:reached])
	if initDone(pod, status) {
		end(status.ContainerStatuses)
	}
}

func neverStarted(cs *corev1.ContainerStatus) bool {
	return cs.State.Waiting != nil && cs.LastTerminationState.Terminated == nil && cs.ContainerID == ""
}

// initDone reports whether the main containers could start: every init container had succeeded, every sidecar had
// started.
func initDone(p *corev1.Pod, s *corev1.PodStatus) bool {
	for i := range s.InitContainerStatuses {
		cs := &s.InitContainerStatuses[i]
		switch t := cs.State.Terminated; {
		case podinfo.Sidecar(&p.Spec.InitContainers[i]):
			if neverStarted(cs) {
				return false
			}
		case t == nil || t.ExitCode != 0:
			return false
		}
	}
	return true
}

func (in Input) terminated(c *corev1.Container, cur *runtimestate.Container) *corev1.ContainerStateTerminated {
	reason := cur.Reason
	if reason == "" {
		reason = "Completed"
		if cur.ExitCode != 0 {
			reason = "Error"
		}
	}
	msg := cur.Message
	if in.TerminationMessage != nil {
		msg = cmp.Or(in.TerminationMessage(c, cur), msg)
	}
	started := cur.Started
	if started.IsZero() { // its start failed
		started = cur.Finished
	}
	return &corev1.ContainerStateTerminated{
		ExitCode:    cur.ExitCode,
		Reason:      reason,
		Message:     msg,
		StartedAt:   metav1.NewTime(started.Truncate(time.Second)),
		FinishedAt:  metav1.NewTime(cur.Finished.Truncate(time.Second)),
		ContainerID: in.RuntimeName + "://" + cur.ID,
	}
}

// ready reports whether a running container is ready. Before the first result of a probe the last status counts, for
// the same run.
func (in Input) ready(
	c *corev1.Container, k podinfo.Kind, cur *runtimestate.Container, prior *corev1.ContainerStatus,
) bool {
	if k == podinfo.Init || k == podinfo.Ephemeral {
		return false
	}
	if !in.Started(c, cur) {
		return false
	}
	if c.ReadinessProbe == nil {
		return true
	}
	switch in.ProbeResult(probe.Key{ContainerID: cur.ID, Kind: probe.Readiness}) {
	case probe.Success:
		return true
	case probe.Failure:
		return false
	case probe.Unknown:
	}
	return prior != nil && prior.Ready && prior.ContainerID == in.RuntimeName+"://"+cur.ID
}

func user(cur *runtimestate.Container) *corev1.ContainerUser {
	u := cur.User.GetLinux()
	if u == nil {
		return nil
	}
	return &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{
		UID:                u.GetUid(),
		GID:                u.GetGid(),
		SupplementalGroups: u.GetSupplementalGroups(),
	}}
}

// volumeMounts returns a container's mounts. RecursiveReadOnly is what the runtime reports, not what the
// pod requested.
func volumeMounts(c *corev1.Container, cur *runtimestate.Container) []corev1.VolumeMountStatus {
	var out []corev1.VolumeMountStatus
	for _, m := range c.VolumeMounts {
		v := corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := corev1.RecursiveReadOnlyDisabled
			if recursive(cur, m.MountPath) {
				mode = corev1.RecursiveReadOnlyEnabled
			}
			v.RecursiveReadOnly = &mode
		}
		out = append(out, v)
	}
	return out
}

// recursive reports whether the container's mount at a path is recursively read-only.
func recursive(cur *runtimestate.Container, at string) bool {
	at = path.Join("/", at)
	return slices.ContainsFunc(cur.Mounts, func(m *runtimeapi.Mount) bool {
		return m.GetRecursiveReadOnly() && path.Clean(m.GetContainerPath()) == at
	})
}
