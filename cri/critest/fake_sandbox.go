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
)

// pods are the sandboxes and containers. Their lock is taken before those of the other parts.
type pods struct {
	runtimeapi.UnimplementedRuntimeServiceServer

	script   *script
	node     *node
	images   *images
	watchers *watchers

	mu         sync.Mutex
	seq        int // of the newest id
	sandboxes  map[string]*sandbox
	containers map[string]*container
	program    func(*runtimeapi.ContainerConfig) Program
}

type sandbox struct {
	id      string
	config  *runtimeapi.PodSandboxConfig
	handler string
	created int64
	stopped bool
	ip      string
}

// RunPodSandbox makes a ready sandbox, with its own address unless it uses the host's network.
func (p *pods) RunPodSandbox(
	ctx context.Context, request *runtimeapi.RunPodSandboxRequest,
) (*runtimeapi.RunPodSandboxResponse, error) {
	if err := p.script.begin(ctx, "RunPodSandbox"); err != nil {
		return nil, err
	}
	metadata := request.GetConfig().GetMetadata()
	if metadata.GetName() == "" || metadata.GetUid() == "" {
		return nil, status.Error(codes.InvalidArgument, "run pod sandbox: metadata with name and uid is required")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.node.checkUsers(
		request.GetConfig().GetLinux().GetSecurityContext().GetNamespaceOptions()); err != nil {
		return nil, err
	}
	for _, s := range p.sandboxes {
		if o := s.config.GetMetadata(); o.GetUid() == metadata.GetUid() && o.GetAttempt() == metadata.GetAttempt() {
			return nil, status.Errorf(codes.AlreadyExists, "run pod sandbox: attempt %d of pod %s is sandbox %s",
				metadata.GetAttempt(), metadata.GetUid(), s.id)
		}
	}
	id, seq := p.idLocked()
	s := &sandbox{
		id:      id,
		config:  request.GetConfig(),
		handler: request.GetRuntimeHandler(),
		created: time.Now().UnixNano(),
	}
	if s.config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		s.ip = fmt.Sprintf("10.88.%d.%d", seq/250%250, seq%250+2)
	}
	p.sandboxes[id] = s
	p.emitLocked(id, s, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	p.emitLocked(id, s, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// StopPodSandbox ends the sandbox's containers and frees its address. An unknown sandbox is not an error.
func (p *pods) StopPodSandbox(
	ctx context.Context, r *runtimeapi.StopPodSandboxRequest,
) (*runtimeapi.StopPodSandboxResponse, error) {
	if err := p.script.begin(ctx, "StopPodSandbox"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.sandboxes[r.GetPodSandboxId()]; s != nil {
		p.stopSandboxLocked(s)
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

func (p *pods) stopSandboxLocked(s *sandbox) {
	for _, c := range sortedValues(p.containers) {
		if c.sandbox == s.id {
			p.endLocked(c, 137, "")
		}
	}
	if s.stopped {
		return
	}
	s.stopped = true
	s.ip = ""
	p.emitLocked(s.id, s, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// RemovePodSandbox stops and removes the sandbox with its containers. An unknown sandbox is not an error.
func (p *pods) RemovePodSandbox(
	ctx context.Context, r *runtimeapi.RemovePodSandboxRequest,
) (*runtimeapi.RemovePodSandboxResponse, error) {
	if err := p.script.begin(ctx, "RemovePodSandbox"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	sandbox := p.sandboxes[r.GetPodSandboxId()]
	if sandbox == nil {
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	}
	p.stopSandboxLocked(sandbox)
	for _, c := range sortedValues(p.containers) {
		if c.sandbox == sandbox.id {
			p.removeLocked(c)
		}
	}
	delete(p.sandboxes, sandbox.id)
	p.emitLocked(sandbox.id, sandbox, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// PodSandboxStatus returns NotFound for an unknown sandbox.
func (p *pods) PodSandboxStatus(
	ctx context.Context, r *runtimeapi.PodSandboxStatusRequest,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	if err := p.script.beginRead(ctx, "PodSandboxStatus"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sandboxes[r.GetPodSandboxId()]
	if s == nil {
		return nil, notFound("pod sandbox", r.GetPodSandboxId())
	}
	return &runtimeapi.PodSandboxStatusResponse{
		Status:             s.status(),
		ContainersStatuses: p.statusesLocked(s.id),
		Timestamp:          time.Now().UnixNano(),
	}, nil
}

// ready returns an error unless a sandbox is ready.
func (p *pods) ready(id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sandboxes[id]
	if s == nil {
		return notFound("pod sandbox", id)
	}
	if s.stopped {
		return status.Errorf(codes.FailedPrecondition, "pod sandbox %s is not ready", s.id)
	}
	return nil
}

func (s *sandbox) state() runtimeapi.PodSandboxState {
	if s.stopped {
		return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	}
	return runtimeapi.PodSandboxState_SANDBOX_READY
}

func (s *sandbox) status() *runtimeapi.PodSandboxStatus {
	return &runtimeapi.PodSandboxStatus{
		Id:        s.id,
		Metadata:  s.config.GetMetadata(),
		State:     s.state(),
		CreatedAt: s.created,
		Network:   &runtimeapi.PodSandboxNetworkStatus{Ip: s.ip},
		Linux: &runtimeapi.LinuxPodSandboxStatus{
			Namespaces: &runtimeapi.Namespace{Options: s.config.GetLinux().GetSecurityContext().GetNamespaceOptions()},
		},
		Labels:         s.config.GetLabels(),
		Annotations:    s.config.GetAnnotations(),
		RuntimeHandler: s.handler,
	}
}

// ListPodSandbox lists sandboxes in the order of creation.
func (p *pods) ListPodSandbox(
	ctx context.Context, r *runtimeapi.ListPodSandboxRequest,
) (*runtimeapi.ListPodSandboxResponse, error) {
	if err := p.script.beginRead(ctx, "ListPodSandbox"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	out := &runtimeapi.ListPodSandboxResponse{}
	q := r.GetFilter()
	for _, sandbox := range sortedValues(p.sandboxes) {
		if q.GetId() != "" && q.GetId() != sandbox.id ||
			q.GetState() != nil && q.GetState().GetState() != sandbox.state() ||
			!matches(q.GetLabelSelector(), sandbox.config.GetLabels()) {
			continue
		}
		out.Items = append(out.Items, &runtimeapi.PodSandbox{
			Id:             sandbox.id,
			Metadata:       sandbox.config.GetMetadata(),
			State:          sandbox.state(),
			CreatedAt:      sandbox.created,
			Labels:         sandbox.config.GetLabels(),
			Annotations:    sandbox.config.GetAnnotations(),
			RuntimeHandler: sandbox.handler,
		})
	}
	return out, nil
}

// UpdatePodSandboxResources accepts everything.
func (p *pods) UpdatePodSandboxResources(
	ctx context.Context, r *runtimeapi.UpdatePodSandboxResourcesRequest,
) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	if err := p.script.begin(ctx, "UpdatePodSandboxResources"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sandboxes[r.GetPodSandboxId()] == nil {
		return nil, notFound("pod sandbox", r.GetPodSandboxId())
	}
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}

// StopSandbox makes a sandbox NotReady without a call of the kubelet; its containers end with 137.
func (p *pods) StopSandbox(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.sandboxes[id]; s != nil {
		p.stopSandboxLocked(s)
	}
}
