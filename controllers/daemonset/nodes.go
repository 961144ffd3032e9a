// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"keelson/api/meta"
)

// nodeFit decides which nodes run a pod of one set. It is built once per pass and called for every node.
type nodeFit struct {
	nodeName    string
	affinity    nodeaffinity.RequiredNodeAffinity
	tolerations []corev1.Toleration
}

func newNodeFit(set *appsv1.DaemonSet) nodeFit {
	spec := &set.Spec.Template.Spec
	return nodeFit{
		nodeName:    spec.NodeName,
		tolerations: tolerations(spec),
		affinity: nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{
			Spec: corev1.PodSpec{NodeSelector: spec.NodeSelector, Affinity: spec.Affinity},
		}),
	}
}

// shouldRun reports whether to create a pod on the node, and whether an existing one may stay: NoSchedule taints only
// prevent new pods.
func (f nodeFit) shouldRun(node *corev1.Node) (run, stay bool) {
	if f.nodeName != "" && f.nodeName != node.Name {
		return false, false
	}
	if ok, err := f.affinity.Match(node); err != nil || !ok {
		return false, false
	}
	run = true
	stay = true
	for i := range node.Spec.Taints {
		t := &node.Spec.Taints[i]
		if t.Effect == corev1.TaintEffectPreferNoSchedule || f.tolerates(t) {
			continue
		}
		run = false
		stay = stay && t.Effect != corev1.TaintEffectNoExecute
	}
	return run, stay
}

func (f nodeFit) tolerates(taint *corev1.Taint) bool {
	return slices.ContainsFunc(f.tolerations, func(t corev1.Toleration) bool {
		return t.ToleratesTaint(klog.Logger{}, taint, true)
	})
}

// tolerations are the template's and those of every daemon pod, which also runs on unhealthy and cordoned nodes.
func tolerations(spec *corev1.PodSpec) []corev1.Toleration {
	all := slices.Clone(spec.Tolerations)
	add := func(key string, effect corev1.TaintEffect) {
		t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
		if i := slices.IndexFunc(all, func(has corev1.Toleration) bool { return has.MatchToleration(&t) }); i >= 0 {
			all[i] = t // without tolerationSeconds
			return
		}
		all = append(all, t)
	}
	add(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
	if spec.HostNetwork {
		add(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)
	}
	return all
}

// newPod is the set's pod for a node. A required affinity to the node's name pins it, so that the scheduler checks only
// that node; it may wait there for resources or a port.
func newPod(set *appsv1.DaemonSet, hash, node string) *corev1.Pod {
	template := &set.Spec.Template
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		GenerateName:    meta.ChildName(set.Name, "-"),
		Namespace:       set.Namespace,
		Labels:          maps.Clone(template.Labels),
		Annotations:     maps.Clone(template.Annotations),
		Finalizers:      slices.Clone(template.Finalizers),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, gvk)},
	}}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[appsv1.ControllerRevisionHashLabelKey] = hash
	if g := set.Annotations[appsv1.DeprecatedTemplateGeneration]; g != "" {
		pod.Labels[generationLabel] = g
	}
	template.Spec.DeepCopyInto(&pod.Spec)
	pod.Spec.Tolerations = tolerations(&template.Spec)
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	// The node satisfies the template's own terms already.
	pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
		}}},
	}
	return pod
}

// generationLabel is the label with the template's generation from before ControllerRevisions.
const generationLabel = "pod-template-generation"

// nodeOf is the node on which a pod runs or to which it is pinned; "" if none.
func nodeOf(p *corev1.Pod) string {
	if p.Spec.NodeName != "" {
		return p.Spec.NodeName
	}
	if p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil ||
		p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

// current reports whether a pod was created from the set's current template.
func current(set *appsv1.DaemonSet, hash string, p *corev1.Pod) bool {
	if hash != "" && p.Labels[appsv1.ControllerRevisionHashLabelKey] == hash {
		return true
	}
	g := set.Annotations[appsv1.DeprecatedTemplateGeneration]
	return g != "" && p.Labels[generationLabel] == g
}
