// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	podapi "keelson/api/core/pod"
)

// Pod holds the properties of a pod that policies depend on.
type Pod struct {
	Namespace, Name, UID string
	// Labels are shared with the object and must not be modified.
	Labels map[string]string
	Addrs  []netip.Addr
	// Local: the pod is on this node.
	Local bool
	Ports []NamedPort
}

// NamedPort is a container port with a name.
type NamedPort struct {
	Name  string
	Proto uint8
	Port  uint16
}

// FromObject converts a pod. false: policies do not apply to it, because it has no address yet, uses the host network,
// or has ended.
func FromObject(pod *corev1.Pod, node string) (Pod, bool) {
	if pod.Spec.HostNetwork || pod.Spec.NodeName == "" || podapi.Terminal(pod) {
		return Pod{}, false
	}
	out := Pod{
		Namespace: pod.Namespace,
		Name:      pod.Name,
		UID:       string(pod.UID),
		Labels:    pod.Labels,
		Local:     pod.Spec.NodeName == node,
		Addrs:     addresses(pod),
		Ports:     namedPorts(&pod.Spec),
	}
	return out, len(out.Addrs) > 0
}

func addresses(p *corev1.Pod) []netip.Addr {
	var out []netip.Addr
	add := func(s string) {
		if a, err := netip.ParseAddr(s); err == nil && !slices.Contains(out, a.Unmap()) {
			out = append(out, a.Unmap())
		}
	}
	add(p.Status.PodIP)
	for _, ip := range p.Status.PodIPs {
		add(ip.IP)
	}
	return out
}

// namedPorts returns the named ports of containers and sidecar init containers. The first of a name and protocol
// counts.
func namedPorts(spec *corev1.PodSpec) []NamedPort {
	var out []NamedPort
	seen := map[portName]bool{}
	collect := func(c *corev1.Container) {
		for _, p := range c.Ports {
			proto, ok := protoNumber(p.Protocol)
			key := portName{proto, p.Name}
			if p.Name == "" || !ok || p.ContainerPort <= 0 || p.ContainerPort > maxPort || seen[key] {
				continue
			}
			seen[key] = true
			out = append(out, NamedPort{Name: p.Name, Proto: proto, Port: uint16(p.ContainerPort)})
		}
	}
	for i := range spec.Containers {
		collect(&spec.Containers[i])
	}
	for i := range spec.InitContainers {
		if c := &spec.InitContainers[i]; c.RestartPolicy != nil &&
			*c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			collect(c)
		}
	}
	return out
}

const maxPort = 65535

// Numbers of protocols.
const (
	tcp  = 6
	udp  = 17
	sctp = 132
)

func protoNumber(p corev1.Protocol) (uint8, bool) {
	switch p {
	case "", corev1.ProtocolTCP:
		return tcp, true
	case corev1.ProtocolUDP:
		return udp, true
	case corev1.ProtocolSCTP:
		return sctp, true
	}
	return 0, false
}

func protoName(n uint8) string {
	switch n {
	case tcp:
		return "tcp"
	case udp:
		return "udp"
	}
	return "sctp"
}

// labelsKey returns a canonical text of labels.
func labelsKey(l map[string]string) string {
	keys := make([]string, 0, len(l))
	for k := range l {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var b strings.Builder
	for _, k := range keys {
		b.WriteString(k)
		b.WriteByte('=')
		b.WriteString(l[k])
		b.WriteByte(',')
	}
	return b.String()
}
