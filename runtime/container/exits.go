// SPDX-License-Identifier: Apache-2.0

package container

import (
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/pods"
	"keelson/runtime/shim"
)

// Reconcile records the end of the containers that are not among the supervisor's: their exits were missed.
func (s *Service) Reconcile(all []shim.State) {
	known := map[string]bool{}
	for _, st := range all {
		known[st.ID] = true
	}
	for _, c := range s.table.Containers("", "", nil) {
		if r := c.Record(); r.Running() && !known[c.ID] {
			s.recordLost(c)
		}
	}
}

// RecordExit records a container's exit, once, and sends the event. The exit of a container whose start is not recorded
// yet is left to recordStart.
func (s *Service) RecordExit(st shim.State) {
	c, err := s.table.Container(st.ID)
	if err != nil {
		return // removed
	}
	if r := c.Record(); !r.Running() {
		return
	}
	s.markExited(c, func(r *pods.ContainerRecord) { setExit(r, st) })
}

// setExit sets exit code and reason, with the reasons that Kubernetes uses.
func setExit(r *pods.ContainerRecord, st shim.State) {
	r.Finished = st.Exited
	r.ExitCode = int32(st.ExitCode) // exit codes are small
	switch {
	case st.OOMKilled:
		r.Reason = "OOMKilled"
	case st.Lost:
		r.Reason = "Unknown"
		r.Message = "the container ended while its supervisor was not running"
	case st.ExitCode == 0:
		r.Reason = "Completed"
	default:
		r.Reason = "Error"
	}
}

// recordLost records the end of a container that the supervisor does not know.
func (s *Service) recordLost(c *pods.Container) {
	s.markExited(c, func(r *pods.ContainerRecord) {
		r.ExitCode = 255
		r.Reason = "Unknown"
		r.Message = "the container was gone when its runtime came back"
	})
}

// markExited records a container as exited and sends the event; set sets how it ended. It returns false when it was
// recorded already.
func (s *Service) markExited(ctr *pods.Container, set func(*pods.ContainerRecord)) bool {
	done := false
	err := ctr.Update(func(r *pods.ContainerRecord) {
		if r.State() == runtimeapi.ContainerState_CONTAINER_EXITED {
			return
		}
		done = true
		set(r)
		if r.Finished.IsZero() {
			r.Finished = time.Now()
		}
	})
	if err != nil {
		s.log.Error("record container exit", "container", ctr.ID, "error", err)
	}
	if done {
		if sb, err := s.table.Sandbox(ctr.Record().SandboxID); err == nil {
			s.events.Send(sb, ctr.ID, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
		}
	}
	return done
}
