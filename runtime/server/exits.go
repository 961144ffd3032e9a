// SPDX-License-Identifier: Apache-2.0

package server

import (
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/pods"
	"keelson/runtime/shim"
)

// reconcile records the exits that were missed between two subscriptions.
func (s *Server) reconcile(all []shim.State) {
	known := map[string]bool{}
	for _, st := range all {
		known[st.ID] = true
		if !st.Running() {
			s.recordExit(st)
		}
	}
	for _, c := range s.table.Containers("", "", nil) {
		if r := c.Record(); r.Running() && !known[c.ID] {
			s.recordLost(c)
		}
	}
}

// recordExit records a container's exit, once, and sends the event. The exit of a container whose start is not recorded
// yet is left to recordStart.
func (s *Server) recordExit(st shim.State) {
	if st.Hold {
		s.pidHolderExited(st)
		return
	}
	c, err := s.table.Container(st.ID)
	if err != nil {
		return // removed
	}
	if r := c.Record(); r.State() != runtimeapi.ContainerState_CONTAINER_RUNNING {
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
func (s *Server) recordLost(c *pods.Container) {
	s.markExited(c, func(r *pods.ContainerRecord) {
		r.ExitCode = 255
		r.Reason = "Unknown"
		r.Message = "the container was gone when its runtime came back"
	})
}

// markExited records a container as exited and sends the event; set sets how it ended. It returns false when it was
// recorded already.
func (s *Server) markExited(ctr *pods.Container, set func(*pods.ContainerRecord)) bool {
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

// pidHolderExited makes a sandbox not ready whose shared PID namespace ended: no process can run in it any more.
func (s *Server) pidHolderExited(st shim.State) {
	found := s.table.SandboxOfHolder(st.ID)
	if found == nil || !found.Record().Ready {
		return
	}
	if err := found.Update(func(r *pods.SandboxRecord) { r.Ready = false }); err != nil {
		s.log.Error("record lost pod sandbox", "sandbox", found.ID, "error", err)
	}
	s.events.Send(found, found.ID, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}
