// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/event"
	"keelson/kubelet/logs"
	"keelson/kubelet/podinfo"
	"keelson/kubelet/refs"
	"keelson/kubelet/runtimestate"
	"keelson/kubelet/translate"
	"keelson/kubelet/volume"
)

// do begins one action.
func (w *Worker) do(ctx context.Context, in Input, action Action) {
	switch action.Op {
	case OpVolumes:
		w.s.volumes.dirty = false // a change from here on makes them dirty again
		w.launch(ctx, action, func(ctx context.Context) func() { return w.setUpVolumes(ctx, in) })
	case OpSandbox:
		w.launch(ctx, action, func(ctx context.Context) func() { return w.runSandbox(ctx, in, action) })
	case OpStart:
		record := w.s.containers.name(action.Container)
		if last := in.Observed.Latest(action.Container); last.Exited() && action.Replace == "" {
			record.crash = record.crash.Next(last.Finished, in.Now)
		}
		action.BackOff = record.crash.Delay
		w.launch(ctx, action, func(ctx context.Context) func() { return w.start(ctx, in, action) })
	case OpPreStop, OpStop:
		w.beginStop(ctx, in, action)
	case OpStopSandbox:
		w.launch(ctx, action, func(ctx context.Context) func() {
			_, err := w.env.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: action.ID})
			return w.retry(ctx, action, in.Pod, "stop sandbox", err)
		})
	case OpTearDown:
		w.launch(ctx, action, func(ctx context.Context) func() {
			err := errors.Join(w.env.Devices.Unprepare(ctx, w.uid), w.env.Plugins.Release(w.uid),
				w.env.Volumes.TearDown(ctx, w.uid))
			if err == nil { // nothing of the pod runs, or will run, and its volumes are gone
				err = w.env.Users.Release(w.uid)
			}
			done := w.retry(ctx, action, in.Pod, "give back devices and volumes", err)
			return func() {
				done()
				w.s.volumes.tornDown = err == nil
				w.s.volumes.done = w.s.volumes.done && err != nil
			}
		})
	case OpRemoveContainer:
		w.launch(ctx, action, func(ctx context.Context) func() { return w.removeContainer(ctx, in, action) })
	case OpRemoveSandbox:
		w.launch(ctx, action, func(ctx context.Context) func() {
			_, err := w.env.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: action.ID})
			return w.retry(ctx, action, in.Pod, "remove sandbox", err)
		})
	case OpDelete:
		w.launch(ctx, action, func(ctx context.Context) func() { return w.deletePod(ctx, in, action) })
	case OpForget:
		w.launch(ctx, action, func(ctx context.Context) func() { return w.forget(ctx, in, action) })
	case OpResize:
		w.launch(ctx, action, func(ctx context.Context) func() { return w.resize(ctx, in, action) })
	case OpResizePod:
		w.launch(ctx, action, func(ctx context.Context) func() { return w.resizePod(ctx, in, action) })
	}
}

// retry returns what the loop applies after an action that is retried when it failed.
func (w *Worker) retry(ctx context.Context, a Action, pod *corev1.Pod, act string, err error) func() {
	if grpcstatus.Code(err) == codes.NotFound {
		err = nil // it is gone, which is what was wanted
	}
	return func() {
		if err == nil {
			w.s.actions.clear(a.Key())
			return
		}
		w.s.actions.fail(a.Key(), time.Second, time.Minute)
		if ctx.Err() == nil {
			w.env.Log.Warn(act, "pod", podinfo.FullName(pod), "err", err)
		}
	}
}

func (w *Worker) podIPs(in Input) []string {
	if in.Pod.Spec.HostNetwork {
		return w.env.HostIPs
	}
	if box := in.Observed.Current(); box != nil {
		return box.IPs
	}
	return nil
}

func (w *Worker) setUpVolumes(ctx context.Context, in Input) func() {
	begin := time.Now()
	var refresh time.Time
	_, err := refs.Of(in.Pod)
	if err == nil {
		refresh, err = w.env.Volumes.SetUp(ctx, volume.Input{
			Pod:         in.Pod,
			PodIPs:      w.podIPs(in),
			HostIPs:     w.env.HostIPs,
			Allocatable: w.env.Allocatable(),
			Done:        w.env.Metrics.VolumeMounted,
		})
	}
	if !in.VolumesDone && ctx.Err() == nil {
		w.mark(event.StepVolumes, begin, err, &event.Volumes{Count: len(in.Pod.Spec.Volumes)})
	}
	return func() {
		if !refresh.IsZero() {
			w.s.volumes.refresh = refresh
		}
		if err == nil {
			w.s.volumes.done = true
			w.s.actions.clear(string(OpVolumes))
			return
		}
		if ctx.Err() != nil {
			return
		}
		w.s.volumes.dirty = true
		w.s.actions.fail(string(OpVolumes), 500*time.Millisecond, 2*time.Minute)
		for _, e := range split(err) {
			reason := "FailedMount"
			if v, ok := errors.AsType[*volume.Error](e); ok && v.Device {
				reason = "FailedMapVolume"
			}
			w.env.Events.Event(podRef(in.Pod), corev1.EventTypeWarning, reason, e.Error())
		}
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

func (w *Worker) runSandbox(ctx context.Context, in Input, action Action) func() {
	begin := time.Now()
	var id, handler string
	var users *runtimeapi.UserNamespace
	var cfg *runtimeapi.PodSandboxConfig
	unprepared := w.env.Devices.Prepare(ctx, in.Pod)
	unallocated := w.env.Plugins.Allocate(ctx, in.Pod)
	err := errors.Join(unprepared, unallocated)
	if err == nil {
		handler, users, err = w.acquireUsers(ctx, in.Pod)
	}
	if err == nil {
		cfg, err = w.sandboxConfig(in.Pod, action.Attempt, users)
	}
	if err == nil {
		if in.Observed != nil && len(in.Observed.Sandboxes) > 0 {
			w.env.Events.Event(podRef(in.Pod), corev1.EventTypeNormal, "SandboxChanged",
				"Pod sandbox changed, it will be killed and re-created.")
		}
		id, err = w.createSandbox(ctx, in.Pod, cfg, handler)
	}
	if ctx.Err() == nil {
		w.mark(event.StepSandbox, begin, err, &event.Sandbox{ID: id, Attempt: action.Attempt})
	}
	noNetwork := ""
	if err != nil && !in.Pod.Spec.HostNetwork {
		noNetwork = w.networkProblem(ctx)
	}
	return func() {
		if err == nil {
			w.s.actions.clear(action.Key())
			limits := translate.PodLimits(in.Pod)
			w.s.resizes.limits = &limits
			return
		}
		if ctx.Err() != nil {
			return
		}
		w.s.actions.fail(action.Key(), time.Second, 30*time.Second)
		if unprepared != nil {
			w.env.Events.Eventf(podRef(in.Pod), corev1.EventTypeWarning, "FailedPrepareDynamicResources",
				"Failed to prepare dynamic resources: %v", unprepared)
			return
		}
		if unallocated != nil {
			w.env.Events.Eventf(podRef(in.Pod), corev1.EventTypeWarning, "FailedAllocateDevices",
				"Failed to allocate devices: %v", unallocated)
			return
		}
		if noNetwork != "" {
			w.env.Events.Eventf(podRef(in.Pod), corev1.EventTypeWarning, "NetworkNotReady", "network is not ready: %s",
				noNetwork)
			return
		}
		w.env.Events.Eventf(podRef(in.Pod), corev1.EventTypeWarning, "FailedCreatePodSandBox",
			"Failed to create pod sandbox: %s", grpcText(err))
	}
}

// networkProblem is why the runtime's network is not ready; empty: it is, or the runtime reports nothing.
func (w *Worker) networkProblem(ctx context.Context) string {
	st, err := w.env.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return ""
	}
	return runtimestate.NetworkProblem(st)
}

func (w *Worker) createSandbox(
	ctx context.Context, pod *corev1.Pod, cfg *runtimeapi.PodSandboxConfig, handler string,
) (string, error) {
	if err := os.MkdirAll(cfg.GetLogDirectory(), 0o750); err != nil {
		return "", fmt.Errorf("make log directory: %w", err)
	}
	if err := w.env.Cgroups.Make(w.uid, translate.PodLimits(pod)); err != nil {
		return "", err
	}
	resp, err := w.env.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{
		Config:         cfg,
		RuntimeHandler: handler,
	})
	return resp.GetPodSandboxId(), err
}

func (w *Worker) sandboxConfig(
	pod *corev1.Pod, attempt uint32, users *runtimeapi.UserNamespace,
) (*runtimeapi.PodSandboxConfig, error) {
	host, err := translate.HostDNS(os.ReadFile, w.env.ResolvConf)
	if err != nil {
		return nil, err
	}
	dns, warnings := translate.DNS(pod, host, w.env.ClusterDNS, w.env.ClusterDomain)
	for _, warning := range warnings {
		ref := podRef(pod)
		if warning.Node {
			ref = w.env.Node()
		}
		w.env.Events.Event(ref, corev1.EventTypeWarning, warning.Reason, warning.Message)
	}
	return translate.Sandbox(pod, translate.SandboxInput{
		Attempt:      attempt,
		LogDir:       w.env.LogDir,
		CgroupParent: w.env.Cgroups.Of(w.uid),
		NodeHostname: w.env.Hostname,
		DNS:          dns,
		Domain:       w.env.ClusterDomain,
		Users:        users,
	})
}

func (w *Worker) removeContainer(ctx context.Context, in Input, a Action) func() {
	c := in.Observed.Find(a.ID)
	_, err := w.env.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: a.ID})
	if err == nil && c != nil {
		err = logs.Remove(c.LogPath)
		w.forgetStop(c.ID)
	}
	return w.retry(ctx, a, in.Pod, "remove container", err)
}

// Resolver is a pod's resolver configuration.
func (e *Env) Resolver(p *corev1.Pod) (*runtimeapi.DNSConfig, error) {
	host, err := translate.HostDNS(os.ReadFile, e.ResolvConf)
	if err != nil {
		return nil, err
	}
	dns, _ := translate.DNS(p, host, e.ClusterDNS, e.ClusterDomain)
	return dns, nil
}

// deletePod deletes the API object: nothing of the pod runs here any more.
func (w *Worker) deletePod(ctx context.Context, in Input, action Action) func() {
	zero := int64(0)
	uid := in.Pod.UID
	begin := time.Now()
	err := w.env.API.CoreV1().Pods(in.Pod.Namespace).Delete(ctx, in.Pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero,
		Preconditions:      &metav1.Preconditions{UID: &uid},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		err = nil
	}
	if ctx.Err() == nil {
		w.mark(event.StepTerminated, begin, err, &event.Status{
			From: string(in.Pod.Status.Phase),
			To:   string(in.Pod.Status.Phase),
		})
	}
	done := w.retry(ctx, action, in.Pod, "delete pod", err)
	return func() {
		done()
		w.s.deleted = err == nil
	}
}

// forget removes the pod's last traces from the node.
func (w *Worker) forget(ctx context.Context, in Input, action Action) func() {
	var errs []error
	for _, s := range in.Observed.Sandboxes {
		if _, err := w.env.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{
			PodSandboxId: s.ID,
		}); err != nil && grpcstatus.Code(err) != codes.NotFound {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		if err := w.env.Volumes.Forget(w.uid); err != nil {
			errs = append(errs, err)
		} else {
			errs = append(errs, w.env.Users.Release(w.uid), w.env.Cgroups.Remove(w.uid))
		}
		errs = append(errs, os.RemoveAll(translate.PodLogDir(w.env.LogDir, in.Pod.Namespace, in.Pod.Name, w.uid)))
	}
	err := errors.Join(errs...)
	done := w.retry(ctx, action, in.Pod, "remove pod", err)
	return func() {
		done()
		if err != nil {
			return
		}
		w.env.Probes.Forget(w.uid)
		w.env.Metrics.DeletePod(string(in.Pod.UID))
		w.env.Refs.Use(w.uid, nil)
		w.env.Images.Forget(w.uid)
		w.env.Starts.Forget(w.startSubject())
		w.s.forgotten = true
	}
}

func (w *Worker) resize(ctx context.Context, in Input, action Action) func() {
	c, _ := podinfo.Find(in.Pod, action.Container)
	hash := podinfo.ResourcesHash(in.Pod, c)
	err := w.env.Cgroups.Grow(w.uid, translate.PodLimits(in.Pod))
	if err == nil {
		_, err = w.env.Runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: action.ID,
			Linux:       translate.Resources(in.Pod, c, w.env.MemoryBytes),
		})
	}
	done := w.retry(ctx, action, in.Pod, "resize container", err)
	return func() {
		done()
		if err == nil {
			w.s.containers.run(action.ID).resized = hash
		}
	}
}

// resizePod sets the limits of the pod's cgroup, then of its sandbox, which may be a machine of that size.
func (w *Worker) resizePod(ctx context.Context, in Input, action Action) func() {
	limits := translate.PodLimits(in.Pod)
	err := w.env.Cgroups.Make(w.uid, limits)
	if err == nil {
		_, err = w.env.Runtime.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{
			PodSandboxId: in.Observed.Current().ID,
			Resources:    translate.PodResources(in.Pod),
		})
		if grpcstatus.Code(err) == codes.Unimplemented {
			err = nil // the cgroup has them
		}
	}
	done := w.retry(ctx, action, in.Pod, "resize pod", err)
	return func() {
		done()
		if err == nil {
			w.s.resizes.limits = &limits
		}
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
