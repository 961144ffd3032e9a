// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CreateContainer makes the container's root file system and OCI spec. It starts nothing.
func (s *Server) CreateContainer(
	ctx context.Context, r *runtimeapi.CreateContainerRequest,
) (*runtimeapi.CreateContainerResponse, error) {
	id, err := s.containers.Create(ctx, r)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// StartContainer runs a created container.
func (s *Server) StartContainer(
	ctx context.Context, r *runtimeapi.StartContainerRequest,
) (*runtimeapi.StartContainerResponse, error) {
	if err := s.containers.Start(ctx, r.GetContainerId()); err != nil {
		return nil, err
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

// StopContainer sends the stop signal, waits for the timeout, and then kills. An unknown or ended container is not an
// error.
func (s *Server) StopContainer(
	ctx context.Context, r *runtimeapi.StopContainerRequest,
) (*runtimeapi.StopContainerResponse, error) {
	timeout := time.Duration(r.GetTimeout()) * time.Second
	if err := s.containers.Stop(ctx, r.GetContainerId(), timeout); err != nil {
		return nil, err
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// RemoveContainer removes a container and its root file system; a running one is killed first. An unknown container is
// not an error.
func (s *Server) RemoveContainer(
	ctx context.Context, r *runtimeapi.RemoveContainerRequest,
) (*runtimeapi.RemoveContainerResponse, error) {
	if err := s.containers.Remove(ctx, r.GetContainerId()); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// ContainerStatus describes a container; verbose adds its OCI spec.
func (s *Server) ContainerStatus(
	ctx context.Context, r *runtimeapi.ContainerStatusRequest,
) (*runtimeapi.ContainerStatusResponse, error) {
	return s.containers.Status(ctx, r)
}

// ListContainers lists containers, newest first.
func (s *Server) ListContainers(
	_ context.Context, r *runtimeapi.ListContainersRequest,
) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: s.containers.List(r.GetFilter())}, nil
}

// UpdateContainerResources changes the limits of a created or running container. Zero fields do not change.
func (s *Server) UpdateContainerResources(
	ctx context.Context, r *runtimeapi.UpdateContainerResourcesRequest,
) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	if err := s.containers.Update(ctx, r.GetContainerId(), r.GetLinux()); err != nil {
		return nil, err
	}
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// ReopenContainerLog makes a running container log to a new file at the same path, after a rotation.
func (s *Server) ReopenContainerLog(
	ctx context.Context, r *runtimeapi.ReopenContainerLogRequest,
) (*runtimeapi.ReopenContainerLogResponse, error) {
	if err := s.containers.ReopenLog(ctx, r.GetContainerId()); err != nil {
		return nil, err
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}

// CheckpointContainer is not supported.
func (s *Server) CheckpointContainer(
	context.Context, *runtimeapi.CheckpointContainerRequest,
) (*runtimeapi.CheckpointContainerResponse, error) {
	return nil, status.Error(codes.Unimplemented, "keelson does not checkpoint containers")
}
