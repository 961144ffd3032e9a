// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerStatus describes a container; verbose adds its OCI spec.
func (s *Server) ContainerStatus(
	ctx context.Context, r *runtimeapi.ContainerStatusRequest,
) (*runtimeapi.ContainerStatusResponse, error) {
	container, err := s.container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.ContainerStatusResponse{Status: containerStatus(container)}
	if r.GetVerbose() {
		info := map[string]any{"record": container.record()}
		if spec, err := s.spec(container); err == nil {
			info["runtimeSpec"] = spec
		}
		if st, err := s.shim.State(ctx, container.id); err == nil {
			info["pid"] = st.PID
		}
		body, err := json.Marshal(info)
		if err != nil {
			return nil, wrapf(err, "describe container %s", container.id)
		}
		out.Info = map[string]string{"info": string(body)}
	}
	return out, nil
}

func containerStatus(c *container) *runtimeapi.ContainerStatus {
	record := c.record()
	cfg := record.Config.v
	return &runtimeapi.ContainerStatus{
		Id:          record.ID,
		Metadata:    cfg.GetMetadata(),
		State:       record.state(),
		CreatedAt:   nanos(record.Created),
		StartedAt:   nanos(record.Started),
		FinishedAt:  nanos(record.Finished),
		ExitCode:    record.ExitCode,
		Image:       record.image(),
		ImageRef:    record.ImageRef,
		ImageId:     record.ImageID,
		Reason:      record.Reason,
		Message:     record.Message,
		Labels:      cfg.GetLabels(),
		Annotations: cfg.GetAnnotations(),
		Mounts:      cfg.GetMounts(),
		LogPath:     record.LogPath,
		Resources:   &runtimeapi.ContainerResources{Linux: record.Resources.v},
		User:        &runtimeapi.ContainerUser{Linux: record.User.v},
		StopSignal:  record.reportedSignal(),
	}
}

// image returns the image name that the user gave.
func (r *containerRecord) image() *runtimeapi.ImageSpec {
	spec := r.Config.v.GetImage()
	if u := spec.GetUserSpecifiedImage(); u != "" {
		return &runtimeapi.ImageSpec{Image: u, UserSpecifiedImage: u, Annotations: spec.GetAnnotations()}
	}
	return spec
}

// reportedSignal returns the signal that StopContainer sends, in CRI's enumeration.
func (r *containerRecord) reportedSignal() runtimeapi.Signal {
	want := stopSignal(r)
	for n, name := range runtimeapi.Signal_name {
		if sig, ok := parseSignal(name[len("SIGNAL_"):]); n != 0 && ok && sig == want && name != "SIGNAL_SIGCLD" &&
			name != "SIGNAL_SIGPOLL" && name != "SIGNAL_SIGIOT" {
			return runtimeapi.Signal(n)
		}
	}
	return runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT
}

// nanos returns 0 for the zero time.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// statusesOf returns the statuses of a sandbox's containers, oldest first.
func (s *Server) statusesOf(sandboxID string) []*runtimeapi.ContainerStatus {
	all := s.containersOf(sandboxID)
	out := make([]*runtimeapi.ContainerStatus, 0, len(all))
	for _, c := range all {
		out = append(out, containerStatus(c))
	}
	return out
}

// ListContainers lists containers, newest first.
func (s *Server) ListContainers(
	_ context.Context, r *runtimeapi.ListContainersRequest,
) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: s.listContainers(r.GetFilter())}, nil
}

func (s *Server) listContainers(q *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	var out []*runtimeapi.Container
	for _, c := range s.selectContainers(q.GetId(), q.GetPodSandboxId(), q.GetLabelSelector()) {
		record := c.record()
		if q.GetState() != nil && q.GetState().GetState() != record.state() {
			continue
		}
		out = append(out, &runtimeapi.Container{
			Id:           record.ID,
			PodSandboxId: record.SandboxID,
			Metadata:     record.Config.v.GetMetadata(),
			Image:        record.image(),
			ImageRef:     record.ImageRef,
			ImageId:      record.ImageID,
			State:        record.state(),
			CreatedAt:    nanos(record.Created),
			Labels:       record.Config.v.GetLabels(),
			Annotations:  record.Config.v.GetAnnotations(),
		})
	}
	return out
}

// selectContainers returns the matching containers, newest first. Ids may be unique prefixes.
func (s *Server) selectContainers(id, sandboxID string, labels map[string]string) []*container {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if sandboxID != "" {
		sb, err := find(s.sandboxes, "pod sandbox", sandboxID)
		if err != nil {
			return nil
		}
		sandboxID = sb.id
	}
	var out []*container
	if id != "" {
		if c, err := find(s.containers, "container", id); err == nil {
			out = append(out, c)
		}
	} else {
		for _, c := range s.containers {
			out = append(out, c)
		}
	}
	out = slices.DeleteFunc(out, func(c *container) bool {
		r := c.record()
		return sandboxID != "" && r.SandboxID != sandboxID || !matches(labels, r.Config.v.GetLabels())
	})
	slices.SortFunc(out, func(a, b *container) int { return b.record().Created.Compare(a.record().Created) })
	return out
}
