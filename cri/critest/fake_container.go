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
func (p *pods) CreateContainer(
	ctx context.Context, request *runtimeapi.CreateContainerRequest,
) (*runtimeapi.CreateContainerResponse, error) {
	if err := p.script.begin(ctx, "CreateContainer"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	sandbox := p.sandboxes[request.GetPodSandboxId()]
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
	for _, c := range p.containers {
		if o := c.config.GetMetadata(); c.sandbox == sandbox.id && o.GetName() == m.GetName() &&
			o.GetAttempt() == m.GetAttempt() {
			return nil, status.Errorf(codes.AlreadyExists, "create container: attempt %d of %s is container %s",
				m.GetAttempt(), m.GetName(), c.id)
		}
	}
	img := p.images.find(request.GetConfig().GetImage().GetImage())
	if img == nil {
		return nil, notFound("image", request.GetConfig().GetImage().GetImage())
	}
	id, _ := p.idLocked()
	ctr := &container{
		id:      id,
		sandbox: sandbox.id,
		config:  request.GetConfig(),
		image:   img,
		created: time.Now().UnixNano(),
		res:     request.GetConfig().GetLinux().GetResources(),
		ended:   make(chan struct{}),
	}
	if p := ctr.config.GetLogPath(); p != "" {
		ctr.logPath = filepath.Join(sandbox.config.GetLogDirectory(), p)
	}
	p.containers[id] = ctr
	p.emitLocked(id, sandbox, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// StartContainer runs the container's Program.
func (p *pods) StartContainer(
	ctx context.Context, r *runtimeapi.StartContainerRequest,
) (*runtimeapi.StartContainerResponse, error) {
	if err := p.script.begin(ctx, "StartContainer"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	container := p.containers[r.GetContainerId()]
	if container == nil {
		return nil, notFound("container", r.GetContainerId())
	}
	if container.state != runtimeapi.ContainerState_CONTAINER_CREATED {
		return nil, status.Errorf(codes.FailedPrecondition, "start container %s: it is in state %s", container.id,
			container.state)
	}
	container.program = p.program(container.config)
	container.state = runtimeapi.ContainerState_CONTAINER_RUNNING
	container.started = time.Now().UnixNano()
	p.emitLocked(container.id, p.sandboxes[container.sandbox], runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	if err := p.logLocked(container, "stdout", container.program.Output...); err != nil {
		return nil, err
	}
	if will := container.program; will.Exits && will.After == 0 {
		p.endLocked(container, will.Code, "")
	} else if will.Exits {
		container.timer = time.AfterFunc(will.After, func() { p.Exit(container.id, will.Code) })
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

// StopContainer ends the container at once, or after the timeout with 137 when its Program ignores signals.
func (p *pods) StopContainer(
	ctx context.Context, request *runtimeapi.StopContainerRequest,
) (*runtimeapi.StopContainerResponse, error) {
	if err := p.script.begin(ctx, "StopContainer"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	container := p.containers[request.GetContainerId()]
	if container == nil || container.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		p.mu.Unlock()
		return &runtimeapi.StopContainerResponse{}, nil
	}
	if !container.program.IgnoresTerm && request.GetTimeout() > 0 {
		code := container.program.TermCode
		if code == 0 {
			code = 143
		}
		p.endLocked(container, code, "")
		p.mu.Unlock()
		return &runtimeapi.StopContainerResponse{}, nil
	}
	p.mu.Unlock()
	t := time.NewTimer(time.Duration(request.GetTimeout()) * time.Second)
	defer t.Stop()
	select {
	case <-t.C:
		p.end(container.id, 137, "")
	case <-container.ended:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// RemoveContainer removes a container; a running one is killed first. An unknown one is not an error.
func (p *pods) RemoveContainer(
	ctx context.Context, r *runtimeapi.RemoveContainerRequest,
) (*runtimeapi.RemoveContainerResponse, error) {
	if err := p.script.begin(ctx, "RemoveContainer"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.containers[r.GetContainerId()]; c != nil {
		p.removeLocked(c)
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (p *pods) removeLocked(c *container) {
	p.endLocked(c, 137, "")
	delete(p.containers, c.id)
	p.emitLocked(c.id, p.sandboxes[c.sandbox], runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
}

func (p *pods) end(id string, code int32, reason string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.containers[id]
	return c != nil && p.endLocked(c, code, reason)
}

func (p *pods) endLocked(ctr *container, code int32, reason string) bool {
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
	ctr.finished = time.Now().UnixNano()
	ctr.code = code
	ctr.reason = reason
	close(ctr.ended)
	p.emitLocked(ctr.id, p.sandboxes[ctr.sandbox], runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	return true
}

// Log appends lines to a container's log in the CRI format. stream is stdout or stderr.
func (p *pods) Log(containerID, stream string, lines ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.containers[containerID]
	if c == nil {
		return notFound("container", containerID)
	}
	return p.logLocked(c, stream, lines...)
}

func (p *pods) logLocked(c *container, stream string, lines ...string) error {
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
		if _, err := fmt.Fprintf(w, "%s %s F %s\n", time.Now().Format(time.RFC3339Nano), stream, l); err != nil {
			_ = w.Close() // the write's error is returned
			return fmt.Errorf("write container log: %w", err)
		}
	}
	return w.Close()
}

// ContainerStatus returns NotFound for an unknown container.
func (p *pods) ContainerStatus(
	ctx context.Context, r *runtimeapi.ContainerStatusRequest,
) (*runtimeapi.ContainerStatusResponse, error) {
	if err := p.script.beginRead(ctx, "ContainerStatus"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.containers[r.GetContainerId()]
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
func (p *pods) ListContainers(
	ctx context.Context, r *runtimeapi.ListContainersRequest,
) (*runtimeapi.ListContainersResponse, error) {
	if err := p.script.beginRead(ctx, "ListContainers"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	out := &runtimeapi.ListContainersResponse{}
	q := r.GetFilter()
	for _, container := range sortedValues(p.containers) {
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
func (p *pods) UpdateContainerResources(
	ctx context.Context, request *runtimeapi.UpdateContainerResourcesRequest,
) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	if err := p.script.begin(ctx, "UpdateContainerResources"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.containers[request.GetContainerId()]
	if c == nil {
		return nil, notFound("container", request.GetContainerId())
	}
	c.res = request.GetLinux()
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// ReopenContainerLog needs a running container. The Fake opens the log for each write, so it only creates the file.
func (p *pods) ReopenContainerLog(
	ctx context.Context, r *runtimeapi.ReopenContainerLogRequest,
) (*runtimeapi.ReopenContainerLogResponse, error) {
	if err := p.script.begin(ctx, "ReopenContainerLog"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c, err := p.runningLocked(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ReopenContainerLogResponse{}, p.logLocked(c, "stdout")
}

// running returns a container that runs.
func (p *pods) running(id string) (*container, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runningLocked(id)
}

func (p *pods) runningLocked(id string) (*container, error) {
	c := p.containers[id]
	if c == nil {
		return nil, notFound("container", id)
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, status.Errorf(codes.FailedPrecondition, "container %s is not running: %s", id, c.state)
	}
	return c, nil
}

// SetProgram sets the behaviour of containers that are started from now on.
func (p *pods) SetProgram(program func(*runtimeapi.ContainerConfig) Program) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.program = program
}

// Exit ends a running container by itself. It reports whether it was running.
func (p *pods) Exit(containerID string, code int32) bool { return p.end(containerID, code, "") }

// OOMKill ends a running container as the OOM killer does.
func (p *pods) OOMKill(containerID string) bool { return p.end(containerID, 137, "OOMKilled") }

// Containers returns the ids of containers with this name (all when empty), oldest first.
func (p *pods) Containers(name string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := []string{}
	for _, c := range sortedValues(p.containers) {
		if name == "" || c.config.GetMetadata().GetName() == name {
			ids = append(ids, c.id)
		}
	}
	return ids
}

// Config returns what a container was created with; nil when there is none.
func (p *pods) Config(containerID string) *runtimeapi.ContainerConfig {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.containers[containerID]; c != nil {
		return c.config
	}
	return nil
}

// idLocked makes an id of the usual form. Ids sort by age.
func (p *pods) idLocked() (string, int) {
	p.seq++
	return fmt.Sprintf("%064x", p.seq), p.seq
}
