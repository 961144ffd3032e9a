// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// InProcess returns a Client that calls s directly, without socket and encoding: both sides share the request and
// response pointers. Errors are gRPC statuses, as over a socket.
func InProcess(s Server) Client {
	return Client{Runtime: runtimeClient{s}, Image: imageClient{s}, Close: func() error { return nil }}
}

// direct calls one method as gRPC would: not when ctx is done, and with errors as statuses.
func direct[Q, A any](ctx context.Context, in Q, call func(context.Context, Q) (A, error)) (A, error) {
	if err := ctx.Err(); err != nil {
		var none A
		return none, status.FromContextError(err).Err()
	}
	out, err := call(ctx, in)
	return out, asStatus(err)
}

// asStatus converts an error to a gRPC status; a status stays as it is.
func asStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	return status.Convert(err).Err()
}

type runtimeClient struct{ s Server }

func (c runtimeClient) Version(
	ctx context.Context, in *runtimeapi.VersionRequest, _ ...grpc.CallOption,
) (*runtimeapi.VersionResponse, error) {
	return direct(ctx, in, c.s.Version)
}

func (c runtimeClient) RunPodSandbox(
	ctx context.Context, in *runtimeapi.RunPodSandboxRequest, _ ...grpc.CallOption,
) (*runtimeapi.RunPodSandboxResponse, error) {
	return direct(ctx, in, c.s.RunPodSandbox)
}

func (c runtimeClient) StopPodSandbox(
	ctx context.Context, in *runtimeapi.StopPodSandboxRequest, _ ...grpc.CallOption,
) (*runtimeapi.StopPodSandboxResponse, error) {
	return direct(ctx, in, c.s.StopPodSandbox)
}

func (c runtimeClient) RemovePodSandbox(
	ctx context.Context, in *runtimeapi.RemovePodSandboxRequest, _ ...grpc.CallOption,
) (*runtimeapi.RemovePodSandboxResponse, error) {
	return direct(ctx, in, c.s.RemovePodSandbox)
}

func (c runtimeClient) PodSandboxStatus(
	ctx context.Context, in *runtimeapi.PodSandboxStatusRequest, _ ...grpc.CallOption,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	return direct(ctx, in, c.s.PodSandboxStatus)
}

func (c runtimeClient) ListPodSandbox(
	ctx context.Context, in *runtimeapi.ListPodSandboxRequest, _ ...grpc.CallOption,
) (*runtimeapi.ListPodSandboxResponse, error) {
	return direct(ctx, in, c.s.ListPodSandbox)
}

func (c runtimeClient) CreateContainer(
	ctx context.Context, in *runtimeapi.CreateContainerRequest, _ ...grpc.CallOption,
) (*runtimeapi.CreateContainerResponse, error) {
	return direct(ctx, in, c.s.CreateContainer)
}

func (c runtimeClient) StartContainer(
	ctx context.Context, in *runtimeapi.StartContainerRequest, _ ...grpc.CallOption,
) (*runtimeapi.StartContainerResponse, error) {
	return direct(ctx, in, c.s.StartContainer)
}

func (c runtimeClient) StopContainer(
	ctx context.Context, in *runtimeapi.StopContainerRequest, _ ...grpc.CallOption,
) (*runtimeapi.StopContainerResponse, error) {
	return direct(ctx, in, c.s.StopContainer)
}

func (c runtimeClient) RemoveContainer(
	ctx context.Context, in *runtimeapi.RemoveContainerRequest, _ ...grpc.CallOption,
) (*runtimeapi.RemoveContainerResponse, error) {
	return direct(ctx, in, c.s.RemoveContainer)
}

func (c runtimeClient) ListContainers(
	ctx context.Context, in *runtimeapi.ListContainersRequest, _ ...grpc.CallOption,
) (*runtimeapi.ListContainersResponse, error) {
	return direct(ctx, in, c.s.ListContainers)
}

func (c runtimeClient) ContainerStatus(
	ctx context.Context, in *runtimeapi.ContainerStatusRequest, _ ...grpc.CallOption,
) (*runtimeapi.ContainerStatusResponse, error) {
	return direct(ctx, in, c.s.ContainerStatus)
}

func (c runtimeClient) UpdateContainerResources(
	ctx context.Context, in *runtimeapi.UpdateContainerResourcesRequest, _ ...grpc.CallOption,
) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	return direct(ctx, in, c.s.UpdateContainerResources)
}

func (c runtimeClient) ReopenContainerLog(
	ctx context.Context, in *runtimeapi.ReopenContainerLogRequest, _ ...grpc.CallOption,
) (*runtimeapi.ReopenContainerLogResponse, error) {
	return direct(ctx, in, c.s.ReopenContainerLog)
}

func (c runtimeClient) ExecSync(
	ctx context.Context, in *runtimeapi.ExecSyncRequest, _ ...grpc.CallOption,
) (*runtimeapi.ExecSyncResponse, error) {
	return direct(ctx, in, c.s.ExecSync)
}

func (c runtimeClient) Exec(
	ctx context.Context, in *runtimeapi.ExecRequest, _ ...grpc.CallOption,
) (*runtimeapi.ExecResponse, error) {
	return direct(ctx, in, c.s.Exec)
}

func (c runtimeClient) Attach(
	ctx context.Context, in *runtimeapi.AttachRequest, _ ...grpc.CallOption,
) (*runtimeapi.AttachResponse, error) {
	return direct(ctx, in, c.s.Attach)
}

func (c runtimeClient) PortForward(
	ctx context.Context, in *runtimeapi.PortForwardRequest, _ ...grpc.CallOption,
) (*runtimeapi.PortForwardResponse, error) {
	return direct(ctx, in, c.s.PortForward)
}

func (c runtimeClient) ContainerStats(
	ctx context.Context, in *runtimeapi.ContainerStatsRequest, _ ...grpc.CallOption,
) (*runtimeapi.ContainerStatsResponse, error) {
	return direct(ctx, in, c.s.ContainerStats)
}

func (c runtimeClient) ListContainerStats(
	ctx context.Context, in *runtimeapi.ListContainerStatsRequest, _ ...grpc.CallOption,
) (*runtimeapi.ListContainerStatsResponse, error) {
	return direct(ctx, in, c.s.ListContainerStats)
}

func (c runtimeClient) PodSandboxStats(
	ctx context.Context, in *runtimeapi.PodSandboxStatsRequest, _ ...grpc.CallOption,
) (*runtimeapi.PodSandboxStatsResponse, error) {
	return direct(ctx, in, c.s.PodSandboxStats)
}

func (c runtimeClient) ListPodSandboxStats(
	ctx context.Context, in *runtimeapi.ListPodSandboxStatsRequest, _ ...grpc.CallOption,
) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return direct(ctx, in, c.s.ListPodSandboxStats)
}

func (c runtimeClient) UpdateRuntimeConfig(
	ctx context.Context, in *runtimeapi.UpdateRuntimeConfigRequest, _ ...grpc.CallOption,
) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return direct(ctx, in, c.s.UpdateRuntimeConfig)
}

func (c runtimeClient) Status(
	ctx context.Context, in *runtimeapi.StatusRequest, _ ...grpc.CallOption,
) (*runtimeapi.StatusResponse, error) {
	return direct(ctx, in, c.s.Status)
}

func (c runtimeClient) CheckpointContainer(
	ctx context.Context, in *runtimeapi.CheckpointContainerRequest, _ ...grpc.CallOption,
) (*runtimeapi.CheckpointContainerResponse, error) {
	return direct(ctx, in, c.s.CheckpointContainer)
}

func (c runtimeClient) CheckpointPod(
	ctx context.Context, in *runtimeapi.CheckpointPodRequest, _ ...grpc.CallOption,
) (*runtimeapi.CheckpointPodResponse, error) {
	return direct(ctx, in, c.s.CheckpointPod)
}

func (c runtimeClient) RestorePod(
	ctx context.Context, in *runtimeapi.RestorePodRequest, _ ...grpc.CallOption,
) (*runtimeapi.RestorePodResponse, error) {
	return direct(ctx, in, c.s.RestorePod)
}

func (c runtimeClient) ListMetricDescriptors(
	ctx context.Context, in *runtimeapi.ListMetricDescriptorsRequest, _ ...grpc.CallOption,
) (*runtimeapi.ListMetricDescriptorsResponse, error) {
	return direct(ctx, in, c.s.ListMetricDescriptors)
}

func (c runtimeClient) ListPodSandboxMetrics(
	ctx context.Context, in *runtimeapi.ListPodSandboxMetricsRequest, _ ...grpc.CallOption,
) (*runtimeapi.ListPodSandboxMetricsResponse, error) {
	return direct(ctx, in, c.s.ListPodSandboxMetrics)
}

func (c runtimeClient) RuntimeConfig(
	ctx context.Context, in *runtimeapi.RuntimeConfigRequest, _ ...grpc.CallOption,
) (*runtimeapi.RuntimeConfigResponse, error) {
	return direct(ctx, in, c.s.RuntimeConfig)
}

func (c runtimeClient) UpdatePodSandboxResources(
	ctx context.Context, in *runtimeapi.UpdatePodSandboxResourcesRequest, _ ...grpc.CallOption,
) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return direct(ctx, in, c.s.UpdatePodSandboxResources)
}

func (c runtimeClient) StreamPodSandboxes(
	ctx context.Context, in *runtimeapi.StreamPodSandboxesRequest, _ ...grpc.CallOption,
) (grpc.ServerStreamingClient[runtimeapi.StreamPodSandboxesResponse], error) {
	return openStream(ctx, in, c.s.StreamPodSandboxes), nil
}

func (c runtimeClient) StreamContainers(
	ctx context.Context, in *runtimeapi.StreamContainersRequest, _ ...grpc.CallOption,
) (grpc.ServerStreamingClient[runtimeapi.StreamContainersResponse], error) {
	return openStream(ctx, in, c.s.StreamContainers), nil
}

func (c runtimeClient) StreamContainerStats(
	ctx context.Context, in *runtimeapi.StreamContainerStatsRequest, _ ...grpc.CallOption,
) (grpc.ServerStreamingClient[runtimeapi.StreamContainerStatsResponse], error) {
	return openStream(ctx, in, c.s.StreamContainerStats), nil
}

func (c runtimeClient) StreamPodSandboxStats(
	ctx context.Context, in *runtimeapi.StreamPodSandboxStatsRequest, _ ...grpc.CallOption,
) (grpc.ServerStreamingClient[runtimeapi.StreamPodSandboxStatsResponse], error) {
	return openStream(ctx, in, c.s.StreamPodSandboxStats), nil
}

func (c runtimeClient) GetContainerEvents(
	ctx context.Context, in *runtimeapi.GetEventsRequest, _ ...grpc.CallOption,
) (grpc.ServerStreamingClient[runtimeapi.ContainerEventResponse], error) {
	return openStream(ctx, in, c.s.GetContainerEvents), nil
}

func (c runtimeClient) StreamPodSandboxMetrics(
	ctx context.Context, in *runtimeapi.StreamPodSandboxMetricsRequest, _ ...grpc.CallOption,
) (grpc.ServerStreamingClient[runtimeapi.StreamPodSandboxMetricsResponse], error) {
	return openStream(ctx, in, c.s.StreamPodSandboxMetrics), nil
}

type imageClient struct{ s Server }

func (c imageClient) ListImages(
	ctx context.Context, in *runtimeapi.ListImagesRequest, _ ...grpc.CallOption,
) (*runtimeapi.ListImagesResponse, error) {
	return direct(ctx, in, c.s.ListImages)
}

func (c imageClient) ImageStatus(
	ctx context.Context, in *runtimeapi.ImageStatusRequest, _ ...grpc.CallOption,
) (*runtimeapi.ImageStatusResponse, error) {
	return direct(ctx, in, c.s.ImageStatus)
}

func (c imageClient) PullImage(
	ctx context.Context, in *runtimeapi.PullImageRequest, _ ...grpc.CallOption,
) (*runtimeapi.PullImageResponse, error) {
	return direct(ctx, in, c.s.PullImage)
}

func (c imageClient) RemoveImage(
	ctx context.Context, in *runtimeapi.RemoveImageRequest, _ ...grpc.CallOption,
) (*runtimeapi.RemoveImageResponse, error) {
	return direct(ctx, in, c.s.RemoveImage)
}

func (c imageClient) ImageFsInfo(
	ctx context.Context, in *runtimeapi.ImageFsInfoRequest, _ ...grpc.CallOption,
) (*runtimeapi.ImageFsInfoResponse, error) {
	return direct(ctx, in, c.s.ImageFsInfo)
}

func (c imageClient) StreamImages(
	ctx context.Context, in *runtimeapi.StreamImagesRequest, _ ...grpc.CallOption,
) (grpc.ServerStreamingClient[runtimeapi.StreamImagesResponse], error) {
	return openStream(ctx, in, c.s.StreamImages), nil
}
