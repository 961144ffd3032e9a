// SPDX-License-Identifier: Apache-2.0

package critest

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type sandbox struct {
	id      string
	seq     int
	config  *runtimeapi.PodSandboxConfig
	handler string
	created int64
	stopped bool
	ip      string
}

// Version returns CRI v1 and the name fake.
func (f *Fake) Version(ctx context.Context, _ *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	if err := f.beginRead(ctx, "Version"); err != nil {
		return nil, err
	}
	return &runtimeapi.VersionResponse{
		Version:           "0.1.0",
		RuntimeName:       "fake",
		RuntimeVersion:    "1.0.0",
		RuntimeApiVersion: "v1",
	}, nil
}

// Status returns both conditions, ready unless SetNotReady is set.
func (f *Fake) Status(ctx context.Context, _ *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	if err := f.beginRead(ctx, "Status"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &runtimeapi.RuntimeCondition{Type: runtimeapi.RuntimeReady, Status: f.notReady == "", Message: f.notReady}
	if f.notReady != "" {
		c.Reason = "FakeNotReady"
	}
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{
			Conditions: []*runtimeapi.RuntimeCondition{c, {Type: runtimeapi.NetworkReady, Status: true}},
		},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Features: &runtimeapi.RuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: true,
			UserNamespaces:          !f.noUsers,
		}}},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true},
	}, nil
}

// RuntimeConfig returns the cgroup driver cgroupfs.
func (f *Fake) RuntimeConfig(
	context.Context, *runtimeapi.RuntimeConfigRequest,
) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{
		Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS},
	}, nil
}

// UpdateRuntimeConfig stores the pod CIDR. Addresses of sandboxes do not depend on it.
func (f *Fake) UpdateRuntimeConfig(
	ctx context.Context, r *runtimeapi.UpdateRuntimeConfigRequest,
) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	if err := f.begin(ctx, "UpdateRuntimeConfig"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.podCIDR = r.GetRuntimeConfig().GetNetworkConfig().GetPodCidr()
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// RunPodSandbox makes a ready sandbox, with its own address unless it uses the host's network.
func (f *Fake) RunPodSandbox(
	ctx context.Context, request *runtimeapi.RunPodSandboxRequest,
) (*runtimeapi.RunPodSandboxResponse, error) {
	if err := f.begin(ctx, "RunPodSandbox"); err != nil {
		return nil, err
	}
	metadata := request.GetConfig().GetMetadata()
	if metadata.GetName() == "" || metadata.GetUid() == "" {
		return nil, status.Error(codes.InvalidArgument, "run pod sandbox: metadata with name and uid is required")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.checkUsersLocked(
		request.GetConfig().GetLinux().GetSecurityContext().GetNamespaceOptions()); err != nil {
		return nil, err
	}
	for _, s := range f.sandboxes {
		if o := s.config.GetMetadata(); o.GetUid() == metadata.GetUid() && o.GetAttempt() == metadata.GetAttempt() {
			return nil, status.Errorf(codes.AlreadyExists, "run pod sandbox: attempt %d of pod %s is sandbox %s",
				metadata.GetAttempt(), metadata.GetUid(), s.id)
		}
	}
	id, seq := f.idLocked()
	s := &sandbox{
		id:      id,
		seq:     seq,
		config:  request.GetConfig(),
		handler: request.GetRuntimeHandler(),
		created: f.now().UnixNano(),
	}
	if s.config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		s.ip = fmt.Sprintf("10.88.%d.%d", seq/250%250, seq%250+2)
	}
	f.sandboxes[id] = s
	f.emitLocked(id, s, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	f.emitLocked(id, s, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// checkUsersLocked refuses invalid user namespaces.
func (f *Fake) checkUsersLocked(o *runtimeapi.NamespaceOption) error {
	userNamespace := o.GetUsernsOptions()
	if userNamespace == nil || userNamespace.GetMode() == runtimeapi.NamespaceMode_NODE {
		return nil
	}
	if f.noUsers {
		return status.Error(codes.FailedPrecondition, "run pod sandbox: user namespaces are not supported")
	}
	if o.GetNetwork() == runtimeapi.NamespaceMode_NODE || o.GetPid() == runtimeapi.NamespaceMode_NODE ||
		o.GetIpc() == runtimeapi.NamespaceMode_NODE {
		return status.Error(codes.InvalidArgument, "run pod sandbox: a user namespace and a namespace of the host's")
	}
	for _, maps := range [][]*runtimeapi.IDMapping{userNamespace.GetUids(), userNamespace.GetGids()} {
		if len(maps) == 0 || maps[0].GetContainerId() != 0 || maps[0].GetHostId() == 0 || maps[0].GetLength() == 0 {
			return status.Errorf(codes.InvalidArgument, "run pod sandbox: mappings %v", maps)
		}
	}
	return nil
}

// StopPodSandbox ends the sandbox's containers and frees its address. An unknown sandbox is not an error.
func (f *Fake) StopPodSandbox(
	ctx context.Context, r *runtimeapi.StopPodSandboxRequest,
) (*runtimeapi.StopPodSandboxResponse, error) {
	if err := f.begin(ctx, "StopPodSandbox"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.sandboxes[r.GetPodSandboxId()]; s != nil {
		f.stopSandboxLocked(s)
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

func (f *Fake) stopSandboxLocked(s *sandbox) {
	for _, c := range sortedValues(f.containers) {
		if c.sandbox == s.id {
			f.endLocked(c, 137, "")
		}
	}
	if s.stopped {
		return
	}
	s.stopped = true
	s.ip = ""
	f.emitLocked(s.id, s, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// RemovePodSandbox stops and removes the sandbox with its containers. An unknown sandbox is not an error.
func (f *Fake) RemovePodSandbox(
	ctx context.Context, r *runtimeapi.RemovePodSandboxRequest,
) (*runtimeapi.RemovePodSandboxResponse, error) {
	if err := f.begin(ctx, "RemovePodSandbox"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	sandbox := f.sandboxes[r.GetPodSandboxId()]
	if sandbox == nil {
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	}
	f.stopSandboxLocked(sandbox)
	for _, c := range sortedValues(f.containers) {
		if c.sandbox == sandbox.id {
			f.removeLocked(c)
		}
	}
	delete(f.sandboxes, sandbox.id)
	f.emitLocked(sandbox.id, sandbox, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// PodSandboxStatus returns NotFound for an unknown sandbox.
func (f *Fake) PodSandboxStatus(
	ctx context.Context, r *runtimeapi.PodSandboxStatusRequest,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	if err := f.beginRead(ctx, "PodSandboxStatus"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sandboxes[r.GetPodSandboxId()]
	if s == nil {
		return nil, notFound("pod sandbox", r.GetPodSandboxId())
	}
	return &runtimeapi.PodSandboxStatusResponse{
		Status:             s.status(),
		ContainersStatuses: f.statusesLocked(s.id),
		Timestamp:          f.now().UnixNano(),
	}, nil
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
func (f *Fake) ListPodSandbox(
	ctx context.Context, r *runtimeapi.ListPodSandboxRequest,
) (*runtimeapi.ListPodSandboxResponse, error) {
	if err := f.beginRead(ctx, "ListPodSandbox"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &runtimeapi.ListPodSandboxResponse{}
	q := r.GetFilter()
	for _, sandbox := range sortedValues(f.sandboxes) {
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
func (f *Fake) UpdatePodSandboxResources(
	ctx context.Context, r *runtimeapi.UpdatePodSandboxResourcesRequest,
) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	if err := f.begin(ctx, "UpdatePodSandboxResources"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sandboxes[r.GetPodSandboxId()] == nil {
		return nil, notFound("pod sandbox", r.GetPodSandboxId())
	}
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}
