// SPDX-License-Identifier: Apache-2.0

package job

import (
	"maps"
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/meta"
)

// longestPrefix is the maximum length of the non-random part of a generated name.
const longestPrefix = 58

// podFor is a pod from the job's template. Every pod needs its own metadata: see setIndex.
func podFor(job *batchv1.Job) *corev1.Pod {
	template := &job.Spec.Template
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		GenerateName:    meta.ChildName(job.Name, "-"),
		Namespace:       job.Namespace,
		Labels:          template.Labels,
		Annotations:     template.Annotations,
		Finalizers:      slices.Clone(template.Finalizers),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, kind)},
	}}
	if !tracked(pod) {
		pod.Finalizers = append(pod.Finalizers, batchv1.JobTrackingFinalizer)
	}
	template.Spec.DeepCopyInto(&pod.Spec)
	if isIndexed(job) {
		for i := range pod.Spec.InitContainers {
			addIndexEnv(&pod.Spec.InitContainers[i])
		}
		for i := range pod.Spec.Containers {
			addIndexEnv(&pod.Spec.Containers[i])
		}
	}
	return pod
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

// setIndex makes pod, which shares its maps with other pods, the pod of index n; replaced is the failed pod before it,
// or nil.
func setIndex(job *batchv1.Job, pod *corev1.Pod, n int32, replaced *corev1.Pod) {
	index := strconv.Itoa(int(n))
	set := func(m map[string]string, key, value string) map[string]string {
		if m == nil {
			m = map[string]string{}
		}
		m[key] = value
		return m
	}
	pod.Labels = set(maps.Clone(pod.Labels), batchv1.JobCompletionIndexAnnotation, index)
	pod.Annotations = set(maps.Clone(pod.Annotations), batchv1.JobCompletionIndexAnnotation, index)
	pod.Spec.Hostname = job.Name + "-" + index
	suffix := "-" + index + "-"
	pod.GenerateName = job.Name[:min(len(job.Name), longestPrefix-len(suffix))] + suffix
	if !hasBackoffLimitPerIndex(job) {
		return
	}
	counted, ignored := replacementFailures(job, replaced)
	set(pod.Annotations, batchv1.JobIndexFailureCountAnnotation, strconv.Itoa(int(counted)))
	if ignored > 0 {
		set(pod.Annotations, batchv1.JobIndexIgnoredFailureCountAnnotation, strconv.Itoa(int(ignored)))
	}
}
