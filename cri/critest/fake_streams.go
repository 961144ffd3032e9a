// SPDX-License-Identifier: Apache-2.0

package critest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
)

// streams run commands in containers, and name the addresses of streams.
type streams struct {
	script *script
	pods   *pods

	mu   sync.Mutex
	exec func(c *runtimeapi.ContainerConfig, cmd []string) ExecResult
	url  string // the base of addresses
}

// ExecSync returns the result that SetExec has set.
func (s *streams) ExecSync(
	ctx context.Context, request *runtimeapi.ExecSyncRequest,
) (*runtimeapi.ExecSyncResponse, error) {
	if err := s.script.begin(ctx, "ExecSync"); err != nil {
		return nil, err
	}
	container, err := s.pods.running(request.GetContainerId())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	exec := s.exec
	s.mu.Unlock()
	res := exec(container.config, request.GetCmd())
	if limit := time.Duration(request.GetTimeout()) * time.Second; limit > 0 && res.Takes > limit {
		if err := wait(ctx, limit); err != nil {
			return nil, err
		}
		return nil, status.Errorf(codes.DeadlineExceeded, "exec in container %s: no end after %s", container.id, limit)
	}
	if err := wait(ctx, res.Takes); err != nil {
		return nil, err
	}
	if res.Err != nil {
		return nil, res.Err
	}
	most := cri.OutputLimit(ctx, max(len(res.Stdout), len(res.Stderr)))
	return &runtimeapi.ExecSyncResponse{
		Stdout:   res.Stdout[:min(len(res.Stdout), most)],
		Stderr:   res.Stderr[:min(len(res.Stderr), most)],
		ExitCode: res.Code,
	}, nil
}

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// Exec returns a URL below SetStreamURL.
func (s *streams) Exec(ctx context.Context, r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	u, err := s.stream(ctx, "Exec", "exec", r.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ExecResponse{Url: u}, nil
}

// Attach returns a URL below SetStreamURL.
func (s *streams) Attach(ctx context.Context, r *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	u, err := s.stream(ctx, "Attach", "attach", r.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.AttachResponse{Url: u}, nil
}

// PortForward returns a URL below SetStreamURL.
func (s *streams) PortForward(
	ctx context.Context, r *runtimeapi.PortForwardRequest,
) (*runtimeapi.PortForwardResponse, error) {
	if err := s.script.begin(ctx, "PortForward"); err != nil {
		return nil, err
	}
	if err := s.pods.ready(r.GetPodSandboxId()); err != nil {
		return nil, err
	}
	return &runtimeapi.PortForwardResponse{Url: s.address("portforward", r.GetPodSandboxId())}, nil
}

func (s *streams) stream(ctx context.Context, verb, path, id string) (string, error) {
	if err := s.script.begin(ctx, verb); err != nil {
		return "", err
	}
	if _, err := s.pods.running(id); err != nil {
		return "", err
	}
	return s.address(path, id), nil
}

func (s *streams) address(path, id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%s/%s/%s", s.url, path, id)
}

// SetExec sets the results of ExecSync.
func (s *streams) SetExec(e func(c *runtimeapi.ContainerConfig, cmd []string) ExecResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exec = e
}

// SetStreamURL sets the base of the URLs that Exec, Attach and PortForward return ("http://127.0.0.1:1234").
func (s *streams) SetStreamURL(u string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.url = u
}
