// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/pod/decide"
	"keelson/kubelet/podcgroup"
	"keelson/kubelet/runtimestate"
	"keelson/kubelet/translate"
)

func (s *starter) createSandbox(
	ctx context.Context, pod *corev1.Pod, cfg *runtimeapi.PodSandboxConfig, handler string,
) (string, error) {
	if err := os.MkdirAll(cfg.GetLogDirectory(), 0o750); err != nil {
		return "", fmt.Errorf("make log directory: %w", err)
	}
	if err := s.env.cgroup("create", func(m *podcgroup.Manager) error {
		return m.Make(s.uid, translate.PodLimits(pod))
	}); err != nil {
		return "", err
	}
	resp, err := s.env.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{
		Config:         cfg,
		RuntimeHandler: handler,
	})
	return resp.GetPodSandboxId(), err
}

func (s *starter) sandboxConfig(
	pod *corev1.Pod, attempt uint32, users *runtimeapi.UserNamespace,
) (*runtimeapi.PodSandboxConfig, error) {
	host, err := translate.HostDNS(os.ReadFile, s.env.ResolvConf)
	if err != nil {
		return nil, err
	}
	dns, warnings := translate.DNS(pod, host, s.env.ClusterDNS, s.env.ClusterDomain)
	for _, warning := range warnings {
		ref := podRef(pod)
		if warning.Node {
			ref = s.env.Node()
		}
		s.env.Events.Event(ref, corev1.EventTypeWarning, warning.Reason, warning.Message)
	}
	return translate.Sandbox(pod, translate.SandboxInput{
		Attempt:      attempt,
		LogDir:       s.env.LogDir,
		CgroupParent: s.env.Cgroups.Of(s.uid),
		NodeHostname: s.env.Hostname,
		DNS:          dns,
		Domain:       s.env.ClusterDomain,
		Users:        users,
	})
}

// networkProblem is why the runtime's network is not ready; empty: it is, or the runtime reports nothing.
func (s *starter) networkProblem(ctx context.Context) string {
	st, err := s.env.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return ""
	}
	return runtimestate.NetworkProblem(st)
}

func (s *starter) podIPs(in decide.Input) []string {
	if in.Pod.Spec.HostNetwork {
		return s.env.HostIPs
	}
	if box := in.Observed.Current(); box != nil {
		return box.IPs
	}
	return nil
}
