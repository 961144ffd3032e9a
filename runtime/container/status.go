// SPDX-License-Identifier: Apache-2.0

package container

import (
	"context"
	"encoding/json"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/fault"
)

// Status describes a container; verbose adds its OCI spec.
func (s *Service) Status(
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

// List lists the containers that the filter selects, newest first.
func (s *Service) List(q *runtimeapi.ContainerFilter) []*runtimeapi.Container {
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
