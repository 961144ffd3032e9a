// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/shim"
)

// killTimeout bounds the wait for the end of a killed container: a process in uninterruptible sleep does not end.
const killTimeout = 2 * time.Minute

// StopContainer sends the stop signal, waits for the timeout, and then kills. An unknown or ended container is not an
// error.
func (s *Server) StopContainer(
	ctx context.Context, r *runtimeapi.StopContainerRequest,
) (*runtimeapi.StopContainerResponse, error) {
	c, err := s.container(r.GetContainerId())
	if isNotFound(err) {
		return &runtimeapi.StopContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := s.stopContainer(ctx, c, time.Duration(r.GetTimeout())*time.Second); err != nil {
		return nil, wrapf(err, "stop container %s", c.id)
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

func (s *Server) stopContainer(ctx context.Context, ctr *container, timeout time.Duration) error {
	r := ctr.record()
	if r.state() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil
	}
	if timeout > 0 {
		err := s.shim.Kill(ctx, ctr.id, shim.Kill{Signal: int(stopSignal(&r))})
		if err != nil && !errors.Is(err, shim.ErrNotRunning) {
			return err
		}
		t := time.NewTimer(timeout)
		defer t.Stop()
		select {
		case <-ctr.exited:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
		}
	}
	return s.killContainer(ctx, ctr)
}

// killContainer kills a container and waits until it has ended. A container that is not running is not an error.
func (s *Server) killContainer(ctx context.Context, ctr *container) error {
	r := ctr.record()
	if r.state() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil
	}
	err := s.shim.Kill(ctx, ctr.id, shim.Kill{Signal: int(unix.SIGKILL)})
	if err != nil && !errors.Is(err, shim.ErrNotRunning) {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, killTimeout,
		errors.New("killed, but not gone after "+killTimeout.String()))
	defer cancel()
	select {
	case <-ctr.exited:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stopSignal returns the container's stop signal, else the image's, else SIGTERM.
func stopSignal(r *containerRecord) unix.Signal {
	name := r.StopSignal
	if sig := r.Config.v.GetStopSignal(); sig != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		name = strings.TrimPrefix(sig.String(), "SIGNAL_")
	}
	if sig, ok := parseSignal(name); ok {
		return sig
	}
	return unix.SIGTERM
}

// Real-time signals as the C library numbers them: it reserves the kernel's first two.
const (
	sigRTMin = 34
	sigRTMax = 64
)

// parseSignal parses "SIGTERM", "TERM", "15", and real-time signals: "SIGRTMIN+3", and CRI's "SIGRTMINPLUS3".
func parseSignal(s string) (unix.Signal, bool) {
	if n, err := strconv.Atoi(s); err == nil {
		return unix.Signal(n), n > 0 && n <= sigRTMax
	}
	s = strings.ToUpper(s)
	if !strings.HasPrefix(s, "SIG") {
		s = "SIG" + s
	}
	s = strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(s)
	for prefix, from := range map[string]int{"SIGRTMIN": sigRTMin, "SIGRTMAX": sigRTMax} {
		off, ok := strings.CutPrefix(s, prefix)
		if !ok {
			continue
		}
		if off == "" {
			return unix.Signal(from), true
		}
		n, err := strconv.Atoi(off)
		return unix.Signal(from + n), err == nil && from+n >= sigRTMin && from+n <= sigRTMax
	}
	sig := unix.SignalNum(s)
	return sig, sig != 0
}
