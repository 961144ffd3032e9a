// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/kubelet/observed"
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
func Hostname(p *corev1.Pod, clusterDomain string) (host, domain string) {
	if p.Spec.HostnameOverride != nil {
		return *p.Spec.HostnameOverride, ""
	}
	host = p.Spec.Hostname
	if host == "" {
		host = p.Name
		if len(host) > maxHostname {
			host = strings.TrimRight(host[:maxHostname], "-.")
		}
	}
	if p.Spec.Subdomain != "" {
		domain = fmt.Sprintf("%s.%s.svc.%s", p.Spec.Subdomain, p.Namespace, clusterDomain)
	}
	return host, domain
}

// Sandbox returns the configuration of the pod's sandbox.
func Sandbox(p *corev1.Pod, in SandboxInput) (*runtimeapi.PodSandboxConfig, error) {
	host, domain := Hostname(p, in.Domain)
	if isTrue(p.Spec.SetHostnameAsFQDN) && domain != "" {
		host = host + "." + domain
		if len(host) > maxHostname {
			return nil, fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too "+
				"long (64 characters is the max, %d characters requested)", host, len(host))
		}
	}
	if p.Spec.HostNetwork {
		host = in.NodeHostname
		if p.Spec.HostnameOverride != nil {
			host = *p.Spec.HostnameOverride
		}
	}
	labels := maps.Clone(p.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[observed.LabelPodName] = p.Name
	labels[observed.LabelPodNamespace] = p.Namespace
	labels[observed.LabelPodUID] = string(p.UID)
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name:      p.Name,
			Namespace: p.Namespace,
			Uid:       string(p.UID),
			Attempt:   in.Attempt,
		},
		Hostname:     host,
		LogDirectory: PodLogDir(in.LogDir, p.Namespace, p.Name, string(p.UID)),
		DnsConfig:    in.DNS,
		Labels:       labels,
		Annotations:  p.Annotations,
		Linux:        sandboxLinux(p, in),
	}
	if !p.Spec.HostNetwork {
		cfg.PortMappings = ports(p)
	}
	return cfg, nil
}

func ports(p *corev1.Pod) []*runtimeapi.PortMapping {
	var out []*runtimeapi.PortMapping
	add := func(c *corev1.Container) {
		for _, port := range c.Ports {
			m := &runtimeapi.PortMapping{
				ContainerPort: port.ContainerPort,
				HostPort:      port.HostPort,
				HostIp:        port.HostIP,
			}
			switch port.Protocol {
			case corev1.ProtocolUDP:
				m.Protocol = runtimeapi.Protocol_UDP
			case corev1.ProtocolSCTP:
				m.Protocol = runtimeapi.Protocol_SCTP
			case corev1.ProtocolTCP:
			}
			out = append(out, m)
		}
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil {
			add(c)
		}
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i])
	}
	return out
}

func sandboxLinux(p *corev1.Pod, in SandboxInput) *runtimeapi.LinuxPodSandboxConfig {
	sc := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces(p, in.Users),
		Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	out := &runtimeapi.LinuxPodSandboxConfig{
		CgroupParent:    in.CgroupParent,
		SecurityContext: sc,
		Resources:       podResources(p),
	}
	sc.SupplementalGroups, sc.SupplementalGroupsPolicy = groups(p)
	for i := range p.Spec.Containers {
		if c := p.Spec.Containers[i].SecurityContext; c != nil && isTrue(c.Privileged) {
			sc.Privileged = true
		}
	}
	ps := p.Spec.SecurityContext
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
