// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime returns a client that counts and times the calls of next by kind.
func (m *Metrics) Runtime(next runtimeapi.RuntimeServiceClient) runtimeapi.RuntimeServiceClient {
	return timedRuntime{next, m}
}

// Images is Runtime for images.
func (m *Metrics) Images(next runtimeapi.ImageServiceClient) runtimeapi.ImageServiceClient {
	return timedImages{next, m}
}

// operations are calls of the runtime, by operation_type.
type operations struct {
	count  *prometheus.CounterVec
	errors *prometheus.CounterVec
	took   *prometheus.HistogramVec
}

func (o *operations) observe(kind string, took time.Duration, err error) {
	o.count.WithLabelValues(kind).Inc()
	o.took.WithLabelValues(kind).Observe(took.Seconds())
	if err != nil {
		o.errors.WithLabelValues(kind).Inc()
	}
}

// timed makes one call, with Kubernetes' name of its kind.
func timed[Q, A any](
	ctx context.Context, m *Metrics, kind string, in Q, opts []grpc.CallOption,
	call func(context.Context, Q, ...grpc.CallOption) (A, error),
) (A, error) {
	begin := time.Now()
	out, err := call(ctx, in, opts...)
	m.operations.observe(kind, time.Since(begin), err)
	return out, err
}

// timedRuntime times the calls that Kubernetes' kubelet times; others go to the embedded client.
type timedRuntime struct {
	runtimeapi.RuntimeServiceClient
	m *Metrics
}

type timedImages struct {
	runtimeapi.ImageServiceClient
	m *Metrics
}

func (t timedRuntime) RunPodSandbox(
	ctx context.Context, in *runtimeapi.RunPodSandboxRequest, opts ...grpc.CallOption,
) (*runtimeapi.RunPodSandboxResponse, error) {
	return timed(ctx, t.m, "run_podsandbox", in, opts, t.RuntimeServiceClient.RunPodSandbox)
}

func (t timedRuntime) StopPodSandbox(
	ctx context.Context, in *runtimeapi.StopPodSandboxRequest, opts ...grpc.CallOption,
) (*runtimeapi.StopPodSandboxResponse, error) {
	return timed(ctx, t.m, "stop_podsandbox", in, opts, t.RuntimeServiceClient.StopPodSandbox)
}

func (t timedRuntime) RemovePodSandbox(
	ctx context.Context, in *runtimeapi.RemovePodSandboxRequest, opts ...grpc.CallOption,
) (*runtimeapi.RemovePodSandboxResponse, error) {
	return timed(ctx, t.m, "remove_podsandbox", in, opts, t.RuntimeServiceClient.RemovePodSandbox)
}

func (t timedRuntime) PodSandboxStatus(
	ctx context.Context, in *runtimeapi.PodSandboxStatusRequest, opts ...grpc.CallOption,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	return timed(ctx, t.m, "podsandbox_status", in, opts, t.RuntimeServiceClient.PodSandboxStatus)
}

func (t timedRuntime) ListPodSandbox(
	ctx context.Context, in *runtimeapi.ListPodSandboxRequest, opts ...grpc.CallOption,
) (*runtimeapi.ListPodSandboxResponse, error) {
	return timed(ctx, t.m, "list_podsandbox", in, opts, t.RuntimeServiceClient.ListPodSandbox)
}

func (t timedRuntime) CreateContainer(
	ctx context.Context, in *runtimeapi.CreateContainerRequest, opts ...grpc.CallOption,
) (*runtimeapi.CreateContainerResponse, error) {
	return timed(ctx, t.m, "create_container", in, opts, t.RuntimeServiceClient.CreateContainer)
}

func (t timedRuntime) StartContainer(
	ctx context.Context, in *runtimeapi.StartContainerRequest, opts ...grpc.CallOption,
) (*runtimeapi.StartContainerResponse, error) {
	return timed(ctx, t.m, "start_container", in, opts, t.RuntimeServiceClient.StartContainer)
}

func (t timedRuntime) StopContainer(
	ctx context.Context, in *runtimeapi.StopContainerRequest, opts ...grpc.CallOption,
) (*runtimeapi.StopContainerResponse, error) {
	return timed(ctx, t.m, "stop_container", in, opts, t.RuntimeServiceClient.StopContainer)
}

func (t timedRuntime) RemoveContainer(
	ctx context.Context, in *runtimeapi.RemoveContainerRequest, opts ...grpc.CallOption,
) (*runtimeapi.RemoveContainerResponse, error) {
	return timed(ctx, t.m, "remove_container", in, opts, t.RuntimeServiceClient.RemoveContainer)
}

func (t timedRuntime) ListContainers(
	ctx context.Context, in *runtimeapi.ListContainersRequest, opts ...grpc.CallOption,
) (*runtimeapi.ListContainersResponse, error) {
	return timed(ctx, t.m, "list_containers", in, opts, t.RuntimeServiceClient.ListContainers)
}

func (t timedRuntime) ContainerStatus(
	ctx context.Context, in *runtimeapi.ContainerStatusRequest, opts ...grpc.CallOption,
) (*runtimeapi.ContainerStatusResponse, error) {
	return timed(ctx, t.m, "container_status", in, opts, t.RuntimeServiceClient.ContainerStatus)
}

func (t timedRuntime) UpdateContainerResources(
	ctx context.Context, in *runtimeapi.UpdateContainerResourcesRequest, opts ...grpc.CallOption,
) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	return timed(ctx, t.m, "update_container", in, opts, t.RuntimeServiceClient.UpdateContainerResources)
}

func (t timedRuntime) ExecSync(
	ctx context.Context, in *runtimeapi.ExecSyncRequest, opts ...grpc.CallOption,
) (*runtimeapi.ExecSyncResponse, error) {
	return timed(ctx, t.m, "exec_sync", in, opts, t.RuntimeServiceClient.ExecSync)
}

func (t timedRuntime) Exec(
	ctx context.Context, in *runtimeapi.ExecRequest, opts ...grpc.CallOption,
) (*runtimeapi.ExecResponse, error) {
	return timed(ctx, t.m, "exec", in, opts, t.RuntimeServiceClient.Exec)
}

func (t timedRuntime) Attach(
	ctx context.Context, in *runtimeapi.AttachRequest, opts ...grpc.CallOption,
) (*runtimeapi.AttachResponse, error) {
	return timed(ctx, t.m, "attach", in, opts, t.RuntimeServiceClient.Attach)
}

func (t timedRuntime) PortForward(
	ctx context.Context, in *runtimeapi.PortForwardRequest, opts ...grpc.CallOption,
) (*runtimeapi.PortForwardResponse, error) {
	return timed(ctx, t.m, "port_forward", in, opts, t.RuntimeServiceClient.PortForward)
}

func (t timedRuntime) ListPodSandboxStats(
	ctx context.Context, in *runtimeapi.ListPodSandboxStatsRequest, opts ...grpc.CallOption,
) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return timed(ctx, t.m, "list_podsandbox_stats", in, opts, t.RuntimeServiceClient.ListPodSandboxStats)
}

func (t timedRuntime) Status(
	ctx context.Context, in *runtimeapi.StatusRequest, opts ...grpc.CallOption,
) (*runtimeapi.StatusResponse, error) {
	return timed(ctx, t.m, "status", in, opts, t.RuntimeServiceClient.Status)
}

func (t timedImages) PullImage(
	ctx context.Context, in *runtimeapi.PullImageRequest, opts ...grpc.CallOption,
) (*runtimeapi.PullImageResponse, error) {
	return timed(ctx, t.m, "pull_image", in, opts, t.ImageServiceClient.PullImage)
}

func (t timedImages) ImageStatus(
	ctx context.Context, in *runtimeapi.ImageStatusRequest, opts ...grpc.CallOption,
) (*runtimeapi.ImageStatusResponse, error) {
	return timed(ctx, t.m, "image_status", in, opts, t.ImageServiceClient.ImageStatus)
}

func (t timedImages) ListImages(
	ctx context.Context, in *runtimeapi.ListImagesRequest, opts ...grpc.CallOption,
) (*runtimeapi.ListImagesResponse, error) {
	return timed(ctx, t.m, "list_images", in, opts, t.ImageServiceClient.ListImages)
}

func (t timedImages) RemoveImage(
	ctx context.Context, in *runtimeapi.RemoveImageRequest, opts ...grpc.CallOption,
) (*runtimeapi.RemoveImageResponse, error) {
	return timed(ctx, t.m, "remove_image", in, opts, t.ImageServiceClient.RemoveImage)
}
