// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
	"keelson/runtime/fault"
)

// Name and release of this runtime, as nodes report them.
const (
	runtimeName    = "keelson"
	runtimeRelease = "1.37.2"
)

// Version returns the runtime's name and version. Only CRI v1 is served.
func (s *Server) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{
		Version:           "0.1.0",
		RuntimeName:       runtimeName,
		RuntimeVersion:    runtimeRelease,
		RuntimeApiVersion: "v1",
	}, nil
}

// Status reports the runtime ready while its supervisor answers.
func (s *Server) Status(
	ctx context.Context, statusRequest *runtimeapi.StatusRequest,
) (*runtimeapi.StatusResponse, error) {
	ready := &runtimeapi.RuntimeCondition{Type: runtimeapi.RuntimeReady, Status: true}
	if _, err := s.supervisor.Client().Hello(ctx); err != nil {
		ready.Status = false
		ready.Reason = "ContainerSupervisorDown"
		ready.Message = err.Error()
	}
	users := s.users.Err(ctx)
	out := &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{
			Conditions: []*runtimeapi.RuntimeCondition{ready, s.network.Ready()},
		},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Features: &runtimeapi.RuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: linux.CanMountRecursivelyReadOnly(),
			UserNamespaces:          users == nil,
		}}},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true, MountOptions: true},
	}
	if statusRequest.GetVerbose() {
		facts, err := json.Marshal(s.host)
		if err != nil {
			return nil, fault.Wrap(err, "status")
		}
		out.Info = map[string]string{"host": string(facts)}
		if users != nil {
			out.Info["userNamespaces"] = users.Error()
		}
	}
	return out, nil
}

// RuntimeConfig reports the cgroup driver: cgroupfs.
func (s *Server) RuntimeConfig(
	context.Context, *runtimeapi.RuntimeConfigRequest,
) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{
		Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS},
	}, nil
}

// UpdateRuntimeConfig ignores the node's pod CIDR: the pod network has its own configuration.
func (s *Server) UpdateRuntimeConfig(
	context.Context, *runtimeapi.UpdateRuntimeConfigRequest,
) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// GetContainerEvents streams events until the client disconnects.
func (s *Server) GetContainerEvents(
	_ *runtimeapi.GetEventsRequest, out grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse],
) error {
	return s.events.Stream(out)
}
