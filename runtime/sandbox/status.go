// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"encoding/json"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/fault"
	"keelson/runtime/pods"
)

// Status describes a sandbox and its containers.
func (s *Service) Status(
	_ context.Context, request *runtimeapi.PodSandboxStatusRequest,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	sb, err := s.table.Sandbox(request.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.PodSandboxStatusResponse{
		Status:             sb.Status(),
		ContainersStatuses: s.table.StatusesOf(sb.ID),
		Timestamp:          time.Now().UnixNano(),
	}
	if request.GetVerbose() {
		info, err := json.Marshal(sandboxInfo{sb.Record(), sandboxSpec(sb)})
		if err != nil {
			return nil, fault.Wrap(err, "describe pod sandbox %s", sb.ID)
		}
		out.Info = map[string]string{"info": string(info)}
	}
	return out, nil
}

// sandboxInfo is the verbose information: the record, and the OCI spec in which tools look up the network namespace, as
// containerd has it.
type sandboxInfo struct {
	pods.SandboxRecord
	RuntimeSpec *specs.Spec `json:"runtimeSpec,omitempty"`
}

// sandboxSpec returns a spec that names the network namespace only; nil: host network.
func sandboxSpec(sb *pods.Sandbox) *specs.Spec {
	network := sb.Namespaces().Network
	if network == "" {
		return nil
	}
	return &specs.Spec{
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.NetworkNamespace, Path: network}}},
	}
}

// List lists the sandboxes that the filter selects, newest first.
func (s *Service) List(q *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	var out []*runtimeapi.PodSandbox
	for _, sb := range s.table.Sandboxes(q.GetId(), q.GetLabelSelector()) {
		rec := sb.Record()
		if q.GetState() != nil && q.GetState().GetState() != rec.State() {
			continue
		}
		out = append(out, &runtimeapi.PodSandbox{
			Id:             rec.ID,
			Metadata:       rec.Config.V.GetMetadata(),
			State:          rec.State(),
			CreatedAt:      rec.Created.UnixNano(),
			Labels:         rec.Config.V.GetLabels(),
			Annotations:    rec.Config.V.GetAnnotations(),
			RuntimeHandler: rec.Handler,
		})
	}
	return out
}
