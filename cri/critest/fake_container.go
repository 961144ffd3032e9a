// SPDX-License-Identifier: Apache-2.0

package critest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type container struct {
	id       string
	seq      int
	sandbox  string
	config   *runtimeapi.ContainerConfig
	image    *runtimeapi.Image
	logPath  string
	program  Program
	state    runtimeapi.ContainerState
	created  int64
	started  int64
	finished int64
	code     int32
	reason   string
	res      *runtimeapi.LinuxContainerResources
	ended    chan struct{} // closed when it exits
	timer    *time.Timer
}

// CreateContainer needs a ready sandbox and a present image.
func (f *Fake) CreateContainer(
	ctx context.Context, request *runtimeapi.CreateContainerRequest,
) (*runtimeapi.CreateContainerResponse, error) {
	if err := f.begin(ctx, "CreateContainer"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	sandbox := f.sandboxes[request.GetPodSandboxId()]
	if sandbox == nil {
		return nil, notFound("pod sandbox", request.GetPodSandboxId())
	}
	if sandbox.stopped {
		return nil, status.Errorf(codes.FailedPrecondition, "create container: pod sandbox %s is not ready", sandbox.id)
	}
	m := request.GetConfig().GetMetadata()
	if m.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "create container: metadata with a name is required")
	}
	for _, c := range f.containers {
		if o := c.config.GetMetadata(); c.sandbox == sandbox.id && o.GetName() == m.GetName() &&
			o.GetAttempt() == m.GetAttempt() {
			return nil, status.Errorf(codes.AlreadyExists, "create container: attempt %d of %s is container %s",
				m.GetAttempt(), m.GetName(), c.id)
		}
	}
	img := f.findImageLocked(request.GetConfig().GetImage().GetImage())
	if img == nil {
		return nil, notFound("image", request.GetConfig().GetImage().GetImage())
	}
	id, seq := f.idLocked()
	ctr := &container{
		id:      id,
		seq:     seq,
		sandbox: sandbox.id,
		config:  request.GetConfig(),
		image:   img,
		created: f.now().UnixNano(),
		res:     request.GetConfig().GetLinux().GetResources(),
		ended:   make(chan struct{}),
	}
	if p := ctr.config.GetLogPath(); p != "" {
		ctr.logPath = filepath.Join(sandbox.config.GetLogDirectory(), p)
	}
	f.containers[id] = ctr
	f.emitLocked(id, sandbox, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// StartContainer runs the container's Program.
func (f *Fake) StartContainer(
	ctx context.Context, r *runtimeapi.StartContainerRequest,
) (*runtimeapi.StartContainerResponse, error) {
	if err := f.begin(ctx, "StartContainer"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	container := f.containers[r.GetContainerId()]
	if container == nil {
		return nil, notFound("container", r.GetContainerId())
	}
	if container.state != runtimeapi.ContainerState_CONTAINER_CREATED {
		return nil, status.Errorf(codes.FailedPrecondition, "start container %s: it is in state %s", container.id,
			container.state)
	}
	container.program = f.program(container.config)
	container.state = runtimeapi.ContainerState_CONTAINER_RUNNING
	container.started = f.now().UnixNano()
	f.emitLocked(container.id, f.sandboxes[container.sandbox], runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	if err := f.logLocked(container, "stdout", container.program.Output...); err != nil {
		return nil, err
	}
	if p := container.program; p.Exits && p.After == 0 {
		f.endLocked(container, p.Code, "")
	} else if p.Exits {
		container.timer = time.AfterFunc(p.After, func() { f.Exit(container.id, p.Code) })
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

// StopContainer ends the container at once, or after the timeout with 137 when its Program ignores signals.
func (f *Fake) StopContainer(
	ctx context.Context, request *runtimeapi.StopContainerRequest,
) (*runtimeapi.StopContainerResponse, error) {
	if err := f.begin(ctx, "StopContainer"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	container := f.containers[request.GetContainerId()]
	if container == nil || container.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		f.mu.Unlock()
		return &runtimeapi.StopContainerResponse{}, nil
	}
	if !container.program.IgnoresTerm && request.GetTimeout() > 0 {
		code := container.program.TermCode
		if code == 0 {
			code = 143
		}
		f.endLocked(container, code, "")
		f.mu.Unlock()
		return &runtimeapi.StopContainerResponse{}, nil
	}
	f.mu.Unlock()
	t := time.NewTimer(time.Duration(request.GetTimeout()) * time.Second)
	defer t.Stop()
	select {
	case <-t.C:
		f.end(container.id, 137, "")
	case <-container.ended:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// RemoveContainer removes a container; a running one is killed first. An unknown one is not an error.
func (f *Fake) RemoveContainer(
	ctx context.Context, r *runtimeapi.RemoveContainerRequest,
) (*runtimeapi.RemoveContainerResponse, error) {
	if err := f.begin(ctx, "RemoveContainer"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.containers[r.GetContainerId()]; c != nil {
		f.removeLocked(c)
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (f *Fake) removeLocked(c *container) {
	f.endLocked(c, 137, "")
	delete(f.containers, c.id)
	f.emitLocked(c.id, f.sandboxes[c.sandbox], runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
}

func (f *Fake) end(id string, code int32, reason string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	return c != nil && f.endLocked(c, code, reason)
}

func (f *Fake) endLocked(ctr *container, code int32, reason string) bool {
	if ctr.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return false
	}
	if ctr.timer != nil {
		ctr.timer.Stop()
	}
	switch {
	case reason != "":
	case code == 0:
		reason = "Completed"
	default:
		reason = "Error"
	}
	ctr.state = runtimeapi.ContainerState_CONTAINER_EXITED
	ctr.finished = f.now().UnixNano()
	ctr.code = code
	ctr.reason = reason
	close(ctr.ended)
	f.emitLocked(ctr.id, f.sandboxes[ctr.sandbox], runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	return true
}

// Log appends lines to a container's log in the CRI format. stream is stdout or stderr.
func (f *Fake) Log(containerID, stream string, lines ...string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[containerID]
	if c == nil {
		return notFound("container", containerID)
	}
	return f.logLocked(c, stream, lines...)
}

func (f *Fake) logLocked(c *container, stream string, lines ...string) error {
	if c.logPath == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(c.logPath), 0o755); err != nil {
		return fmt.Errorf("make log directory: %w", err)
	}
	w, err := os.OpenFile(c.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("open container log: %w", err)
	}
	for _, l := range lines {
		if _, err := fmt.Fprintf(w, "%s %s F %s\n", f.now().Format(time.RFC3339Nano), stream, l); err != nil {
			_ = w.Close() // the write's error is returned
			return fmt.Errorf("write container log: %w", err)
		}
	}
	return w.Close()
}

// ContainerStatus returns NotFound for an unknown container.
func (f *Fake) ContainerStatus(
	ctx context.Context, r *runtimeapi.ContainerStatusRequest,
) (*runtimeapi.ContainerStatusResponse, error) {
	if err := f.beginRead(ctx, "ContainerStatus"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[r.GetContainerId()]
	if c == nil {
		return nil, notFound("container", r.GetContainerId())
	}
	return &runtimeapi.ContainerStatusResponse{Status: c.status()}, nil
}

func (c *container) status() *runtimeapi.ContainerStatus {
	return &runtimeapi.ContainerStatus{
		Id:          c.id,
		Metadata:    c.config.GetMetadata(),
		State:       c.state,
		CreatedAt:   c.created,
		StartedAt:   c.started,
		FinishedAt:  c.finished,
		ExitCode:    c.code,
		Image:       c.config.GetImage(),
		ImageRef:    c.image.GetRepoDigests()[0],
		ImageId:     c.image.GetId(),
		Reason:      c.reason,
		Labels:      c.config.GetLabels(),
		Annotations: c.config.GetAnnotations(),
		Mounts:      c.config.GetMounts(),
		LogPath:     c.logPath,
		Resources:   &runtimeapi.ContainerResources{Linux: c.res},
		User: &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{
			Uid: c.config.GetLinux().GetSecurityContext().GetRunAsUser().GetValue(),
		}},
		StopSignal: c.config.GetStopSignal(),
	}
}

// ListContainers lists containers in the order of creation.
func (f *Fake) ListContainers(
	ctx context.Context, r *runtimeapi.ListContainersRequest,
) (*runtimeapi.ListContainersResponse, error) {
	if err := f.beginRead(ctx, "ListContainers"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &runtimeapi.ListContainersResponse{}
	q := r.GetFilter()
	for _, container := range sortedValues(f.containers) {
		if q.GetId() != "" && q.GetId() != container.id ||
			q.GetPodSandboxId() != "" && q.GetPodSandboxId() != container.sandbox ||
			q.GetState() != nil && q.GetState().GetState() != container.state ||
			!matches(q.GetLabelSelector(), container.config.GetLabels()) {
			continue
		}
		out.Containers = append(out.Containers, &runtimeapi.Container{
			Id:           container.id,
			PodSandboxId: container.sandbox,
			Metadata:     container.config.GetMetadata(),
			Image:        container.config.GetImage(),
			ImageRef:     container.image.GetRepoDigests()[0],
			State:        container.state,
			CreatedAt:    container.created,
			Labels:       container.config.GetLabels(),
			Annotations:  container.config.GetAnnotations(),
			ImageId:      container.image.GetId(),
		})
	}
	return out, nil
}

// UpdateContainerResources stores the new resources, which ContainerStatus returns.
func (f *Fake) UpdateContainerResources(
	ctx context.Context, request *runtimeapi.UpdateContainerResourcesRequest,
) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	if err := f.begin(ctx, "UpdateContainerResources"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[request.GetContainerId()]
	if c == nil {
		return nil, notFound("container", request.GetContainerId())
	}
	c.res = request.GetLinux()
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// ReopenContainerLog needs a running container. The Fake opens the log for each write, so it only creates the file.
func (f *Fake) ReopenContainerLog(
	ctx context.Context, r *runtimeapi.ReopenContainerLogRequest,
) (*runtimeapi.ReopenContainerLogResponse, error) {
	if err := f.begin(ctx, "ReopenContainerLog"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.runningLocked(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ReopenContainerLogResponse{}, f.logLocked(c, "stdout")
}

func (f *Fake) runningLocked(id string) (*container, error) {
	c := f.containers[id]
	if c == nil {
		return nil, notFound("container", id)
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, status.Errorf(codes.FailedPrecondition, "container %s is not running: %s", id, c.state)
	}
	return c, nil
}
