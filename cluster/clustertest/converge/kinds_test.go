// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"math/rand/v2"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/core/localvolume"
	"keelson/api/metrics"
)

const (
	namespace = "default"
	nodeCount = 3
	// volumes is the name of the class of local volumes.
	volumes = "local"
)

// maker makes an object of n pods; its choices are rng's.
type maker func(rng *rand.Rand, name string, n int32, t corev1.PodTemplateSpec) metav1.Object

// kind of workload that users create.
type kind struct {
	resource string
	weight   int
	gvr      schema.GroupVersionResource
	make     maker
}

var kinds = []kind{
	{"deployments", 4, appsv1.SchemeGroupVersion.WithResource("deployments"), deployment},
	{"replicasets", 2, appsv1.SchemeGroupVersion.WithResource("replicasets"), replicaSet},
	{
		"replicationcontrollers", 1, corev1.SchemeGroupVersion.WithResource("replicationcontrollers"),
		replicationController,
	},
	{"statefulsets", 4, appsv1.SchemeGroupVersion.WithResource("statefulsets"), statefulSet},
	{"daemonsets", 1, appsv1.SchemeGroupVersion.WithResource("daemonsets"), daemonSet},
	{"jobs", 2, batchv1.SchemeGroupVersion.WithResource("jobs"), job},
	{"cronjobs", 1, batchv1.SchemeGroupVersion.WithResource("cronjobs"), cronJob},
}

func apps(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: "apps/v1", Kind: kind}
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: namespace} }

func deployment(_ *rand.Rand, name string, n int32, t corev1.PodTemplateSpec) metav1.Object {
	return &appsv1.Deployment{
		TypeMeta:   apps("Deployment"),
		ObjectMeta: named(name),
		Spec: appsv1.DeploymentSpec{
			Replicas: &n,
			Selector: selectorOf(name),
			Template: t,
		},
	}
}

func replicaSet(_ *rand.Rand, name string, n int32, t corev1.PodTemplateSpec) metav1.Object {
	return &appsv1.ReplicaSet{
		TypeMeta:   apps("ReplicaSet"),
		ObjectMeta: named(name),
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &n,
			Selector: selectorOf(name),
			Template: t,
		},
	}
}

func replicationController(_ *rand.Rand, name string, n int32, t corev1.PodTemplateSpec) metav1.Object {
	return &corev1.ReplicationController{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ReplicationController"},
		ObjectMeta: named(name),
		Spec: corev1.ReplicationControllerSpec{
			Replicas: &n,
			Selector: selectorOf(name).MatchLabels,
			Template: &t,
		},
	}
}

// statefulSet has volumes every other time, which go with their pods or with the set, or stay; that of the name v has
// some that go.
func statefulSet(rng *rand.Rand, name string, n int32, t corev1.PodTemplateSpec) metav1.Object {
	set := &appsv1.StatefulSet{
		TypeMeta:   apps("StatefulSet"),
		ObjectMeta: named(name),
		Spec: appsv1.StatefulSetSpec{
			Replicas:    &n,
			Selector:    selectorOf(name),
			Template:    t,
			ServiceName: "x",
		},
	}
	if name != "v" && rng.IntN(2) == 0 {
		return set
	}
	class := volumes
	set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{
		ObjectMeta: metav1.ObjectMeta{Name: "v"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}}
	policies := []appsv1.PersistentVolumeClaimRetentionPolicyType{
		appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
	}
	set.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
		WhenDeleted: policies[rng.IntN(2)],
		WhenScaled:  policies[rng.IntN(2)],
	}
	if name == "v" {
		set.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	}
	return set
}

func daemonSet(_ *rand.Rand, name string, _ int32, t corev1.PodTemplateSpec) metav1.Object {
	return &appsv1.DaemonSet{
		TypeMeta:   apps("DaemonSet"),
		ObjectMeta: named(name),
		Spec: appsv1.DaemonSetSpec{
			Selector: selectorOf(name),
			Template: t,
		},
	}
}

// toCompletion makes the template's pods end by themselves.
func toCompletion(n int32, t corev1.PodTemplateSpec) batchv1.JobSpec {
	t.Labels = map[string]string{"run": t.Labels["app"]}
	t.Annotations = map[string]string{"keelson.dev/fake-run-for": "20s"}
	t.Spec.RestartPolicy = corev1.RestartPolicyNever
	completions := n + 1
	limit := int32(1000)
	return batchv1.JobSpec{
		Completions:  &completions,
		Parallelism:  &n,
		BackoffLimit: &limit,
		Template:     t,
	}
}

func job(_ *rand.Rand, name string, n int32, t corev1.PodTemplateSpec) metav1.Object {
	return &batchv1.Job{
		TypeMeta: metav1.TypeMeta{
			APIVersion: "batch/v1",
			Kind:       "Job",
		},
		ObjectMeta: named(name),
		Spec:       toCompletion(n, t),
	}
}

// cronJob makes jobs every minute until somebody suspends it.
func cronJob(rng *rand.Rand, name string, _ int32, template corev1.PodTemplateSpec) metav1.Object {
	policies := []batchv1.ConcurrencyPolicy{
		batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent,
	}
	done := int32(2)
	failed := int32(1)
	return &batchv1.CronJob{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "CronJob"},
		ObjectMeta: named(name),
		Spec: batchv1.CronJobSpec{
			Schedule:                   "* * * * *",
			ConcurrencyPolicy:          policies[rng.IntN(3)],
			SuccessfulJobsHistoryLimit: &done,
			FailedJobsHistoryLimit:     &failed,
			JobTemplate:                batchv1.JobTemplateSpec{Spec: toCompletion(1, template)},
		},
	}
}

func volumeClass() *storagev1.StorageClass {
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	return &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: volumes},
		Provisioner:       localvolume.Provisioner,
		VolumeBindingMode: &wait,
	}
}

func selectorOf(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
}

func templateOf(name string) corev1.PodTemplateSpec {
	grace := int64(1)
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{"app": name},
			Annotations: map[string]string{
				metrics.AnnotationCPU: busy,
			},
		},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{
				{
					Name:  "c",
					Image: "x:1",
					Resources: corev1.ResourceRequirements{
						Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
					},
				},
			},
		},
	}
}
