// SPDX-License-Identifier: Apache-2.0

package critest

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerStats returns plausible values: a tenth of a core since the start and 10 MB.
func (f *Fake) ContainerStats(
	ctx context.Context, r *runtimeapi.ContainerStatsRequest,
) (*runtimeapi.ContainerStatsResponse, error) {
	if err := f.beginRead(ctx, "ContainerStats"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[r.GetContainerId()]
	if c == nil {
		return nil, notFound("container", r.GetContainerId())
	}
	return &runtimeapi.ContainerStatsResponse{Stats: f.statsLocked(c)}, nil
}

// ListContainerStats returns the stats of running containers.
func (f *Fake) ListContainerStats(
	ctx context.Context, r *runtimeapi.ListContainerStatsRequest,
) (*runtimeapi.ListContainerStatsResponse, error) {
	if err := f.beginRead(ctx, "ListContainerStats"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &runtimeapi.ListContainerStatsResponse{}
	q := r.GetFilter()
	for _, c := range sortedValues(f.containers) {
		if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING || q.GetId() != "" && q.GetId() != c.id ||
			q.GetPodSandboxId() != "" && q.GetPodSandboxId() != c.sandbox ||
			!matches(q.GetLabelSelector(), c.config.GetLabels()) {
			continue
		}
		out.Stats = append(out.Stats, f.statsLocked(c))
	}
	return out, nil
}

// PodSandboxStats returns the sum over the containers.
func (f *Fake) PodSandboxStats(
	ctx context.Context, r *runtimeapi.PodSandboxStatsRequest,
) (*runtimeapi.PodSandboxStatsResponse, error) {
	if err := f.beginRead(ctx, "PodSandboxStats"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sandboxes[r.GetPodSandboxId()]
	if s == nil {
		return nil, notFound("pod sandbox", r.GetPodSandboxId())
	}
	return &runtimeapi.PodSandboxStatsResponse{Stats: f.podStatsLocked(s)}, nil
}

// ListPodSandboxStats returns the stats of ready sandboxes.
func (f *Fake) ListPodSandboxStats(
	ctx context.Context, r *runtimeapi.ListPodSandboxStatsRequest,
) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	if err := f.beginRead(ctx, "ListPodSandboxStats"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &runtimeapi.ListPodSandboxStatsResponse{}
	q := r.GetFilter()
	for _, s := range sortedValues(f.sandboxes) {
		if s.stopped || q.GetId() != "" && q.GetId() != s.id || !matches(q.GetLabelSelector(), s.config.GetLabels()) {
			continue
		}
		out.Stats = append(out.Stats, f.podStatsLocked(s))
	}
	return out, nil
}

func (f *Fake) statsLocked(ctr *container) *runtimeapi.ContainerStats {
	now := f.now().UnixNano()
	const mem = 10 << 20
	return &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id:          ctr.id,
			Metadata:    ctr.config.GetMetadata(),
			Labels:      ctr.config.GetLabels(),
			Annotations: ctr.config.GetAnnotations(),
		},
		Cpu: &runtimeapi.CpuUsage{
			Timestamp:            now,
			UsageCoreNanoSeconds: &runtimeapi.UInt64Value{Value: uint64(max(0, now-ctr.started)) / 10},
		},
		Memory: &runtimeapi.MemoryUsage{
			Timestamp:       now,
			WorkingSetBytes: &runtimeapi.UInt64Value{Value: mem},
			UsageBytes:      &runtimeapi.UInt64Value{Value: mem},
			RssBytes:        &runtimeapi.UInt64Value{Value: mem},
		},
	}
}

func (f *Fake) podStatsLocked(s *sandbox) *runtimeapi.PodSandboxStats {
	stats := &runtimeapi.LinuxPodSandboxStats{}
	for _, c := range sortedValues(f.containers) {
		if c.sandbox == s.id && c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
			stats.Containers = append(stats.Containers, f.statsLocked(c))
		}
	}
	return &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Id:          s.id,
			Metadata:    s.config.GetMetadata(),
			Labels:      s.config.GetLabels(),
			Annotations: s.config.GetAnnotations(),
		},
		Linux: stats,
	}
}
