// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PodSandboxStatus describes a sandbox and its containers.
func (s *Server) PodSandboxStatus(
	_ context.Context, request *runtimeapi.PodSandboxStatusRequest,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	sb, err := s.sandbox(request.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.PodSandboxStatusResponse{
		Status:             sandboxStatus(sb),
		ContainersStatuses: s.statusesOf(sb.id),
		Timestamp:          time.Now().UnixNano(),
	}
	if request.GetVerbose() {
		info, err := json.Marshal(sandboxInfo{sb.record(), sandboxSpec(sb)})
		if err != nil {
			return nil, wrapf(err, "describe pod sandbox %s", sb.id)
		}
		out.Info = map[string]string{"info": string(info)}
	}
	return out, nil
}

// sandboxInfo is the verbose information: the record, and the OCI spec in which tools look up the network namespace, as
// containerd has it.
type sandboxInfo struct {
	sandboxRecord
	RuntimeSpec *specs.Spec `json:"runtimeSpec,omitempty"`
}

// sandboxSpec returns a spec that names the network namespace only; nil: host network.
func sandboxSpec(sb *sandbox) *specs.Spec {
	network := sb.namespaces().Network
	if network == "" {
		return nil
	}
	return &specs.Spec{
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.NetworkNamespace, Path: network}}},
	}
}

func (r *sandboxRecord) state() runtimeapi.PodSandboxState {
	if r.Ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

func sandboxStatus(sb *sandbox) *runtimeapi.PodSandboxStatus {
	sandboxRecord := sb.record()
	net := &runtimeapi.PodSandboxNetworkStatus{}
	for i, ip := range sandboxRecord.IPs {
		switch {
		case !sandboxRecord.Ready: // its addresses may belong to another pod by now
		case i == 0:
			net.Ip = ip.String()
		default:
			net.AdditionalIps = append(net.AdditionalIps, &runtimeapi.PodIP{Ip: ip.String()})
		}
	}
	opts := sandboxRecord.options()
	if opts == nil {
		opts = &runtimeapi.NamespaceOption{}
	}
	return &runtimeapi.PodSandboxStatus{
		Id:             sandboxRecord.ID,
		Metadata:       sandboxRecord.Config.v.GetMetadata(),
		State:          sandboxRecord.state(),
		CreatedAt:      sandboxRecord.Created.UnixNano(),
		Network:        net,
		Linux:          &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: opts}},
		Labels:         sandboxRecord.Config.v.GetLabels(),
		Annotations:    sandboxRecord.Config.v.GetAnnotations(),
		RuntimeHandler: sandboxRecord.Handler,
	}
}

// ListPodSandbox lists sandboxes, newest first.
func (s *Server) ListPodSandbox(
	_ context.Context, r *runtimeapi.ListPodSandboxRequest,
) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: s.listSandboxes(r.GetFilter())}, nil
}

func (s *Server) listSandboxes(q *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	var out []*runtimeapi.PodSandbox
	for _, sb := range s.selectSandboxes(q.GetId(), q.GetLabelSelector()) {
		sandboxRecord := sb.record()
		if q.GetState() != nil && q.GetState().GetState() != sandboxRecord.state() {
			continue
		}
		out = append(out, &runtimeapi.PodSandbox{
			Id:             sandboxRecord.ID,
			Metadata:       sandboxRecord.Config.v.GetMetadata(),
			State:          sandboxRecord.state(),
			CreatedAt:      sandboxRecord.Created.UnixNano(),
			Labels:         sandboxRecord.Config.v.GetLabels(),
			Annotations:    sandboxRecord.Config.v.GetAnnotations(),
			RuntimeHandler: sandboxRecord.Handler,
		})
	}
	return out
}

// selectSandboxes returns the sandboxes with this id (or unique prefix) and these labels, newest first.
func (s *Server) selectSandboxes(id string, labels map[string]string) []*sandbox {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []*sandbox
	if id != "" {
		if sb, err := find(s.sandboxes, "pod sandbox", id); err == nil {
			out = append(out, sb)
		}
	} else {
		for _, sb := range s.sandboxes {
			out = append(out, sb)
		}
	}
	out = slices.DeleteFunc(out, func(sb *sandbox) bool { return !matches(labels, sb.record().Config.v.GetLabels()) })
	slices.SortFunc(out, func(a, b *sandbox) int { return b.record().Created.Compare(a.record().Created) })
	return out
}

func matches(selector, labels map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}
