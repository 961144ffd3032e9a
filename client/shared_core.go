// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// The kinds whose informers share the server's objects in the core group: each is the usual client with the source's watch.

type (
	coreGroup struct {
		corev1.CoreV1Interface
		g group
	}
	sharedPods struct {
		corev1.PodInterface
		watch watchFunc
	}
	sharedNodes struct {
		corev1.NodeInterface
		watch watchFunc
	}
	sharedNamespaces struct {
		corev1.NamespaceInterface
		watch watchFunc
	}
	sharedServices struct {
		corev1.ServiceInterface
		watch watchFunc
	}
	sharedEndpoints struct {
		corev1.EndpointsInterface
		watch watchFunc
	}
	sharedConfigMaps struct {
		corev1.ConfigMapInterface
		watch watchFunc
	}
	sharedSecrets struct {
		corev1.SecretInterface
		watch watchFunc
	}
	sharedServiceAccounts struct {
		corev1.ServiceAccountInterface
		watch watchFunc
	}
	sharedReplicationControllers struct {
		corev1.ReplicationControllerInterface
		watch watchFunc
	}
	sharedLimitRanges struct {
		corev1.LimitRangeInterface
		watch watchFunc
	}
	sharedResourceQuotas struct {
		corev1.ResourceQuotaInterface
		watch watchFunc
	}
	sharedPersistentVolumes struct {
		corev1.PersistentVolumeInterface
		watch watchFunc
	}
	sharedPersistentVolumeClaims struct {
		corev1.PersistentVolumeClaimInterface
		watch watchFunc
	}
)

func (c coreGroup) Pods(ns string) corev1.PodInterface {
	return sharedPods{c.CoreV1Interface.Pods(ns), c.g.watch("pods", ns)}
}

func (c sharedPods) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c coreGroup) Nodes() corev1.NodeInterface {
	return sharedNodes{c.CoreV1Interface.Nodes(), c.g.watch("nodes", "")}
}

func (c sharedNodes) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c coreGroup) Namespaces() corev1.NamespaceInterface {
	return sharedNamespaces{c.CoreV1Interface.Namespaces(), c.g.watch("namespaces", "")}
}

func (c sharedNamespaces) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c coreGroup) Services(ns string) corev1.ServiceInterface {
	return sharedServices{c.CoreV1Interface.Services(ns), c.g.watch("services", ns)}
}

func (c sharedServices) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c coreGroup) Endpoints(ns string) corev1.EndpointsInterface {
	return sharedEndpoints{c.CoreV1Interface.Endpoints(ns), c.g.watch("endpoints", ns)}
}

func (c sharedEndpoints) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c coreGroup) ConfigMaps(ns string) corev1.ConfigMapInterface {
	return sharedConfigMaps{c.CoreV1Interface.ConfigMaps(ns), c.g.watch("configmaps", ns)}
}

func (c sharedConfigMaps) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c coreGroup) Secrets(ns string) corev1.SecretInterface {
	return sharedSecrets{c.CoreV1Interface.Secrets(ns), c.g.watch("secrets", ns)}
}

func (c sharedSecrets) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c coreGroup) ServiceAccounts(ns string) corev1.ServiceAccountInterface {
	return sharedServiceAccounts{c.CoreV1Interface.ServiceAccounts(ns), c.g.watch("serviceaccounts", ns)}
}

func (c sharedServiceAccounts) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c coreGroup) ReplicationControllers(ns string) corev1.ReplicationControllerInterface {
	return sharedReplicationControllers{c.CoreV1Interface.ReplicationControllers(ns), c.g.watch("replicationcontrollers", ns)}
}

func (c sharedReplicationControllers) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c coreGroup) LimitRanges(ns string) corev1.LimitRangeInterface {
	return sharedLimitRanges{c.CoreV1Interface.LimitRanges(ns), c.g.watch("limitranges", ns)}
}

func (c sharedLimitRanges) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c coreGroup) ResourceQuotas(ns string) corev1.ResourceQuotaInterface {
	return sharedResourceQuotas{c.CoreV1Interface.ResourceQuotas(ns), c.g.watch("resourcequotas", ns)}
}

func (c sharedResourceQuotas) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c coreGroup) PersistentVolumes() corev1.PersistentVolumeInterface {
	return sharedPersistentVolumes{c.CoreV1Interface.PersistentVolumes(), c.g.watch("persistentvolumes", "")}
}

func (c sharedPersistentVolumes) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}

func (c coreGroup) PersistentVolumeClaims(ns string) corev1.PersistentVolumeClaimInterface {
	return sharedPersistentVolumeClaims{c.CoreV1Interface.PersistentVolumeClaims(ns), c.g.watch("persistentvolumeclaims", ns)}
}

func (c sharedPersistentVolumeClaims) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.watch(ctx, o)
}
