// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/podinfo"
)

// minGrace is what a container gets after its pre-stop hook has used its grace period up.
const minGrace = 2

// beginStop stops one container. The Killing event and the pre-stop hook happen once, even if the stop is requested
// again.
func (w *Worker) beginStop(ctx context.Context, in Input, a Action) {
	c, k := podinfo.Find(in.Pod, a.Container)
	if c == nil { // a pod that only the runtime has
		c = &corev1.Container{Name: a.Container}
		k = podinfo.Main
	}
	if !w.s.announced[a.ID] && a.Event != "" {
		w.env.Events.Event(containerRef(in.Pod, c, k), corev1.EventTypeNormal, "Killing", a.Event)
		w.env.Log.Info("killing container", "pod", in.Pod.Namespace+"/"+in.Pod.Name, "container", c.Name, "grace",
			time.Duration(a.Grace)*time.Second, "why", a.Event)
	}
	hook := a.Hook && !w.s.hooked[a.ID] && c.Lifecycle != nil && c.Lifecycle.PreStop != nil
	w.s.announced[a.ID] = true
	w.s.hooked[a.ID] = true
	w.launch(ctx, a, func(ctx context.Context) func() { return w.stopOne(ctx, in, a, c, k, hook) })
}

func (w *Worker) stopOne(
	ctx context.Context, in Input, a Action, c *corev1.Container, k podinfo.Kind, hook bool,
) func() {
	left := a.Grace
	if hook && left > 0 {
		begin := time.Now()
		hctx, cancel := context.WithTimeout(ctx, time.Duration(left)*time.Second)
		err := w.runHook(hctx, c, w.podIPs(in), a.ID, c.Lifecycle.PreStop, left)
		cancel()
		if err != nil && ctx.Err() == nil {
			w.env.Events.Event(containerRef(in.Pod, c, k), corev1.EventTypeWarning, "FailedPreStopHook",
				"PreStopHook failed")
		}
		left = max(left-int64(time.Since(begin)/time.Second), minGrace)
	}
	if ctx.Err() != nil {
		return nil // requested again with a shorter grace period
	}
	_, err := w.env.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: a.ID, Timeout: left})
	if ctx.Err() != nil {
		return nil
	}
	return w.retry(ctx, a, in.Pod, "stop container", err)
}

// runHook runs a lifecycle hook. seconds bounds a command; 0: no limit.
func (w *Worker) runHook(
	ctx context.Context, c *corev1.Container, ips []string, id string, h *corev1.LifecycleHandler, seconds int64,
) error {
	switch {
	case h.Exec != nil:
		resp, err := w.env.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
			ContainerId: id,
			Cmd:         h.Exec.Command,
			Timeout:     seconds,
		})
		if err != nil {
			return fmt.Errorf("exec lifecycle hook (%s): %w", strings.Join(h.Exec.Command, " "), err)
		}
		if resp.GetExitCode() != 0 {
			return fmt.Errorf("exec lifecycle hook (%s) for Container %q failed - exit code: %d, message: %q",
				strings.Join(h.Exec.Command, " "), c.Name, resp.GetExitCode(), append(resp.GetStdout(),
					resp.GetStderr()...))
		}
		return nil
	case h.HTTPGet != nil:
		_, _, err := w.env.Prober.Do(ctx, c, first(ips), h.HTTPGet)
		return err
	case h.Sleep != nil:
		t := time.NewTimer(time.Duration(h.Sleep.Seconds) * time.Second)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		return nil
	}
	return fmt.Errorf("lifecycle hook of container %s says nothing to do", c.Name)
}
