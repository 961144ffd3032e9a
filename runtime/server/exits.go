// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/shim"
)

// follow listens to the supervisor until ctx is done. The first answer, its list of containers, is what load works from; loaded gets
// the outcome. A supervisor that was upgraded is listened to again; one that died is replaced.
func (s *Server) follow(ctx context.Context, loaded chan<- error) {
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
			s.compare(all)
		}, s.ended)
		if err == nil || ctx.Err() != nil {
			break
		}
		s.log.Info("container supervisor went away", "error", err)
		if errors.Is(err, shim.ErrDown) {
			if err := s.open(ctx); err != nil {
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

// compare takes up what changed while nobody listened.
func (s *Server) compare(all []shim.State) {
	known := map[string]bool{}
	for _, st := range all {
		known[st.ID] = true
		if !st.Running() {
			s.ended(st)
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
		s.vanished(c)
	}
}

// ended records a container's exit, once, and tells of it. A container whose start is not recorded yet is left to StartContainer.
func (s *Server) ended(st shim.State) {
	if st.Hold {
		s.holderEnded(st)
		return
	}
	c, err := s.container(st.ID)
	if err != nil {
		return // removed
	}
	if r := c.record(); r.state() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return
	}
	s.finish(c, func(r *containerRecord) { r.exit(st) })
}

// exit says how a container ended, in Kubernetes' words.
func (r *containerRecord) exit(st shim.State) {
	r.Finished, r.ExitCode = st.Exited, int32(st.ExitCode) //nolint:gosec // exit codes are small
	switch {
	case st.OOMKilled:
		r.Reason = "OOMKilled"
	case st.Lost:
		r.Reason, r.Message = "Unknown", "the container ended while its supervisor was not running"
	case st.ExitCode == 0:
		r.Reason = "Completed"
	default:
		r.Reason = "Error"
	}
}

// vanished records the end of a container that the supervisor knows nothing of.
func (s *Server) vanished(c *container) {
	s.finish(c, func(r *containerRecord) {
		r.ExitCode, r.Reason, r.Message = 255, "Unknown", "the container was gone when its runtime came back"
	})
}

// finish ends a container in the record and tells of it; false when it had ended already.
func (s *Server) finish(c *container, how func(*containerRecord)) bool {
	done := false
	err := c.update(func(r *containerRecord) {
		if r.state() == runtimeapi.ContainerState_CONTAINER_EXITED {
			return
		}
		done = true
		how(r)
		if r.Finished.IsZero() {
			r.Finished = time.Now()
		}
	})
	if err != nil {
		s.log.Error("record container exit", "container", c.id, "error", err)
	}
	if done {
		if sb, err := s.sandbox(c.record().SandboxID); err == nil {
			s.tell(sb, c.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
		}
	}
	return done
}

// holderEnded: a pod whose shared process namespace is gone can run nothing more.
func (s *Server) holderEnded(st shim.State) {
	s.mu.RLock()
	var hurt *sandbox
	for _, sb := range s.sandboxes {
		if sb.holderID() == st.ID {
			hurt = sb
		}
	}
	s.mu.RUnlock()
	if hurt == nil || !hurt.record().Ready {
		return
	}
	if err := hurt.update(func(r *sandboxRecord) { r.Ready = false }); err != nil {
		s.log.Error("record lost pod sandbox", "sandbox", hurt.id, "error", err)
	}
	s.tell(hurt, hurt.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}
