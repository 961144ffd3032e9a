// SPDX-License-Identifier: Apache-2.0

package server

import (
	"slices"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The streaming list verbs return the same items as the unary ones, in several messages: a gRPC message has a size
// limit.

// chunkSize is the number of items per message.
const chunkSize = 500

func inChunks[T any](items []T, send func([]T) error) error {
	for chunk := range slices.Chunk(items, chunkSize) {
		if err := send(chunk); err != nil {
			return err
		}
	}
	return nil
}

// StreamPodSandboxes is the streaming form of ListPodSandbox.
func (s *Server) StreamPodSandboxes(
	r *runtimeapi.StreamPodSandboxesRequest, out grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse],
) error {
	return inChunks(s.sandboxes.List(r.GetFilter()), func(p []*runtimeapi.PodSandbox) error {
		return out.Send(&runtimeapi.StreamPodSandboxesResponse{PodSandboxes: p})
	})
}

// StreamContainers is the streaming form of ListContainers.
func (s *Server) StreamContainers(
	r *runtimeapi.StreamContainersRequest, out grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse],
) error {
	return inChunks(s.containers.List(r.GetFilter()), func(p []*runtimeapi.Container) error {
		return out.Send(&runtimeapi.StreamContainersResponse{Containers: p})
	})
}

// StreamContainerStats is the streaming form of ListContainerStats.
func (s *Server) StreamContainerStats(
	r *runtimeapi.StreamContainerStatsRequest, out grpc.ServerStreamingServer[runtimeapi.StreamContainerStatsResponse],
) error {
	all, err := s.ListContainerStats(out.Context(), &runtimeapi.ListContainerStatsRequest{Filter: r.GetFilter()})
	if err != nil {
		return err
	}
	return inChunks(all.GetStats(), func(p []*runtimeapi.ContainerStats) error {
		return out.Send(&runtimeapi.StreamContainerStatsResponse{ContainerStats: p})
	})
}

// StreamPodSandboxStats is the streaming form of ListPodSandboxStats.
func (s *Server) StreamPodSandboxStats(
	r *runtimeapi.StreamPodSandboxStatsRequest,
	out grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxStatsResponse],
) error {
	all, err := s.ListPodSandboxStats(out.Context(), &runtimeapi.ListPodSandboxStatsRequest{Filter: r.GetFilter()})
	if err != nil {
		return err
	}
	return inChunks(all.GetStats(), func(p []*runtimeapi.PodSandboxStats) error {
		return out.Send(&runtimeapi.StreamPodSandboxStatsResponse{PodSandboxStats: p})
	})
}

// StreamPodSandboxMetrics is the streaming form of ListPodSandboxMetrics.
func (s *Server) StreamPodSandboxMetrics(
	_ *runtimeapi.StreamPodSandboxMetricsRequest,
	out grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxMetricsResponse],
) error {
	all, err := s.ListPodSandboxMetrics(out.Context(), &runtimeapi.ListPodSandboxMetricsRequest{})
	if err != nil {
		return err
	}
	return inChunks(all.GetPodMetrics(), func(p []*runtimeapi.PodSandboxMetrics) error {
		return out.Send(&runtimeapi.StreamPodSandboxMetricsResponse{PodSandboxMetrics: p})
	})
}

// StreamImages is the streaming form of ListImages.
func (s *Server) StreamImages(
	r *runtimeapi.StreamImagesRequest, out grpc.ServerStreamingServer[runtimeapi.StreamImagesResponse],
) error {
	all, err := s.ListImages(out.Context(), &runtimeapi.ListImagesRequest{Filter: r.GetFilter()})
	if err != nil {
		return err
	}
	return inChunks(all.GetImages(), func(p []*runtimeapi.Image) error {
		return out.Send(&runtimeapi.StreamImagesResponse{Images: p})
	})
}
