// SPDX-License-Identifier: Apache-2.0

package statefulset

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// parseOrdinal splits the name of a set's pod: "web-3" is 3 of "web". The ordinal is -1 for other names.
func parseOrdinal(pod string) (set string, n int) {
	at := strings.LastIndexByte(pod, '-')
	if at <= 0 {
		return "", -1
	}
	digits := pod[at+1:]
	v, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || v < 0 || digits != strconv.FormatInt(v, 10) { // "web-03" and "web-+3" are not valid
		return "", -1
	}
	return pod[:at], int(v)
}

func podName(set *appsv1.StatefulSet, n int) string { return set.Name + "-" + strconv.Itoa(n) }

// claimName is the name of pod n's claim from template.
func claimName(set *appsv1.StatefulSet, template *corev1.PersistentVolumeClaim, n int) string {
	return fmt.Sprintf("%s-%s-%d", template.Name, set.Name, n)
}

func start(set *appsv1.StatefulSet) int {
	if set.Spec.Ordinals == nil {
		return 0
	}
	return int(set.Spec.Ordinals.Start)
}

// replicas is spec.replicas, which the API server has defaulted.
func replicas(set *appsv1.StatefulSet) int {
	if set.Spec.Replicas == nil {
		return 1
	}
	return int(*set.Spec.Replicas)
}

// inRange reports whether the set should have a pod with this ordinal.
func inRange(set *appsv1.StatefulSet, n int) bool {
	return n >= start(set) && n < start(set)+replicas(set)
}

// revisionOf is the revision from which a pod was created.
func revisionOf(p *corev1.Pod) string { return p.Labels[appsv1.StatefulSetRevisionLabel] }

// newPod is pod n of the set from template, which belongs to the revision with this name.
func newPod(set *appsv1.StatefulSet, template *corev1.PodTemplateSpec, revision string, n int) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name:            podName(set, n),
		Namespace:       set.Namespace,
		Labels:          withPodLabels(set, n, template.Labels),
		Annotations:     maps.Clone(template.Annotations),
		Finalizers:      slices.Clone(template.Finalizers),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, gvk)},
	}}
	pod.Labels[appsv1.StatefulSetRevisionLabel] = revision
	template.Spec.DeepCopyInto(&pod.Spec)
	pod.Spec.Hostname = pod.Name
	pod.Spec.Subdomain = set.Spec.ServiceName
	pod.Spec.Volumes = volumes(set, n, pod.Spec.Volumes)
	return pod
}

// withPodLabels returns a copy of labels with the labels of pod n.
func withPodLabels(set *appsv1.StatefulSet, n int, labels map[string]string) map[string]string {
	l := maps.Clone(labels)
	if l == nil {
		l = map[string]string{}
	}
	l[appsv1.StatefulSetPodNameLabel] = podName(set, n)
	l[appsv1.PodIndexLabel] = strconv.Itoa(n)
	return l
}

// volumes are the claims of pod n, then the volumes of has that no claim replaces.
func volumes(set *appsv1.StatefulSet, n int, has []corev1.Volume) []corev1.Volume {
	templates := set.Spec.VolumeClaimTemplates
	if len(templates) == 0 {
		return has
	}
	all := make([]corev1.Volume, 0, len(templates)+len(has))
	for i := range templates {
		all = append(all, corev1.Volume{
			Name: templates[i].Name,
			VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
					ClaimName: claimName(set, &templates[i], n),
				},
			},
		})
	}
	for _, v := range has {
		if !slices.ContainsFunc(templates, func(t corev1.PersistentVolumeClaim) bool { return t.Name == v.Name }) {
			all = append(all, v)
		}
	}
	return all
}

// hasIdentity reports whether p has the labels of pod n and mounts its claims.
func hasIdentity(set *appsv1.StatefulSet, p *corev1.Pod, n int) bool {
	if p.Labels[appsv1.StatefulSetPodNameLabel] != p.Name {
		return false
	}
	for i := range set.Spec.VolumeClaimTemplates {
		t := &set.Spec.VolumeClaimTemplates[i]
		if !slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Name == t.Name && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claimName(
				set, t, n)
		}) {
			return false
		}
	}
	return true
}
