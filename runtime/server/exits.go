// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/shim"
)

// watchShim subscribes to the supervisor's exits until ctx is done. The first list of containers goes to load, whose
// result is sent to loaded. After an upgrade of the supervisor it subscribes again; a supervisor that died is replaced.
func (s *Server) watchShim(ctx context.Context, loaded chan<- error) {
	first := true
	for pause := time.Duration(0); ctx.Err() == nil; pause = min(2*pause+10*time.Millisecond, 5*time.Second) {
		if !sleep(ctx, pause) {
			break
		}
		err := s.shim.Subscribe(ctx, func(all []shim.State) {
			pause = 0
			if first {
				first = false
				loaded <- s.load(ctx, all)
				return
			}
			s.reconcile(all)
		}, s.recordExit)
		if err == nil || ctx.Err() != nil {
			break
		}
		s.log.Info("container supervisor went away", "error", err)
		if errors.Is(err, shim.ErrDown) {
			if err := s.ensureShim(ctx); err != nil {
				s.log.Error("start container supervisor", "error", err)
			}
		}
	}
	if first {
		loaded <- ctx.Err()
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// reconcile records the exits that were missed between two subscriptions.
func (s *Server) reconcile(all []shim.State) {
	known := map[string]bool{}
	for _, st := range all {
		known[st.ID] = true
		if !st.Running() {
			s.recordExit(st)
		}
	}
	s.mu.RLock()
	var missing []*container
	for id, c := range s.containers {
		r := c.record()
		if r.state() == runtimeapi.ContainerState_CONTAINER_RUNNING && !known[id] {
			missing = append(missing, c)
		}
	}
	s.mu.RUnlock()
	for _, c := range missing {
		s.recordLost(c)
	}
}

// recordExit records a container's exit, once, and sends the event. The exit of a container whose start is not recorded
// yet is left to recordStart.
func (s *Server) recordExit(st shim.State) {
	if st.Hold {
		s.pidHolderExited(st)
		return
	}
	c, err := s.container(st.ID)
	if err != nil {
		return // removed
	}
	if r := c.record(); r.state() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return
	}
	s.markExited(c, func(r *containerRecord) { r.setExit(st) })
}

// setExit sets exit code and reason, with the reasons that Kubernetes uses.
func (r *containerRecord) setExit(st shim.State) {
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
func (s *Server) recordLost(c *container) {
	s.markExited(c, func(r *containerRecord) {
		r.ExitCode = 255
		r.Reason = "Unknown"
		r.Message = "the container was gone when its runtime came back"
	})
}

// markExited records a container as exited and sends the event; set sets how it ended. It returns false when it was
// recorded already.
func (s *Server) markExited(ctr *container, set func(*containerRecord)) bool {
	done := false
	err := ctr.update(func(r *containerRecord) {
		if r.state() == runtimeapi.ContainerState_CONTAINER_EXITED {
			return
		}
		done = true
		set(r)
		if r.Finished.IsZero() {
			r.Finished = time.Now()
		}
	})
	if err != nil {
		s.log.Error("record container exit", "container", ctr.id, "error", err)
	}
	if done {
		if sb, err := s.sandbox(ctr.record().SandboxID); err == nil {
			s.sendEvent(sb, ctr.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
		}
	}
	return done
}

// pidHolderExited makes a sandbox not ready whose shared PID namespace ended: no process can run in it any more.
func (s *Server) pidHolderExited(st shim.State) {
	s.mu.RLock()
	var found *sandbox
	for _, sb := range s.sandboxes {
		if sb.holderID() == st.ID {
			found = sb
		}
	}
	s.mu.RUnlock()
	if found == nil || !found.record().Ready {
		return
	}
	if err := found.update(func(r *sandboxRecord) { r.Ready = false }); err != nil {
		s.log.Error("record lost pod sandbox", "sandbox", found.id, "error", err)
	}
	s.sendEvent(found, found.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}
