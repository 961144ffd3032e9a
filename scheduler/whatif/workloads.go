// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/kind"
)

// templateHash stands for the hash of a template in the labels of new pods.
const templateHash = "new"

// workload is what an object makes its controller create.
type workload struct {
	kind     string // of the object
	meta     *metav1.ObjectMeta
	template *corev1.PodTemplateSpec
	count    int
	// owner is the controller of the pods: the object, or what its controller creates for them.
	owner  kind.Object
	labels map[string]string // that the controller adds to those of the template
	// ordinals start at first, and are what pods are called by. ordinal, if not nil, adds to a pod what depends on it.
	first   int
	ordinal func(pod *corev1.Pod, ordinal int)
	daemon  bool
	idle    string // why it creates no pods now; empty: it does
}

// workloadOf describes an object; nil: it is a pod, or leads to none.
func workloadOf(obj kind.Object) *workload {
	switch o := obj.(type) {
	case *corev1.ReplicationController:
		return &workload{
			kind:     "ReplicationController",
			meta:     &o.ObjectMeta,
			template: o.Spec.Template,
			count:    replicas(o.Spec.Replicas),
			owner:    o,
		}
	case *appsv1.ReplicaSet:
		return &workload{
			kind:     "ReplicaSet",
			meta:     &o.ObjectMeta,
			template: &o.Spec.Template,
			count:    replicas(o.Spec.Replicas),
			owner:    o,
		}
	case *appsv1.Deployment:
		return deploymentWorkload(o)
	case *appsv1.StatefulSet:
		return statefulWorkload(o)
	case *appsv1.DaemonSet:
		return &workload{
			kind:     "DaemonSet",
			meta:     &o.ObjectMeta,
			template: &o.Spec.Template,
			owner:    o,
			daemon:   true,
			labels:   map[string]string{appsv1.ControllerRevisionHashLabelKey: templateHash},
		}
	case *batchv1.Job:
		return jobWorkload("Job", &o.ObjectMeta, &o.Spec)
	case *batchv1.CronJob:
		w := jobWorkload("CronJob", &o.ObjectMeta, &o.Spec.JobTemplate.Spec)
		if o.Spec.Suspend != nil && *o.Spec.Suspend {
			w.idle = "is suspended"
		}
		return w
	}
	return nil
}

func deploymentWorkload(deployment *appsv1.Deployment) *workload {
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: deployment.Name, Namespace: deployment.Namespace}}
	set.Spec.Selector = metav1.AddLabelToSelector(deployment.Spec.Selector.DeepCopy(),
		appsv1.DefaultDeploymentUniqueLabelKey,
		templateHash)
	w := &workload{
		kind:     "Deployment",
		meta:     &deployment.ObjectMeta,
		template: &deployment.Spec.Template,
		count:    replicas(deployment.Spec.Replicas),
		owner:    set,
		labels:   map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: templateHash},
	}
	if deployment.Spec.Paused {
		w.idle = "is paused"
	}
	return w
}

func statefulWorkload(set *appsv1.StatefulSet) *workload {
	return &workload{
		kind:     "StatefulSet",
		meta:     &set.ObjectMeta,
		template: &set.Spec.Template,
		count:    replicas(set.Spec.Replicas),
		owner:    set,
		labels:   map[string]string{appsv1.ControllerRevisionHashLabelKey: templateHash},
		first:    firstOrdinal(set),
		ordinal: func(pod *corev1.Pod, ordinal int) {
			pod.Labels[appsv1.StatefulSetPodNameLabel] = pod.Name
			pod.Labels[appsv1.PodIndexLabel] = strconv.Itoa(ordinal)
			for _, c := range set.Spec.VolumeClaimTemplates {
				pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
					Name: c.Name,
					VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
							ClaimName: fmt.Sprintf("%s-%s-%d", c.Name, set.Name, ordinal),
						},
					},
				})
			}
		},
	}
}

// jobWorkload is a Job, or one run of a CronJob.
func jobWorkload(of string, meta *metav1.ObjectMeta, spec *batchv1.JobSpec) *workload {
	count := replicas(spec.Parallelism)
	if spec.Completions != nil {
		count = min(count, int(*spec.Completions))
	}
	w := &workload{
		kind:     of,
		meta:     meta,
		template: &spec.Template,
		count:    count,
		owner:    &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: meta.Name, Namespace: meta.Namespace}},
		labels:   map[string]string{batchv1.JobNameLabel: meta.Name},
	}
	if spec.CompletionMode != nil && *spec.CompletionMode == batchv1.IndexedCompletion {
		w.ordinal = func(pod *corev1.Pod, ordinal int) {
			pod.Labels[batchv1.JobCompletionIndexAnnotation] = strconv.Itoa(ordinal)
		}
	}
	switch {
	case spec.Suspend != nil && *spec.Suspend:
		w.idle = "is suspended"
	case spec.ManagedBy != nil && *spec.ManagedBy != batchv1.JobControllerName:
		w.idle = "is managed by " + *spec.ManagedBy
	}
	return w
}

func firstOrdinal(s *appsv1.StatefulSet) int {
	if s.Spec.Ordinals == nil {
		return 0
	}
	return int(s.Spec.Ordinals.Start)
}

func replicas(n *int32) int {
	if n == nil {
		return 1
	}
	return max(int(*n), 0)
}

// addPodsOf adds the pods of one object, except those that the limits or quotas of the namespace refuse.
func (t *simulation) addPodsOf(ctx context.Context, obj kind.Object) error {
	if pod, ok := obj.(*corev1.Pod); ok {
		return t.addPods(ctx, []*corev1.Pod{pod}, "", false)
	}
	workload := workloadOf(obj)
	if workload == nil {
		return nil
	}
	if workload.idle != "" {
		t.note(fmt.Sprintf("%s %s/%s %s: it creates no pods", workload.kind, workload.meta.Namespace,
			workload.meta.Name, workload.idle))
		return nil
	}
	if err := t.addOwner(workload); err != nil {
		return err
	}
	var pods []*corev1.Pod
	if workload.daemon {
		for _, n := range t.core.Cache.Refresh().Nodes {
			pod := workload.pod(n.Name)
			pin(&pod.Spec, n.Name)
			if err := t.count(pod); err != nil {
				return err
			}
			pods = append(pods, pod)
		}
	}
	for i := range min(workload.count, t.max+1) {
		pod := workload.pod(strconv.Itoa(workload.first + i))
		if workload.ordinal != nil {
			workload.ordinal(pod, workload.first+i)
		}
		if err := t.count(pod); err != nil {
			return err
		}
		pods = append(pods, pod)
	}
	return t.addPods(ctx, pods, workload.kind+"/"+workload.meta.Name, workload.daemon)
}

// addOwner adds the controller of a workload's pods, by whose selector they spread by default.
func (t *simulation) addOwner(w *workload) (err error) {
	w.owner.SetUID("owner-of-" + w.meta.UID)
	apps := t.source.Informers.Apps().V1()
	switch o := w.owner.(type) {
	case *corev1.ReplicationController:
		_, err = addNew(t.source.Informers.Core().V1().ReplicationControllers().Informer(), o)
	case *appsv1.ReplicaSet:
		_, err = addNew(apps.ReplicaSets().Informer(), o)
	case *appsv1.StatefulSet:
		_, err = addNew(apps.StatefulSets().Informer(), o)
	}
	return err
}

// pod returns a pod of the workload.
func (w *workload) pod(suffix string) *corev1.Pod {
	template := w.template.DeepCopy()
	template.Name = w.meta.Name + "-" + suffix
	template.GenerateName = ""
	template.Namespace = w.meta.Namespace
	if template.Labels == nil {
		template.Labels = map[string]string{}
	}
	maps.Copy(template.Labels, w.labels)
	owner := metav1.OwnerReference{Name: w.owner.GetName(), UID: w.owner.GetUID(), Controller: new(true)}
	switch w.owner.(type) {
	case *corev1.ReplicationController:
		owner.APIVersion = "v1"
		owner.Kind = "ReplicationController"
	case *appsv1.ReplicaSet:
		owner.APIVersion = "apps/v1"
		owner.Kind = "ReplicaSet"
	case *appsv1.StatefulSet:
		owner.APIVersion = "apps/v1"
		owner.Kind = "StatefulSet"
	case *appsv1.DaemonSet:
		owner.APIVersion = "apps/v1"
		owner.Kind = "DaemonSet"
	case *batchv1.Job:
		owner.APIVersion = "batch/v1"
		owner.Kind = "Job"
	}
	template.OwnerReferences = []metav1.OwnerReference{owner}
	return &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
}

// addPods adds pods of a workload ("Deployment/web"; empty: of none).
func (t *simulation) addPods(ctx context.Context, pods []*corev1.Pod, of string, daemon bool) error {
	if len(t.work)+len(pods) > t.max {
		return &TooManyError{"pods", t.max}
	}
	for _, pod := range pods {
		if err := t.complete(pod); err != nil {
			return err
		}
		limits := t.limits[pod.Namespace]
		why := limits.applyRanges(pod)
		if why == "" && !daemon { // the nodes of a DaemonSet are not known yet
			why = limits.useQuota(pod, "pods")
		}
		if why != "" {
			t.answer.Outcomes = append(t.answer.Outcomes, Outcome{
				Namespace: pod.Namespace,
				Name:      pod.Name,
				Workload:  of,
				Why:       "new",
				Reason:    why,
			})
			continue
		}
		if err := t.addGeneratedClaims(ctx, pod); err != nil {
			return err
		}
		t.add(pod, "new", of)
		t.work[len(t.work)-1].daemon = daemon
	}
	return nil
}

// pin sets the node affinity for one node, and the tolerations of a DaemonSet's pods.
func pin(spec *corev1.PodSpec, node string) {
	field := corev1.NodeSelectorRequirement{
		Key:      metav1.ObjectNameField,
		Operator: corev1.NodeSelectorOpIn,
		Values:   []string{node},
	}
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil || len(required.NodeSelectorTerms) == 0 {
		required = &corev1.NodeSelector{NodeSelectorTerms: make([]corev1.NodeSelectorTerm, 1)}
	}
	for i := range required.NodeSelectorTerms {
		t := &required.NodeSelectorTerms[i]
		t.MatchFields = append(t.MatchFields, field)
	}
	spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = required
	for _, key := range []string{
		corev1.TaintNodeDiskPressure, corev1.TaintNodeMemoryPressure, corev1.TaintNodePIDPressure,
		corev1.TaintNodeUnschedulable,
	} {
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{
			Key:      key,
			Operator: corev1.TolerationOpExists,
			Effect:   corev1.TaintEffectNoSchedule,
		})
	}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{
			Key:      key,
			Operator: corev1.TolerationOpExists,
			Effect:   corev1.TaintEffectNoExecute,
		})
	}
}
