// SPDX-License-Identifier: Apache-2.0

package container

import (
	"context"
	"errors"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/fault"
	"keelson/runtime/pods"
	"keelson/runtime/shim"
)

// Start runs a created container.
func (s *Service) Start(ctx context.Context, id string) error {
	container, err := s.table.Container(id)
	if err != nil {
		return err
	}
	sb, err := s.table.Sandbox(container.Record().SandboxID)
	if err != nil {
		return err
	}
	sb.Op.RLock() // before the container's, as removing a sandbox does
	defer sb.Op.RUnlock()
	container.Op.Lock()
	defer container.Op.Unlock()
	rec := container.Record()
	if rec.State() != runtimeapi.ContainerState_CONTAINER_CREATED {
		return fault.FailedPrecondition("start container %s: it is in state %s", container.ID, rec.State())
	}
	if !sb.Record().Ready {
		return fault.FailedPrecondition("start container %s: pod sandbox %s is not ready", container.ID, sb.ID)
	}
	spec, err := s.specs.Read(container)
	if err != nil {
		return fault.Wrap(err, "start container %s", container.ID)
	}
	cfg := rec.Config.V
	// The supervisor completes a start even if the caller cancels; so wait, and record it.
	st, err := s.shim.Run(context.WithoutCancel(ctx), container.ID, shim.Run{
		Spec:      spec,
		LogPath:   rec.LogPath,
		Stdin:     cfg.GetStdin(),
		StdinOnce: cfg.GetStdinOnce(),
	})
	if err != nil {
		err = shorten(err)
		s.recordStartFailure(container, err)
		return fault.Status(err)
	}
	return fault.Wrap(s.recordStart(sb, container, st), "start container %s", container.ID)
}

// maxStartError is the length of a start's error, which may quote what the container is made of.
const maxStartError = 4 << 10

// shorten cuts the text of a long error.
func shorten(err error) error {
	if text := err.Error(); len(text) > maxStartError {
		return errors.New(strings.ToValidUTF8(text[:maxStartError], ""))
	}
	return err
}

// recordStart records the start. If the container has ended by now, RecordExit may have ignored the exit, so it is
// recorded here.
func (s *Service) recordStart(sb *pods.Sandbox, c *pods.Container, st shim.State) error {
	if err := c.Update(func(r *pods.ContainerRecord) { r.Started = st.Started }); err != nil {
		return err
	}
	s.events.Send(sb, c.ID, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	now, err := s.shim.State(context.Background(), c.ID)
	if err == nil && !now.Running() {
		s.RecordExit(now)
	}
	return nil
}

// recordStartFailure records a failed start as an exit: the container cannot be started again.
func (s *Service) recordStartFailure(c *pods.Container, err error) {
	finished := s.markExited(c, func(r *pods.ContainerRecord) {
		r.ExitCode = startFailedCode
		r.Reason = "StartError"
		r.Message = err.Error()
	})
	if !finished {
		s.log.Error("container ended while it failed to start", "container", c.ID)
	}
}

// startFailedCode is the exit code of a container that could not be started.
const startFailedCode = 128
