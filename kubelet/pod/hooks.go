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
	"keelson/event"
	"keelson/kubelet/pod/decide"
	"keelson/kubelet/podinfo"
)

func (s *starter) postStart(
	ctx context.Context, in decide.Input, container *corev1.Container, ref *corev1.ObjectReference, id string,
) error {
	s.inbox.notify(RuntimeChanged) // it runs: its startup and liveness probes begin
	begin := time.Now()
	err := s.runHook(ctx, container, s.podIPs(in), id, container.Lifecycle.PostStart, 0)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		return nil
	}
	s.mark(event.StepProbe, begin, nil, &event.Probe{
		Container: container.Name,
		Kind:      "postStart",
		Action:    "hook of " + container.Name,
		Output:    cut(err.Error(), maxMark),
	})
	s.env.Events.Event(ref, corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
	s.env.Events.Event(ref, corev1.EventTypeNormal, "Killing", "FailedPostStartHook")
	_, stopErr := s.env.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{
		ContainerId: id,
		Timeout:     podinfo.GracePeriodSeconds(in.Pod),
	})
	return &startError{
		Waiting: decide.Waiting{Reason: reasonHook, Message: err.Error()},
		retry:   time.Now(),
		err:     stopErr,
	}
}

// preStop runs a container's pre-stop hook within the action's grace period.
func (s *starter) preStop(ctx context.Context, in decide.Input, action decide.Action, c *corev1.Container, k podinfo.Kind) {
	if action.Grace <= 0 {
		return
	}
	hctx, cancel := context.WithTimeout(ctx, time.Duration(action.Grace)*time.Second)
	defer cancel()
	err := s.runHook(hctx, c, s.podIPs(in), action.ID, c.Lifecycle.PreStop, action.Grace)
	if err != nil && ctx.Err() == nil {
		s.env.Events.Event(containerRef(in.Pod, c, k), corev1.EventTypeWarning, "FailedPreStopHook",
			"PreStopHook failed")
	}
}

// maxHookOutput is how much of a hook's output is read, maxHookReport how much is reported when it fails.
const (
	maxHookOutput = 10 << 10
	maxHookReport = 1 << 10
)

// runHook runs a lifecycle hook. seconds bounds a command; 0: no limit.
func (s *starter) runHook(
	ctx context.Context, container *corev1.Container, ips []string, id string, handler *corev1.LifecycleHandler,
	seconds int64,
) error {
	switch {
	case handler.Exec != nil:
		r := &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: handler.Exec.Command, Timeout: seconds}
		out, code, err := cri.Output(ctx, s.env.Runtime, r, maxHookOutput)
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
		_, _, err := s.env.Prober.Do(ctx, container, first(ips), handler.HTTPGet)
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
