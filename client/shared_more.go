// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	appsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	batchv1 "k8s.io/client-go/kubernetes/typed/batch/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	discoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"
	policyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"
	rbacv1 "k8s.io/client-go/kubernetes/typed/rbac/v1"
	schedulingv1 "k8s.io/client-go/kubernetes/typed/scheduling/v1"
	storagev1 "k8s.io/client-go/kubernetes/typed/storage/v1"
)

// The kinds whose informers share the server's objects in the other groups: each is the usual client with the source's watch.

type (
	appsGroup struct {
		appsv1.AppsV1Interface
		g group
	}
	sharedReplicaSets struct {
		appsv1.ReplicaSetInterface
		watch watchFunc
	}
	sharedDeployments struct {
		appsv1.DeploymentInterface
		watch watchFunc
	}
	sharedDaemonSets struct {
		appsv1.DaemonSetInterface
		watch watchFunc
	}
	sharedStatefulSets struct {
		appsv1.StatefulSetInterface
		watch watchFunc
	}
	sharedControllerRevisions struct {
		appsv1.ControllerRevisionInterface
		watch watchFunc
	}
)

func (c appsGroup) ReplicaSets(ns string) appsv1.ReplicaSetInterface {
	return sharedReplicaSets{c.AppsV1Interface.ReplicaSets(ns), c.g.watch("replicasets", ns)}
}

func (c sharedReplicaSets) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c appsGroup) Deployments(ns string) appsv1.DeploymentInterface {
	return sharedDeployments{c.AppsV1Interface.Deployments(ns), c.g.watch("deployments", ns)}
}

func (c sharedDeployments) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c appsGroup) DaemonSets(ns string) appsv1.DaemonSetInterface {
	return sharedDaemonSets{c.AppsV1Interface.DaemonSets(ns), c.g.watch("daemonsets", ns)}
}

func (c sharedDaemonSets) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c appsGroup) StatefulSets(ns string) appsv1.StatefulSetInterface {
	return sharedStatefulSets{c.AppsV1Interface.StatefulSets(ns), c.g.watch("statefulsets", ns)}
}

func (c sharedStatefulSets) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c appsGroup) ControllerRevisions(ns string) appsv1.ControllerRevisionInterface {
	return sharedControllerRevisions{c.AppsV1Interface.ControllerRevisions(ns), c.g.watch("controllerrevisions", ns)}
}

func (c sharedControllerRevisions) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

type (
	batchGroup struct {
		batchv1.BatchV1Interface
		g group
	}
	sharedJobs struct {
		batchv1.JobInterface
		watch watchFunc
	}
	sharedCronJobs struct {
		batchv1.CronJobInterface
		watch watchFunc
	}
)

func (c batchGroup) Jobs(ns string) batchv1.JobInterface {
	return sharedJobs{c.BatchV1Interface.Jobs(ns), c.g.watch("jobs", ns)}
}

func (c sharedJobs) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c batchGroup) CronJobs(ns string) batchv1.CronJobInterface {
	return sharedCronJobs{c.BatchV1Interface.CronJobs(ns), c.g.watch("cronjobs", ns)}
}

func (c sharedCronJobs) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

type (
	coordinationGroup struct {
		coordinationv1.CoordinationV1Interface
		g group
	}
	sharedLeases struct {
		coordinationv1.LeaseInterface
		watch watchFunc
	}
)

func (c coordinationGroup) Leases(ns string) coordinationv1.LeaseInterface {
	return sharedLeases{c.CoordinationV1Interface.Leases(ns), c.g.watch("leases", ns)}
}

func (c sharedLeases) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

type (
	discoveryGroup struct {
		discoveryv1.DiscoveryV1Interface
		g group
	}
	sharedEndpointSlices struct {
		discoveryv1.EndpointSliceInterface
		watch watchFunc
	}
)

func (c discoveryGroup) EndpointSlices(ns string) discoveryv1.EndpointSliceInterface {
	return sharedEndpointSlices{c.DiscoveryV1Interface.EndpointSlices(ns), c.g.watch("endpointslices", ns)}
}

func (c sharedEndpointSlices) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

type (
	policyGroup struct {
		policyv1.PolicyV1Interface
		g group
	}
	sharedPodDisruptionBudgets struct {
		policyv1.PodDisruptionBudgetInterface
		watch watchFunc
	}
)

func (c policyGroup) PodDisruptionBudgets(ns string) policyv1.PodDisruptionBudgetInterface {
	return sharedPodDisruptionBudgets{c.PolicyV1Interface.PodDisruptionBudgets(ns), c.g.watch("poddisruptionbudgets", ns)}
}

func (c sharedPodDisruptionBudgets) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

type (
	rbacGroup struct {
		rbacv1.RbacV1Interface
		g group
	}
	sharedRoles struct {
		rbacv1.RoleInterface
		watch watchFunc
	}
	sharedRoleBindings struct {
		rbacv1.RoleBindingInterface
		watch watchFunc
	}
	sharedClusterRoles struct {
		rbacv1.ClusterRoleInterface
		watch watchFunc
	}
	sharedClusterRoleBindings struct {
		rbacv1.ClusterRoleBindingInterface
		watch watchFunc
	}
)

func (c rbacGroup) Roles(ns string) rbacv1.RoleInterface {
	return sharedRoles{c.RbacV1Interface.Roles(ns), c.g.watch("roles", ns)}
}

func (c sharedRoles) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c rbacGroup) RoleBindings(ns string) rbacv1.RoleBindingInterface {
	return sharedRoleBindings{c.RbacV1Interface.RoleBindings(ns), c.g.watch("rolebindings", ns)}
}

func (c sharedRoleBindings) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c rbacGroup) ClusterRoles() rbacv1.ClusterRoleInterface {
	return sharedClusterRoles{c.RbacV1Interface.ClusterRoles(), c.g.watch("clusterroles", "")}
}

func (c sharedClusterRoles) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c rbacGroup) ClusterRoleBindings() rbacv1.ClusterRoleBindingInterface {
	return sharedClusterRoleBindings{c.RbacV1Interface.ClusterRoleBindings(), c.g.watch("clusterrolebindings", "")}
}

func (c sharedClusterRoleBindings) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

type (
	schedulingGroup struct {
		schedulingv1.SchedulingV1Interface
		g group
	}
	sharedPriorityClasses struct {
		schedulingv1.PriorityClassInterface
		watch watchFunc
	}
)

func (c schedulingGroup) PriorityClasses() schedulingv1.PriorityClassInterface {
	return sharedPriorityClasses{c.SchedulingV1Interface.PriorityClasses(), c.g.watch("priorityclasses", "")}
}

func (c sharedPriorityClasses) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

type (
	storageGroup struct {
		storagev1.StorageV1Interface
		g group
	}
	sharedStorageClasses struct {
		storagev1.StorageClassInterface
		watch watchFunc
	}
	sharedCSINodes struct {
		storagev1.CSINodeInterface
		watch watchFunc
	}
	sharedCSIDrivers struct {
		storagev1.CSIDriverInterface
		watch watchFunc
	}
	sharedVolumeAttachments struct {
		storagev1.VolumeAttachmentInterface
		watch watchFunc
	}
)

func (c storageGroup) StorageClasses() storagev1.StorageClassInterface {
	return sharedStorageClasses{c.StorageV1Interface.StorageClasses(), c.g.watch("storageclasses", "")}
}

func (c sharedStorageClasses) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c storageGroup) CSINodes() storagev1.CSINodeInterface {
	return sharedCSINodes{c.StorageV1Interface.CSINodes(), c.g.watch("csinodes", "")}
}

func (c sharedCSINodes) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c storageGroup) CSIDrivers() storagev1.CSIDriverInterface {
	return sharedCSIDrivers{c.StorageV1Interface.CSIDrivers(), c.g.watch("csidrivers", "")}
}

func (c sharedCSIDrivers) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c storageGroup) VolumeAttachments() storagev1.VolumeAttachmentInterface {
	return sharedVolumeAttachments{c.StorageV1Interface.VolumeAttachments(), c.g.watch("volumeattachments", "")}
}

func (c sharedVolumeAttachments) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}
