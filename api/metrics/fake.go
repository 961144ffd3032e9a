// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"keelson/lib/quantity"
)

// Annotations of pods on fake nodes, and of fake nodes, that say what they pretend to use.
//
// On a pod the value is either one quantity, which its containers share evenly, or a list such as "app=250m,proxy=10m";
// containers that the list leaves out use nothing. On a node it is one quantity, for what the node uses; without it the
// node uses what its pods use. Without an annotation a pod uses nothing. A value that is not understood, such as
// "none", stands for a pod or node without figures.
const (
	AnnotationCPU    = "keelson.dev/fake-cpu"
	AnnotationMemory = "keelson.dev/fake-memory"
)

// fakeProvider begins the provider id of a fake node; its name follows. Once set, a node's provider id never changes.
const fakeProvider = "fake://"

// Fake reports whether there is no machine, and so no kubelet, behind a node.
func Fake(n *corev1.Node) bool { return n.Spec.ProviderID == fakeProvider+n.Name }

// FakeContainers returns what each running container of a pod on a fake node uses, by name; ok is false when there are
// no figures.
func FakeContainers(pod *corev1.Pod) (map[string]corev1.ResourceList, bool) {
	var names []string
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			if list[i].State.Running != nil {
				names = append(names, list[i].Name)
			}
		}
	}
	cpu, ok := shares(pod.Annotations[AnnotationCPU], names, resource.Nano)
	if !ok || len(names) == 0 {
		return nil, false
	}
	memory, ok := shares(pod.Annotations[AnnotationMemory], names, 0)
	if !ok {
		return nil, false
	}
	out := make(map[string]corev1.ResourceList, len(names))
	for _, name := range names {
		out[name] = Usage(cpu[name], memory[name])
	}
	return out, true
}

// shares reads an annotation of a pod: what each container uses, in units of scale.
func shares(value string, names []string, scale resource.Scale) (map[string]uint64, bool) {
	out := map[string]uint64{}
	if value == "" {
		return out, true
	}
	if !strings.Contains(value, "=") {
		all, ok := amount(value, scale)
		for _, name := range names {
			out[name] = all / uint64(len(names))
		}
		return out, ok
	}
	for part := range strings.SplitSeq(value, ",") {
		name, q, _ := strings.Cut(part, "=")
		n, ok := amount(strings.TrimSpace(q), scale)
		if !ok {
			return nil, false
		}
		out[strings.TrimSpace(name)] = n
	}
	return out, true
}

func amount(value string, scale resource.Scale) (uint64, bool) {
	q, err := quantity.Parse(value)
	if err != nil || q.Sign() < 0 {
		return 0, false
	}
	return uint64(q.ScaledValue(scale)), true // not negative
}

// FakeNode returns what a fake node uses, of which its pods use pods; ok is false when there are no figures.
func FakeNode(n *corev1.Node, pods corev1.ResourceList) (corev1.ResourceList, bool) {
	out := corev1.ResourceList{}
	for name, a := range map[corev1.ResourceName]struct {
		key   string
		scale resource.Scale
	}{corev1.ResourceCPU: {AnnotationCPU, resource.Nano}, corev1.ResourceMemory: {AnnotationMemory, 0}} {
		value, set := n.Annotations[a.key]
		if !set {
			out[name] = pods[name]
			continue
		}
		used, ok := amount(value, a.scale)
		if !ok {
			return nil, false
		}
		out[name] = Usage(used, used)[name]
	}
	return out, true
}
