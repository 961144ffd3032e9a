// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/event"
	"keelson/kubelet/csi"
	"keelson/kubelet/logs"
	"keelson/kubelet/pod/decide"
	"keelson/kubelet/podcgroup"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/refs"
	"keelson/kubelet/translate"
	"keelson/kubelet/volume"
)

// do begins one action of a plan. What the loop remembers is changed here or in the function that the action returns,
// never in the action itself.
func (l *loop) do(ctx context.Context, in decide.Input, action decide.Action) {
	switch action.Op {
	case decide.OpVolumes:
		l.s.volumes.dirty = false // a change from here on makes them dirty again
		l.launch(ctx, action, func(ctx context.Context) func() { return l.setUpVolumes(ctx, in) })
	case decide.OpSandbox:
		l.launch(ctx, action, func(ctx context.Context) func() { return l.runSandbox(ctx, in, action) })
	case decide.OpStart:
		// The back-off grows with each start after an exit, until a run lasts long (Crash.Next). The container keeps it
		// as an annotation, for a restart of the kubelet (recall.go).
		record := l.s.containers.name(action.Container)
		if last := in.Observed.Latest(action.Container); last.Exited() && action.Replace == "" {
			record.crash = record.crash.Next(last.Finished, in.Now, in.CrashMax)
		}
		action.BackOff = record.crash.Delay
		l.launch(ctx, action, func(ctx context.Context) func() { return l.start(ctx, in, action) })
	case decide.OpPreStop, decide.OpStop:
		l.beginStop(ctx, in, action)
	case decide.OpStopSandbox:
		l.launch(ctx, action, func(ctx context.Context) func() {
			_, err := l.env.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: action.ID})
			return l.retry(ctx, action, in.Pod, "stop sandbox", err)
		})
	case decide.OpTearDown:
		l.launch(ctx, action, func(ctx context.Context) func() { return l.tearDown(ctx, in, action) })
	case decide.OpRemoveContainer:
		l.launch(ctx, action, func(ctx context.Context) func() { return l.removeContainer(ctx, in, action) })
	case decide.OpRemoveSandbox:
		l.launch(ctx, action, func(ctx context.Context) func() {
			_, err := l.env.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: action.ID})
			return l.retry(ctx, action, in.Pod, "remove sandbox", err)
		})
	case decide.OpDelete:
		l.launch(ctx, action, func(ctx context.Context) func() { return l.deletePod(ctx, in, action) })
	case decide.OpForget:
		l.launch(ctx, action, func(ctx context.Context) func() { return l.forget(ctx, in, action) })
	case decide.OpResize:
		l.launch(ctx, action, func(ctx context.Context) func() { return l.resize(ctx, in, action) })
	case decide.OpResizePod:
		l.launch(ctx, action, func(ctx context.Context) func() { return l.resizePod(ctx, in, action) })
	}
}

// retry returns what the loop applies after an action that is retried when it failed.
func (l *loop) retry(ctx context.Context, a decide.Action, pod *corev1.Pod, act string, err error) func() {
	if grpcstatus.Code(err) == codes.NotFound {
		err = nil // it is gone, which is what was wanted
	}
	return func() {
		if err == nil {
			l.s.actions.clear(a.Key())
			return
		}
		l.s.actions.fail(a.Key(), time.Second, time.Minute)
		if ctx.Err() == nil {
			l.env.Log.Warn(act, "pod", podinfo.FullName(pod), "err", err)
		}
	}
}

func (l *loop) setUpVolumes(ctx context.Context, in decide.Input) func() {
	begin := time.Now()
	var refresh time.Time
	_, err := refs.Of(in.Pod)
	if err == nil {
		refresh, err = l.env.Volumes.SetUp(ctx, volume.Input{
			Pod:         in.Pod,
			PodIPs:      l.starter.podIPs(in),
			HostIPs:     l.env.HostIPs,
			Allocatable: l.env.Allocatable(),
			Done:        l.env.Metrics.VolumeMounted,
		})
	}
	if !in.VolumesDone && ctx.Err() == nil {
		l.starter.mark(event.StepVolumes, begin, err, &event.Volumes{Count: len(in.Pod.Spec.Volumes)})
	}
	return func() {
		if !refresh.IsZero() {
			l.s.volumes.refresh = refresh
		}
		if err == nil {
			l.s.volumes.done = true
			l.s.actions.clear(string(decide.OpVolumes))
			return
		}
		if ctx.Err() != nil {
			return
		}
		if end := volumesEnd(err); end != nil && !in.VolumesDone {
			l.s.end = end
			l.env.Events.Event(podRef(in.Pod), corev1.EventTypeWarning, end.Reason,
				strings.TrimPrefix(end.Message, podRejected))
			return
		}
		l.s.volumes.dirty = true
		l.s.actions.fail(string(decide.OpVolumes), 500*time.Millisecond, 2*time.Minute)
		for _, e := range split(err) {
			reason := "FailedMount"
			if v, ok := errors.AsType[*volume.Error](e); ok && v.Device {
				reason = "FailedMapVolume"
			}
			l.env.Events.Event(podRef(in.Pod), corev1.EventTypeWarning, reason, e.Error())
		}
	}
}

const podRejected = "Pod was rejected: "

// volumesEnd is the end of a pod one of whose volumes the node cannot attach; nil: another attempt may help.
func volumesEnd(err error) *decide.End {
	limit, ok := errors.AsType[*csi.LimitError](err)
	if !ok {
		return nil
	}
	return &decide.End{
		Phase:    corev1.PodFailed,
		Reason:   "VolumeAttachmentLimitExceeded",
		Message:  podRejected + limit.Error(),
		Rejected: true,
	}
}

// split takes a joined error apart.
func split(err error) []error {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		return joined.Unwrap()
	}
	return []error{err}
}

func (l *loop) runSandbox(ctx context.Context, in decide.Input, action decide.Action) func() {
	begin := time.Now()
	var id, handler string
	var users *runtimeapi.UserNamespace
	var cfg *runtimeapi.PodSandboxConfig
	// A pod cannot start without its devices: no sandbox is made for it in vain.
	unprepared := l.env.Devices.Prepare(ctx, in.Pod)
	unallocated := l.env.Plugins.Allocate(ctx, in.Pod)
	err := errors.Join(unprepared, unallocated)
	if err == nil {
		handler, users, err = l.starter.acquireUsers(ctx, in.Pod)
	}
	if err == nil {
		cfg, err = l.starter.sandboxConfig(in.Pod, action.Attempt, users)
	}
	if err == nil {
		if in.Observed != nil && len(in.Observed.Sandboxes) > 0 {
			l.env.Events.Event(podRef(in.Pod), corev1.EventTypeNormal, "SandboxChanged",
				"Pod sandbox changed, it will be killed and re-created.")
		}
		id, err = l.starter.createSandbox(ctx, in.Pod, cfg, handler)
		if users.GetMode() == runtimeapi.NamespaceMode_POD {
			l.env.Metrics.UserNamespacedPod(err)
		}
	}
	if ctx.Err() == nil {
		l.starter.mark(event.StepSandbox, begin, err, &event.Sandbox{ID: id, Attempt: action.Attempt})
	}
	// The runtime's error may be a consequence of a network that is not ready; users should read the cause.
	noNetwork := ""
	if err != nil && !in.Pod.Spec.HostNetwork {
		noNetwork = l.starter.networkProblem(ctx)
	}
	return func() {
		if err == nil {
			l.s.actions.clear(action.Key())
			// The pod's cgroup was made with these: a later resize compares with them.
			limits := translate.PodLimits(in.Pod)
			l.s.resizes.limits = &limits
			return
		}
		if ctx.Err() != nil {
			return // it was cancelled, which is no failure
		}
		l.s.actions.fail(action.Key(), time.Second, 30*time.Second)
		reason, message := sandboxFailure(unprepared, unallocated, noNetwork, err)
		l.env.Events.Event(podRef(in.Pod), corev1.EventTypeWarning, reason, message)
	}
}

// sandboxFailure is the event about a sandbox that could not be made, for the first cause that users can act on: its
// devices, the node's network, or what the runtime said.
func sandboxFailure(unprepared, unallocated error, noNetwork string, err error) (reason, message string) {
	switch {
	case unprepared != nil:
		return "FailedPrepareDynamicResources", "Failed to prepare dynamic resources: " + unprepared.Error()
	case unallocated != nil:
		return "FailedAllocateDevices", "Failed to allocate devices: " + unallocated.Error()
	case noNetwork != "":
		return "NetworkNotReady", "network is not ready: " + noNetwork
	}
	return "FailedCreatePodSandBox", "Failed to create pod sandbox: " + grpcText(err)
}

// tearDown gives back devices, volumes and user IDs of a pod of which nothing runs any more.
func (l *loop) tearDown(ctx context.Context, in decide.Input, action decide.Action) func() {
	// All three are tried: what one cannot give back must not keep the others.
	err := errors.Join(l.env.Devices.Unprepare(ctx, l.uid), l.env.Plugins.Release(l.uid),
		l.env.Volumes.TearDown(ctx, l.uid))
	if err == nil { // nothing of the pod runs, or will run, and its volumes are gone
		err = l.env.Users.Release(l.uid)
	}
	done := l.retry(ctx, action, in.Pod, "give back devices and volumes", err)
	return func() {
		done()
		l.s.volumes.tornDown = err == nil
		l.s.volumes.done = l.s.volumes.done && err != nil
	}
}

func (l *loop) removeContainer(ctx context.Context, in decide.Input, a decide.Action) func() {
	c := in.Observed.Find(a.ID)
	_, err := l.env.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: a.ID})
	if err == nil && c != nil {
		err = logs.Remove(c.LogPath)
		l.stops.forget(c.ID)
	}
	return l.retry(ctx, a, in.Pod, "remove container", err)
}

// deletePod deletes the API object: nothing of the pod runs here any more.
func (l *loop) deletePod(ctx context.Context, in decide.Input, action decide.Action) func() {
	zero := int64(0)
	uid := in.Pod.UID
	begin := time.Now()
	err := l.env.API.PodWrites(in.Pod.Namespace).Delete(ctx, in.Pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero,
		Preconditions:      &metav1.Preconditions{UID: &uid},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		err = nil
	}
	if ctx.Err() == nil {
		l.starter.mark(event.StepTerminated, begin, err, &event.Status{
			From: string(in.Pod.Status.Phase),
			To:   string(in.Pod.Status.Phase),
		})
	}
	done := l.retry(ctx, action, in.Pod, "delete pod", err)
	return func() {
		done()
		l.s.deleted = err == nil
	}
}

// forget removes the pod's last traces from the node.
func (l *loop) forget(ctx context.Context, in decide.Input, action decide.Action) func() {
	var errs []error
	for _, s := range in.Observed.Sandboxes {
		if _, err := l.env.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{
			PodSandboxId: s.ID,
		}); err != nil && grpcstatus.Code(err) != codes.NotFound {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		if err := l.env.Volumes.Forget(l.uid); err != nil {
			errs = append(errs, err)
		} else {
			errs = append(errs, l.env.Users.Release(l.uid),
				l.env.cgroup("destroy", func(m *podcgroup.Manager) error { return m.Remove(l.uid) }))
		}
		errs = append(errs, os.RemoveAll(translate.PodLogDir(l.env.LogDir, in.Pod.Namespace, in.Pod.Name, l.uid)))
	}
	err := errors.Join(errs...)
	done := l.retry(ctx, action, in.Pod, "remove pod", err)
	return func() {
		done()
		if err != nil {
			return
		}
		l.env.Probes.Forget(l.uid)
		l.env.Metrics.DeletePod(string(in.Pod.UID))
		l.env.Refs.Use(l.uid, nil)
		l.env.Images.Forget(l.uid)
		l.env.Starts.Forget(l.s.start.subject)
		l.s.forgotten = true
	}
}

// grpcText formats a runtime's error as the Kubernetes kubelet does.
func grpcText(err error) string {
	if s, ok := grpcstatus.FromError(err); ok && s.Code() != codes.OK && s.Code() != codes.Unknown {
		return fmt.Sprintf("rpc error: code = %s desc = %s", s.Code(), s.Message())
	}
	if s, ok := grpcstatus.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}
