// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"

	"keelson/api/kind"
	"keelson/api/metrics"
)

// Reader reads nodes and pods from the server's cache; objects are shared.
type Reader interface {
	Get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (runtime.Object, error)
	Select(
		ctx context.Context, gvr schema.GroupVersionResource, namespace string, l labels.Selector, f fields.Selector,
	) ([]runtime.Object, error)
	PodsOn(node string) []*corev1.Pod
}

var (
	nodesGVR = corev1.SchemeGroupVersion.WithResource("nodes")
	podsGVR  = corev1.SchemeGroupVersion.WithResource("pods")
	// The kinds' names in error messages, as in metrics-server.
	nodeMetrics = schema.GroupResource{Group: metricsv1.GroupName, Resource: "nodemetrics"}
	podMetrics  = schema.GroupResource{Group: metricsv1.GroupName, Resource: "podmetrics"}
)

// Nodes computes NodeMetrics.
type Nodes struct {
	Reader    Reader
	Collector *Collector
}

// Get returns the NodeMetrics of one node.
func (n Nodes) Get(ctx context.Context, _, name string) (kind.Object, error) {
	obj, err := n.Reader.Get(ctx, nodesGVR, "", name)
	if err != nil {
		return nil, err
	}
	for _, m := range n.metrics(ctx, []runtime.Object{obj}) {
		return m, nil
	}
	return nil, apierrors.NewNotFound(nodeMetrics, name)
}

// List returns the NodeMetrics of the selected nodes that have metrics.
func (n Nodes) List(ctx context.Context, _ string, l labels.Selector, f fields.Selector) ([]kind.Object, error) {
	nodes, err := n.Reader.Select(ctx, nodesGVR, "", l, f)
	if err != nil {
		return nil, err
	}
	return n.metrics(ctx, nodes), nil
}

func (n Nodes) metrics(ctx context.Context, nodes []runtime.Object) []kind.Object {
	var ask []string
	for _, obj := range nodes {
		if node, ok := obj.(*corev1.Node); ok && !metrics.Fake(node) {
			ask = append(ask, node.Name)
		}
	}
	known := n.Collector.usageOf(ctx, ask)
	now := time.Now()
	var out []kind.Object
	for _, obj := range nodes {
		node, ok := obj.(*corev1.Node)
		if !ok {
			continue
		}
		reading := known[node.Name].node
		if metrics.Fake(node) {
			reading = n.fake(node, now)
		}
		if reading != nil {
			out = append(out, &metricsv1.NodeMetrics{
				ObjectMeta: metav1.ObjectMeta{
					Name:              node.Name,
					Labels:            node.Labels,
					CreationTimestamp: metav1.NewTime(now),
				},
				Timestamp: metav1.NewTime(reading.at),
				Window:    metav1.Duration{Duration: reading.window},
				Usage:     reading.usage,
			})
		}
	}
	return out
}

// fakeWindow is the window of simulated metrics. Autoscalers accept metrics of pods that have been ready for one
// window.
const fakeWindow = time.Second

func (n Nodes) fake(node *corev1.Node, now time.Time) *reading {
	var used corev1.ResourceList
	if node.Annotations[metrics.AnnotationCPU] == "" || node.Annotations[metrics.AnnotationMemory] == "" {
		used = metrics.Usage(0, 0)
		for _, p := range n.Reader.PodsOn(node.Name) {
			all, _ := metrics.FakeContainers(p)
			for _, u := range all {
				for name, q := range u {
					sum := used[name]
					sum.Add(q)
					used[name] = sum
				}
			}
		}
	}
	u, ok := metrics.FakeNode(node, used)
	if !ok {
		return nil
	}
	return &reading{usage: u, at: now, window: fakeWindow}
}

// Pods computes PodMetrics.
type Pods struct {
	Reader    Reader
	Collector *Collector
}

// Get returns the PodMetrics of one pod.
func (p Pods) Get(ctx context.Context, namespace, name string) (kind.Object, error) {
	obj, err := p.Reader.Get(ctx, podsGVR, namespace, name)
	if err != nil {
		return nil, err
	}
	for _, m := range p.metrics(ctx, []runtime.Object{obj}) {
		return m, nil
	}
	return nil, apierrors.NewNotFound(podMetrics, namespace+"/"+name)
}

// List returns the PodMetrics of the selected running pods that have metrics.
func (p Pods) List(ctx context.Context, namespace string, l labels.Selector, f fields.Selector) ([]kind.Object, error) {
	pods, err := p.Reader.Select(ctx, podsGVR, namespace, l, f)
	if err != nil {
		return nil, err
	}
	return p.metrics(ctx, pods), nil
}

func (p Pods) metrics(ctx context.Context, pods []runtime.Object) []kind.Object {
	fake := map[string]bool{} // by node
	var running []*corev1.Pod
	for _, obj := range pods {
		pod, ok := obj.(*corev1.Pod)
		if !ok || pod.Status.Phase != corev1.PodRunning || pod.Spec.NodeName == "" {
			continue
		}
		running = append(running, pod)
		if _, seen := fake[pod.Spec.NodeName]; !seen {
			obj, err := p.Reader.Get(ctx, nodesGVR, "", pod.Spec.NodeName)
			node, ok := obj.(*corev1.Node)
			if err != nil || !ok {
				continue // it was deleted
			}
			fake[node.Name] = metrics.Fake(node)
		}
	}
	var ask []string
	for name, is := range fake {
		if !is {
			ask = append(ask, name)
		}
	}
	known := p.Collector.usageOf(ctx, ask)
	now := time.Now()
	var out []kind.Object
	for _, pod := range running {
		podReading := known[pod.Spec.NodeName].pods[podKey{pod.Namespace, pod.Name}]
		if fake[pod.Spec.NodeName] {
			podReading = fakePod(pod, now)
		}
		if podReading != nil {
			out = append(out, &metricsv1.PodMetrics{
				ObjectMeta: metav1.ObjectMeta{
					Name:              pod.Name,
					Namespace:         pod.Namespace,
					Labels:            pod.Labels,
					CreationTimestamp: metav1.NewTime(now),
				},
				Timestamp:  metav1.NewTime(podReading.at),
				Window:     metav1.Duration{Duration: podReading.window},
				Containers: podReading.containers,
			})
		}
	}
	return out
}

func fakePod(pod *corev1.Pod, now time.Time) *podReading {
	used, ok := metrics.FakeContainers(pod)
	if !ok {
		return nil
	}
	r := &podReading{at: now, window: fakeWindow}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		r.containers = append(r.containers, metricsv1.ContainerMetrics{Name: name, Usage: used[name]})
	}
	return r
}
