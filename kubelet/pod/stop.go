// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
	"keelson/kubelet/podinfo"
)

// minGrace is what a container gets at least, in seconds, when its pre-stop hook or other containers of the pod have
// used the grace period up.
const minGrace = 2

// beginStop stops one container, or runs its pre-stop hook only. The Killing event and the pre-stop hook happen once,
// and the grace period begins once, even if the stop is requested again, or the kubelet is restarted. A hook that the
// restart has interrupted runs again.
func (w *Worker) beginStop(ctx context.Context, in Input, action Action) {
	container, kind := podinfo.Find(in.Pod, action.Container)
	if container == nil { // a pod that only the runtime has
		container = &corev1.Container{Name: action.Container}
		kind = podinfo.Main
	}
	stop, announced := w.endOf(action)
	if !announced && action.Event != "" {
		w.env.Events.Event(containerRef(in.Pod, container, kind), corev1.EventTypeNormal, "Killing", action.Event)
		w.env.Log.Info("killing container", "pod", in.Pod.Namespace+"/"+in.Pod.Name, "container", container.Name,
			"grace",
			time.Duration(action.Grace)*time.Second, "why", action.Event)
	}
	hook := action.Hook && !stop.Hooked && container.Lifecycle != nil && container.Lifecycle.PreStop != nil
	begun := stop
	begun.Hooked = true
	w.s.containers.run(action.ID).stop = &begun
	w.launch(ctx, action, func(ctx context.Context) func() {
		rest := action
		rest.Grace = stop.left(action.Grace, time.Now())
		if hook {
			w.preStop(ctx, in, rest, container, kind)
			stop.Hooked = ctx.Err() == nil
			w.keepStop(action.ID, stop)
			rest.Grace = stop.left(action.Grace, time.Now())
		}
		if action.Op == OpPreStop {
			return nil
		}
		return w.stopOne(ctx, in, rest)
	})
}

// endOf returns how far the end of a container has come; begun is false if it begins now. A shorter grace period
// begins now, too.
func (w *Worker) endOf(action Action) (stop stopping, begun bool) {
	if known := w.s.containers.run(action.ID).stop; known != nil {
		stop = *known
		begun = true
	} else {
		stop, begun = w.recallStop(action.ID)
	}
	if begun && action.Grace >= stop.Grace {
		return stop, true
	}
	stop.Began = time.Now()
	stop.Grace = action.Grace
	w.keepStop(action.ID, stop)
	return stop, begun
}

// preStop runs a container's pre-stop hook within the action's grace period.
func (w *Worker) preStop(ctx context.Context, in Input, action Action, c *corev1.Container, k podinfo.Kind) {
	if action.Grace <= 0 {
		return
	}
	hctx, cancel := context.WithTimeout(ctx, time.Duration(action.Grace)*time.Second)
	defer cancel()
	err := w.runHook(hctx, c, w.podIPs(in), action.ID, c.Lifecycle.PreStop, action.Grace)
	if err != nil && ctx.Err() == nil {
		w.env.Events.Event(containerRef(in.Pod, c, k), corev1.EventTypeWarning, "FailedPreStopHook",
			"PreStopHook failed")
	}
}

func (w *Worker) stopOne(ctx context.Context, in Input, action Action) func() {
	if ctx.Err() != nil {
		return nil // requested again with a shorter grace period
	}
	_, err := w.env.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{
		ContainerId: action.ID,
		Timeout:     action.Grace,
	})
	if ctx.Err() != nil {
		return nil
	}
	return w.retry(ctx, action, in.Pod, "stop container", err)
}

// maxHookOutput is how much of a hook's output is read, maxHookReport how much is reported when it fails.
const (
	maxHookOutput = 10 << 10
	maxHookReport = 1 << 10
)

// runHook runs a lifecycle hook. seconds bounds a command; 0: no limit.
func (w *Worker) runHook(
	ctx context.Context, container *corev1.Container, ips []string, id string, handler *corev1.LifecycleHandler,
	seconds int64,
) error {
	switch {
	case handler.Exec != nil:
		r := &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: handler.Exec.Command, Timeout: seconds}
		out, code, err := cri.Output(ctx, w.env.Runtime, r, maxHookOutput)
		command := cut(strings.Join(handler.Exec.Command, " "), maxMark)
		if err != nil {
			return fmt.Errorf("exec lifecycle hook (%s): %w", command, err)
		}
		if code != 0 {
			return fmt.Errorf("exec lifecycle hook (%s) for Container %q failed - exit code: %d, message: %q",
				command, container.Name, code, out[:min(len(out), maxHookReport)])
		}
		return nil
	case handler.HTTPGet != nil:
		_, _, err := w.env.Prober.Do(ctx, container, first(ips), handler.HTTPGet)
		return err
	case handler.Sleep != nil:
		t := time.NewTimer(time.Duration(handler.Sleep.Seconds) * time.Second)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		return nil
	}
	return fmt.Errorf("lifecycle hook of container %s says nothing to do", container.Name)
}
