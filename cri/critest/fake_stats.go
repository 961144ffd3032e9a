// SPDX-License-Identifier: Apache-2.0

package critest

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// stats are figures of the pods.
type stats struct {
	script *script
	pods   *pods
}

// ContainerStats returns plausible values: a tenth of a core since the start and 10 MB.
func (s *stats) ContainerStats(
	ctx context.Context, r *runtimeapi.ContainerStatsRequest,
) (*runtimeapi.ContainerStatsResponse, error) {
	if err := s.script.beginRead(ctx, "ContainerStats"); err != nil {
		return nil, err
	}
	s.pods.mu.Lock()
	defer s.pods.mu.Unlock()
	c := s.pods.containers[r.GetContainerId()]
	if c == nil {
		return nil, notFound("container", r.GetContainerId())
	}
	return &runtimeapi.ContainerStatsResponse{Stats: c.stats()}, nil
}

// ListContainerStats returns the stats of running containers.
func (s *stats) ListContainerStats(
	ctx context.Context, r *runtimeapi.ListContainerStatsRequest,
) (*runtimeapi.ListContainerStatsResponse, error) {
	if err := s.script.beginRead(ctx, "ListContainerStats"); err != nil {
		return nil, err
	}
	s.pods.mu.Lock()
	defer s.pods.mu.Unlock()
	out := &runtimeapi.ListContainerStatsResponse{}
	q := r.GetFilter()
	for _, c := range sortedValues(s.pods.containers) {
		if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING || q.GetId() != "" && q.GetId() != c.id ||
			q.GetPodSandboxId() != "" && q.GetPodSandboxId() != c.sandbox ||
			!matches(q.GetLabelSelector(), c.config.GetLabels()) {
			continue
		}
		out.Stats = append(out.Stats, c.stats())
	}
	return out, nil
}

// PodSandboxStats returns the sum over the containers.
func (s *stats) PodSandboxStats(
	ctx context.Context, r *runtimeapi.PodSandboxStatsRequest,
) (*runtimeapi.PodSandboxStatsResponse, error) {
	if err := s.script.beginRead(ctx, "PodSandboxStats"); err != nil {
		return nil, err
	}
	s.pods.mu.Lock()
	defer s.pods.mu.Unlock()
	box := s.pods.sandboxes[r.GetPodSandboxId()]
	if box == nil {
		return nil, notFound("pod sandbox", r.GetPodSandboxId())
	}
	return &runtimeapi.PodSandboxStatsResponse{Stats: s.pods.statsLocked(box)}, nil
}

// ListPodSandboxStats returns the stats of ready sandboxes.
func (s *stats) ListPodSandboxStats(
	ctx context.Context, r *runtimeapi.ListPodSandboxStatsRequest,
) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	if err := s.script.beginRead(ctx, "ListPodSandboxStats"); err != nil {
		return nil, err
	}
	s.pods.mu.Lock()
	defer s.pods.mu.Unlock()
	out := &runtimeapi.ListPodSandboxStatsResponse{}
	q := r.GetFilter()
	for _, box := range sortedValues(s.pods.sandboxes) {
		if box.stopped || q.GetId() != "" && q.GetId() != box.id ||
			!matches(q.GetLabelSelector(), box.config.GetLabels()) {
			continue
		}
		out.Stats = append(out.Stats, s.pods.statsLocked(box))
	}
	return out, nil
}

func (c *container) stats() *runtimeapi.ContainerStats {
	now := time.Now().UnixNano()
	const mem = 10 << 20
	return &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id:          c.id,
			Metadata:    c.config.GetMetadata(),
			Labels:      c.config.GetLabels(),
			Annotations: c.config.GetAnnotations(),
		},
		Cpu: &runtimeapi.CpuUsage{
			Timestamp:            now,
			UsageCoreNanoSeconds: &runtimeapi.UInt64Value{Value: uint64(max(0, now-c.started)) / 10},
		},
		Memory: &runtimeapi.MemoryUsage{
			Timestamp:       now,
			WorkingSetBytes: &runtimeapi.UInt64Value{Value: mem},
			UsageBytes:      &runtimeapi.UInt64Value{Value: mem},
			RssBytes:        &runtimeapi.UInt64Value{Value: mem},
		},
	}
}

func (p *pods) statsLocked(s *sandbox) *runtimeapi.PodSandboxStats {
	stats := &runtimeapi.LinuxPodSandboxStats{}
	for _, c := range sortedValues(p.containers) {
		if c.sandbox == s.id && c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
			stats.Containers = append(stats.Containers, c.stats())
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
