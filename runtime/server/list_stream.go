// SPDX-License-Identifier: Apache-2.0

package server

import (
	"slices"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The streaming forms of the list verbs answer the same in pieces, for nodes with so much that one message would not hold it.

// pieceSize is how many items one message carries.
const pieceSize = 500

func inPieces[T any](items []T, send func([]T) error) error {
	for piece := range slices.Chunk(items, pieceSize) {
		if err := send(piece); err != nil {
			return err
		}
	}
	return nil
}

// StreamPodSandboxes is ListPodSandbox in pieces.
func (s *Server) StreamPodSandboxes(
	r *runtimeapi.StreamPodSandboxesRequest, out grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse],
) error {
	return inPieces(s.listSandboxes(r.GetFilter()), func(p []*runtimeapi.PodSandbox) error {
		return out.Send(&runtimeapi.StreamPodSandboxesResponse{PodSandboxes: p})
	})
}

// StreamContainers is ListContainers in pieces.
func (s *Server) StreamContainers(
	r *runtimeapi.StreamContainersRequest, out grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse],
) error {
	return inPieces(s.listContainers(r.GetFilter()), func(p []*runtimeapi.Container) error {
		return out.Send(&runtimeapi.StreamContainersResponse{Containers: p})
	})
}

// StreamContainerStats is ListContainerStats in pieces.
func (s *Server) StreamContainerStats(
	r *runtimeapi.StreamContainerStatsRequest, out grpc.ServerStreamingServer[runtimeapi.StreamContainerStatsResponse],
) error {
	all, err := s.ListContainerStats(out.Context(), &runtimeapi.ListContainerStatsRequest{Filter: r.GetFilter()})
	if err != nil {
		return err
	}
	return inPieces(all.GetStats(), func(p []*runtimeapi.ContainerStats) error {
		return out.Send(&runtimeapi.StreamContainerStatsResponse{ContainerStats: p})
	})
}

// StreamPodSandboxStats is ListPodSandboxStats in pieces.
func (s *Server) StreamPodSandboxStats(
	r *runtimeapi.StreamPodSandboxStatsRequest, out grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxStatsResponse],
) error {
	all, err := s.ListPodSandboxStats(out.Context(), &runtimeapi.ListPodSandboxStatsRequest{Filter: r.GetFilter()})
	if err != nil {
		return err
	}
	return inPieces(all.GetStats(), func(p []*runtimeapi.PodSandboxStats) error {
		return out.Send(&runtimeapi.StreamPodSandboxStatsResponse{PodSandboxStats: p})
	})
}

// StreamPodSandboxMetrics is ListPodSandboxMetrics in pieces.
func (s *Server) StreamPodSandboxMetrics(
	_ *runtimeapi.StreamPodSandboxMetricsRequest, out grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxMetricsResponse],
) error {
	all, err := s.ListPodSandboxMetrics(out.Context(), &runtimeapi.ListPodSandboxMetricsRequest{})
	if err != nil {
		return err
	}
	return inPieces(all.GetPodMetrics(), func(p []*runtimeapi.PodSandboxMetrics) error {
		return out.Send(&runtimeapi.StreamPodSandboxMetricsResponse{PodSandboxMetrics: p})
	})
}

// StreamImages is ListImages in pieces.
func (s *Server) StreamImages(r *runtimeapi.StreamImagesRequest, out grpc.ServerStreamingServer[runtimeapi.StreamImagesResponse]) error {
	all, err := s.ListImages(out.Context(), &runtimeapi.ListImagesRequest{Filter: r.GetFilter()})
	if err != nil {
		return err
	}
	return inPieces(all.GetImages(), func(p []*runtimeapi.Image) error { return out.Send(&runtimeapi.StreamImagesResponse{Images: p}) })
}
