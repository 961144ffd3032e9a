// SPDX-License-Identifier: Apache-2.0

package job

import (
	"maps"
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// longestPrefix is the maximum length of the non-random part of a generated name.
const longestPrefix = 58

// podFor is a pod from the job's template. Every pod needs its own metadata: see setIndex.
func podFor(j *batchv1.Job) *corev1.Pod {
	t := &j.Spec.Template
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		GenerateName:    j.Name + "-",
		Namespace:       j.Namespace,
		Labels:          t.Labels,
		Annotations:     t.Annotations,
		Finalizers:      slices.Clone(t.Finalizers),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(j, kind)},
	}}
	if !tracked(p) {
		p.Finalizers = append(p.Finalizers, batchv1.JobTrackingFinalizer)
	}
	t.Spec.DeepCopyInto(&p.Spec)
	if isIndexed(j) {
		for i := range p.Spec.InitContainers {
			addIndexEnv(&p.Spec.InitContainers[i])
		}
		for i := range p.Spec.Containers {
			addIndexEnv(&p.Spec.Containers[i])
		}
	}
	return p
}

// addIndexEnv adds the pod's index to a container's environment.
func addIndexEnv(c *corev1.Container) {
	const name = "JOB_COMPLETION_INDEX"
	if slices.ContainsFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == name }) {
		return
	}
	c.Env = append(c.Env, corev1.EnvVar{
		Name: name,
		ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{
				FieldPath: "metadata.labels['" + batchv1.JobCompletionIndexAnnotation + "']",
			},
		},
	})
}

// setIndex makes p, which shares its maps with other pods, the pod of index n; replaced is the failed pod before it, or
// nil.
func setIndex(j *batchv1.Job, p *corev1.Pod, n int32, replaced *corev1.Pod) {
	index := strconv.Itoa(int(n))
	set := func(m map[string]string, key, value string) map[string]string {
		if m == nil {
			m = map[string]string{}
		}
		m[key] = value
		return m
	}
	p.Labels = set(maps.Clone(p.Labels), batchv1.JobCompletionIndexAnnotation, index)
	p.Annotations = set(maps.Clone(p.Annotations), batchv1.JobCompletionIndexAnnotation, index)
	p.Spec.Hostname = j.Name + "-" + index
	suffix := "-" + index + "-"
	p.GenerateName = j.Name[:min(len(j.Name), longestPrefix-len(suffix))] + suffix
	if !hasBackoffLimitPerIndex(j) {
		return
	}
	counted, ignored := replacementFailures(j, replaced)
	set(p.Annotations, batchv1.JobIndexFailureCountAnnotation, strconv.Itoa(int(counted)))
	if ignored > 0 {
		set(p.Annotations, batchv1.JobIndexIgnoredFailureCountAnnotation, strconv.Itoa(int(ignored)))
	}
}
