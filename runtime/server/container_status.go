// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/fault"
)

// ContainerStatus describes a container; verbose adds its OCI spec.
func (s *Server) ContainerStatus(
	ctx context.Context, r *runtimeapi.ContainerStatusRequest,
) (*runtimeapi.ContainerStatusResponse, error) {
	container, err := s.table.Container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.ContainerStatusResponse{Status: container.Status()}
	if r.GetVerbose() {
		info := map[string]any{"record": container.Record()}
		if spec, err := s.specs.Read(container); err == nil {
			info["runtimeSpec"] = spec
		}
		if st, err := s.shim.State(ctx, container.ID); err == nil {
			info["pid"] = st.PID
		}
		body, err := json.Marshal(info)
		if err != nil {
			return nil, fault.Wrap(err, "describe container %s", container.ID)
		}
		out.Info = map[string]string{"info": string(body)}
	}
	return out, nil
}

// ListContainers lists containers, newest first.
func (s *Server) ListContainers(
	_ context.Context, r *runtimeapi.ListContainersRequest,
) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: s.listContainers(r.GetFilter())}, nil
}

func (s *Server) listContainers(q *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	var out []*runtimeapi.Container
	for _, c := range s.table.Containers(q.GetId(), q.GetPodSandboxId(), q.GetLabelSelector()) {
		record := c.Record()
		if q.GetState() != nil && q.GetState().GetState() != record.State() {
			continue
		}
		out = append(out, &runtimeapi.Container{
			Id:           record.ID,
			PodSandboxId: record.SandboxID,
			Metadata:     record.Config.V.GetMetadata(),
			Image:        record.Image(),
			ImageRef:     record.ImageRef,
			ImageId:      record.ImageID,
			State:        record.State(),
			CreatedAt:    record.Created.UnixNano(),
			Labels:       record.Config.V.GetLabels(),
			Annotations:  record.Config.V.GetAnnotations(),
		})
	}
	return out
}
