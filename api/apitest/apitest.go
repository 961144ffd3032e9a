// SPDX-License-Identifier: Apache-2.0

// Package apitest makes the pods, nodes and services that tests are about, with as many words as the test has something
// to say: a name, and what is different about this one. A change is a plain function, so that a test writes its own
// next to these. Tests of all rooms use it; it fills in no defaults, which are the server's.
package apitest

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pod is a pod called name ("namespace/name", or "name" in the namespace default), whose UID is the name too, with the
// changes made in turn.
func Pod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: meta(name)}
	p.UID = types.UID(p.Name)
	for _, change := range changes {
		change(p)
	}
	return p
}

// On puts the pod on a node.
func On(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

// Phase is the pod's phase.
func Phase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

// UID is another UID than the pod's name.
func UID(uid string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.UID = types.UID(uid) } }

// Created is when the pod was made.
func Created(at time.Time) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(at) }
}

// Ready makes the pod ready.
func Ready(p *corev1.Pod) {
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
		Type:   corev1.PodReady,
		Status: corev1.ConditionTrue,
	})
}

// Labels are labels of the pod: key, value, key, value.
func Labels(pairs ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = add(p.Labels, pairs) }
}

// IPs are the pod's addresses.
func IPs(ips ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, ip := range ips {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
			p.Status.PodIP = p.Status.PodIPs[0].IP
		}
	}
}

// Containers have the image img; "init:NAME" and "sidecar:NAME" are init containers.
func Containers(names ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, name := range names {
			c := corev1.Container{Name: name, Image: "img"}
			kind, short, found := strings.Cut(name, ":")
			if !found {
				p.Spec.Containers = append(p.Spec.Containers, c)
				continue
			}
			c.Name = short
			if kind == "sidecar" {
				c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
			}
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		}
	}
}

// Requests are what the pod's first container requests: resource, amount, resource, amount. An empty amount is none.
func Requests(pairs ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		for i := 0; i+1 < len(pairs); i += 2 {
			if pairs[i+1] == "" {
				continue
			}
			if c.Resources.Requests == nil {
				c.Resources.Requests = corev1.ResourceList{}
			}
			c.Resources.Requests[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
	}
}

// Node is a node called name with the changes made in turn.
func Node(name string, changes ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, change := range changes {
		change(n)
	}
	return n
}

// NodeLabels are labels of the node: key, value, key, value.
func NodeLabels(pairs ...string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels = add(n.Labels, pairs) }
}

// NodeReady makes the node ready.
func NodeReady(n *corev1.Node) { Condition(corev1.NodeReady, corev1.ConditionTrue)(n) }

// Condition is a condition of the node.
func Condition(kind corev1.NodeConditionType, status corev1.ConditionStatus) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: status})
	}
}

// Taints are taints of the node.
func Taints(taints ...corev1.Taint) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, taints...) }
}

// PodCIDRs are the addresses of the node's pods.
func PodCIDRs(ranges ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.PodCIDRs = ranges
		if len(ranges) > 0 {
			n.Spec.PodCIDR = ranges[0]
		}
	}
}

// Service is a service called name, as a pod is in Pod, and without a UID.
func Service(name string, spec corev1.ServiceSpec) *corev1.Service {
	return &corev1.Service{ObjectMeta: meta(name), Spec: spec}
}

func meta(name string) metav1.ObjectMeta {
	namespace, short, found := strings.Cut(name, "/")
	if !found {
		namespace = "default"
		short = name
	}
	return metav1.ObjectMeta{Namespace: namespace, Name: short}
}

func add(to map[string]string, pairs []string) map[string]string {
	if to == nil {
		to = map[string]string{}
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		to[pairs[i]] = pairs[i+1]
	}
	return to
}
