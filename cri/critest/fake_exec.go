// SPDX-License-Identifier: Apache-2.0

package critest

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cri"
)

// ExecSync returns the result that SetExec has set.
func (f *Fake) ExecSync(
	ctx context.Context, request *runtimeapi.ExecSyncRequest,
) (*runtimeapi.ExecSyncResponse, error) {
	if err := f.begin(ctx, "ExecSync"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	container, err := f.runningLocked(request.GetContainerId())
	exec := f.exec
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
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
func (f *Fake) Exec(ctx context.Context, r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	u, err := f.stream(ctx, "Exec", "exec", r.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ExecResponse{Url: u}, nil
}

// Attach returns a URL below SetStreamURL.
func (f *Fake) Attach(ctx context.Context, r *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	u, err := f.stream(ctx, "Attach", "attach", r.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.AttachResponse{Url: u}, nil
}

// PortForward returns a URL below SetStreamURL.
func (f *Fake) PortForward(
	ctx context.Context, r *runtimeapi.PortForwardRequest,
) (*runtimeapi.PortForwardResponse, error) {
	if err := f.begin(ctx, "PortForward"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sandboxes[r.GetPodSandboxId()]
	if s == nil {
		return nil, notFound("pod sandbox", r.GetPodSandboxId())
	}
	if s.stopped {
		return nil, status.Errorf(codes.FailedPrecondition, "pod sandbox %s is not ready", s.id)
	}
	return &runtimeapi.PortForwardResponse{Url: fmt.Sprintf("%s/portforward/%s", f.streamURL, s.id)}, nil
}

func (f *Fake) stream(ctx context.Context, verb, path, id string) (string, error) {
	if err := f.begin(ctx, verb); err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.runningLocked(id); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s/%s/%s", f.streamURL, path, id), nil
}

// GetContainerEvents streams events until the caller disconnects. The stream of a slow caller ends; it never misses
// single events.
func (f *Fake) GetContainerEvents(
	_ *runtimeapi.GetEventsRequest, s grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse],
) error {
	ch := make(chan *runtimeapi.ContainerEventResponse, 1024)
	f.mu.Lock()
	f.subs[ch] = struct{}{}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.subs, ch)
		f.mu.Unlock()
	}()
	for {
		select {
		case e, ok := <-ch:
			if !ok {
				return status.Error(codes.ResourceExhausted, "container events: the reader is too slow")
			}
			if err := s.Send(e); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

// Watchers counts the open streams of GetContainerEvents.
func (f *Fake) Watchers() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.subs)
}

func (f *Fake) emitLocked(id string, s *sandbox, t runtimeapi.ContainerEventType) {
	if len(f.subs) == 0 {
		return
	}
	e := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: t, CreatedAt: f.now().UnixNano()}
	if s != nil {
		e.PodSandboxStatus = s.status()
		e.ContainersStatuses = f.statusesLocked(s.id)
	}
	for ch := range f.subs {
		select {
		case ch <- e:
		default:
			delete(f.subs, ch)
			close(ch)
		}
	}
}

func (f *Fake) statusesLocked(sandboxID string) []*runtimeapi.ContainerStatus {
	var out []*runtimeapi.ContainerStatus
	for _, c := range sortedValues(f.containers) {
		if c.sandbox == sandboxID {
			out = append(out, c.status())
		}
	}
	return out
}
