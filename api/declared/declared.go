// SPDX-License-Identifier: Apache-2.0

// Package declared reports what a pod needs of the kubelet beyond what every kubelet has, against what a node declares
// in its status.declaredFeatures. The rules are those of k8s.io/component-helpers.
package declared

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	features "k8s.io/component-helpers/nodedeclaredfeatures"
)

// release is whose rules hold: what a release takes for granted of every kubelet is asked of none.
var release = version.MajorMinor(1, 37)

// ToRun is what a pod needs of the node that it is put on.
func ToRun(pod *corev1.PodSpec) features.FeatureSet {
	set, err := features.DefaultFramework.InferForPodScheduling(&features.PodInfo{Spec: pod}, release)
	return known(set, err)
}

// ToChange is what an update of a pod needs of the node that the pod is on.
func ToChange(old, pod *corev1.Pod) features.FeatureSet {
	set, err := features.DefaultFramework.InferForPodUpdate(
		&features.PodInfo{Spec: &old.Spec, Status: &old.Status}, &features.PodInfo{
			Spec:   &pod.Spec,
			Status: &pod.Status,
		}, release)
	return known(set, err)
}

// known is set: the library fails only without a release.
func known(set features.FeatureSet, err error) features.FeatureSet {
	if err != nil {
		panic(err)
	}
	return set
}

// Missing names what of needs a node does not declare, in alphabetical order.
func Missing(needs features.FeatureSet, node *corev1.Node) []string {
	match, err := features.DefaultFramework.MatchNode(needs, node)
	if err != nil { // sets of other sizes, which come from elsewhere
		panic(err)
	}
	return match.UnsatisfiedRequirements
}
