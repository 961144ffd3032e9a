// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/podinfo"
	"keelson/kubelet/runtimestate"
)

// SandboxInput has the inputs of a sandbox's configuration besides its pod.
type SandboxInput struct {
	Attempt      uint32
	LogDir       string // of all pods
	CgroupParent string
	NodeHostname string
	DNS          *runtimeapi.DNSConfig
	Domain       string // the cluster's
	// Users is the pod's user namespace; nil: the host's.
	Users *runtimeapi.UserNamespace
}

// maxHostname is the kernel's limit on a host name's length.
const maxHostname = 63

// Hostname returns the pod's host name and its domain, if it has one.
func Hostname(pod *corev1.Pod, clusterDomain string) (host, domain string) {
	if pod.Spec.HostnameOverride != nil {
		return *pod.Spec.HostnameOverride, ""
	}
	host = pod.Spec.Hostname
	if host == "" {
		host = pod.Name
		if len(host) > maxHostname {
			host = strings.TrimRight(host[:maxHostname], "-.")
		}
	}
	if pod.Spec.Subdomain != "" {
		domain = fmt.Sprintf("%s.%s.svc.%s", pod.Spec.Subdomain, pod.Namespace, clusterDomain)
	}
	return host, domain
}

// Sandbox returns the configuration of the pod's sandbox.
func Sandbox(pod *corev1.Pod, in SandboxInput) (*runtimeapi.PodSandboxConfig, error) {
	host, domain := Hostname(pod, in.Domain)
	if isTrue(pod.Spec.SetHostnameAsFQDN) && domain != "" {
		host = host + "." + domain
		if len(host) > maxHostname {
			return nil, fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too "+
				"long (64 characters is the max, %d characters requested)", host, len(host))
		}
	}
	if pod.Spec.HostNetwork {
		host = in.NodeHostname
		if pod.Spec.HostnameOverride != nil {
			host = *pod.Spec.HostnameOverride
		}
	}
	labels := maps.Clone(pod.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[runtimestate.LabelPodName] = pod.Name
	labels[runtimestate.LabelPodNamespace] = pod.Namespace
	labels[runtimestate.LabelPodUID] = string(pod.UID)
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name:      pod.Name,
			Namespace: pod.Namespace,
			Uid:       string(pod.UID),
			Attempt:   in.Attempt,
		},
		Hostname:     host,
		LogDirectory: PodLogDir(in.LogDir, pod.Namespace, pod.Name, string(pod.UID)),
		DnsConfig:    in.DNS,
		Labels:       labels,
		Annotations:  pod.Annotations,
		Linux:        sandboxLinux(pod, in),
	}
	if !pod.Spec.HostNetwork {
		cfg.PortMappings = ports(pod)
	}
	return cfg, nil
}

func ports(pod *corev1.Pod) []*runtimeapi.PortMapping {
	var out []*runtimeapi.PortMapping
	add := func(c *corev1.Container) {
		for _, port := range c.Ports {
			portMapping := &runtimeapi.PortMapping{
				ContainerPort: port.ContainerPort,
				HostPort:      port.HostPort,
				HostIp:        port.HostIP,
			}
			switch port.Protocol {
			case corev1.ProtocolUDP:
				portMapping.Protocol = runtimeapi.Protocol_UDP
			case corev1.ProtocolSCTP:
				portMapping.Protocol = runtimeapi.Protocol_SCTP
			case corev1.ProtocolTCP:
			}
			out = append(out, portMapping)
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return out
}

func sandboxLinux(pod *corev1.Pod, in SandboxInput) *runtimeapi.LinuxPodSandboxConfig {
	sc := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces(pod, in.Users),
		Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	out := &runtimeapi.LinuxPodSandboxConfig{
		CgroupParent:    in.CgroupParent,
		SecurityContext: sc,
		Resources:       PodResources(pod),
	}
	sc.SupplementalGroups, sc.SupplementalGroupsPolicy = groups(pod)
	for c := range podinfo.All(pod) {
		if c.SecurityContext != nil && isTrue(c.SecurityContext.Privileged) {
			sc.Privileged = true
		}
	}
	ps := pod.Spec.SecurityContext
	if ps == nil {
		return out
	}
	sc.RunAsUser = wrap64(ps.RunAsUser)
	sc.RunAsGroup = wrap64(ps.RunAsGroup)
	sc.SelinuxOptions = selinux(ps.SELinuxOptions)
	if len(ps.Sysctls) > 0 {
		out.Sysctls = map[string]string{}
		for _, s := range ps.Sysctls {
			out.Sysctls[strings.ReplaceAll(s.Name, "/", ".")] = s.Value
		}
	}
	return out
}
