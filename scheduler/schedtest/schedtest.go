// SPDX-License-Identifier: Apache-2.0

// Package schedtest runs the scheduling engine without API server and queue: objects in,
// placements out. It also has builders for nodes and pods. Only tests and benchmarks call
// it. It starts no goroutine of its own.
package schedtest

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/apitest"
	"keelson/scheduler/core"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/state"
)

// Harness is a scheduler cache and engine without API server and queue.
type Harness struct {
	Cache  *state.Cache
	Engine *core.Engine
	// Explain, when set, is called with every attempt.
	Explain func(*framework.Attempt)
}

// New returns a harness with the default profile. The same seed gives the same placements.
func New(parallelism int, seed uint64, more ...framework.Weighted) *Harness {
	return &Harness{
		Cache:  state.NewCache(),
		Engine: core.NewEngine(Default(&plugins.Shared{}, more...), parallelism, seed),
	}
}

// Default returns the default profile for a cluster without an API server.
func Default(shared *plugins.Shared, more ...framework.Weighted) *framework.Profile {
	return plugins.Default("default-scheduler", &framework.Handle{}, shared, more...)
}

// Add adds nodes, namespaces and bound pods to the cache.
func (h *Harness) Add(objs ...any) {
	for _, o := range objs {
		switch o := o.(type) {
		case *corev1.Node:
			h.Cache.SetNode(o)
		case *corev1.Namespace:
			h.Cache.SetNamespace(o.Name, o.Labels)
		case *corev1.Pod:
			h.Cache.SetPod(o)
		default:
			panic(fmt.Sprintf("schedtest: cannot add a %T", o))
		}
	}
}

// Try runs one attempt without assuming the pod.
func (h *Harness) Try(pod *corev1.Pod) *framework.Attempt {
	return h.Engine.Decide(state.NewPodInfo(pod), h.Cache.Refresh(), nil)
}

// Place runs one attempt and assumes the pod on its node. It returns the node's name; empty: none fits.
func (h *Harness) Place(pod *corev1.Pod) string {
	a := h.Try(pod)
	if h.Explain != nil {
		h.Explain(a)
	}
	if a.Chosen == nil {
		return ""
	}
	if err := h.Cache.Assume(a.Pod, a.Chosen.Name); err != nil {
		panic(err)
	}
	return a.Chosen.Name
}

// NodeOption changes a node in Node.
type NodeOption func(*corev1.Node)

// Node returns a node with 4 CPUs, 32Gi and 110 pods, as in upstream's benchmarks.
func Node(name string, opts ...NodeOption) *corev1.Node {
	list := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse("32Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			UID:  types.UID("node-" + name),
			Labels: map[string]string{
				corev1.LabelHostname: name,
			},
		},
		Status: corev1.NodeStatus{Allocatable: list, Capacity: list},
	}
	for _, o := range opts {
		o(node)
	}
	return node
}

// Labels adds labels, given as key, value, key, value.
func Labels(kv ...string) NodeOption { return apitest.NodeLabels(kv...) }

// Zone puts the node into a zone.
func Zone(z string) NodeOption { return Labels(corev1.LabelTopologyZone, z) }

// Allocatable sets one allocatable resource.
func Allocatable(name corev1.ResourceName, amount string) NodeOption {
	return func(n *corev1.Node) {
		n.Status.Allocatable = n.Status.Allocatable.DeepCopy()
		n.Status.Allocatable[name] = resource.MustParse(amount)
	}
}

// Taint adds a taint.
func Taint(key, value string, effect corev1.TaintEffect) NodeOption {
	return apitest.Taints(corev1.Taint{Key: key, Value: value, Effect: effect})
}

// Cordoned makes the node unschedulable.
func Cordoned() NodeOption { return func(n *corev1.Node) { n.Spec.Unschedulable = true } }

// PodOption changes a pod in Pod.
type PodOption func(*corev1.Pod)

// Pod returns a pod in the namespace default with one container that requests 100m and 500Mi, as in upstream's
// benchmarks.
func Pod(name string, opts ...PodOption) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:              name,
			Namespace:         "default",
			Labels:            map[string]string{},
			CreationTimestamp: metav1.NewTime(time.Unix(1_800_000_000, 0)),
		},
		Spec: corev1.PodSpec{
			SchedulerName: "default-scheduler",
			Containers:    []corev1.Container{{Name: "c", Image: "pause"}},
		},
	}
	Requests("100m", "500Mi")(pod)
	for _, o := range opts {
		o(pod)
	}
	if pod.UID == "" {
		pod.UID = types.UID("pod-" + pod.Namespace + "-" + pod.Name)
	}
	return pod
}

// Requests sets the container's requests; an empty amount means no request.
func Requests(cpu, memory string) PodOption {
	return func(p *corev1.Pod) {
		list := corev1.ResourceList{}
		if cpu != "" {
			list[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
		if memory != "" {
			list[corev1.ResourceMemory] = resource.MustParse(memory)
		}
		p.Spec.Containers[0].Resources.Requests = list
	}
}

// In sets the namespace.
func In(ns string) PodOption { return func(p *corev1.Pod) { p.Namespace = ns } }

// On binds the pod to a node.
func On(node string) PodOption { return apitest.On(node) }

// Labelled adds labels, given as key, value, key, value.
func Labelled(kv ...string) PodOption { return apitest.Labels(kv...) }

// Priority sets the pod's priority.
func Priority(n int32) PodOption { return func(p *corev1.Pod) { p.Spec.Priority = &n } }

// Tolerates adds a toleration.
func Tolerates(t corev1.Toleration) PodOption {
	return func(p *corev1.Pod) { p.Spec.Tolerations = append(p.Spec.Tolerations, t) }
}

// HostPort adds a host port.
func HostPort(ip string, proto corev1.Protocol, port int32) PodOption {
	return func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		c.Ports = append(c.Ports, corev1.ContainerPort{
			HostIP:        ip,
			Protocol:      proto,
			HostPort:      port,
			ContainerPort: port,
		})
	}
}

// With changes the pod's spec by a function.
func With(f func(*corev1.PodSpec)) PodOption { return func(p *corev1.Pod) { f(&p.Spec) } }

// Quantity parses an amount.
func Quantity(s string) resource.Quantity { return resource.MustParse(s) }
