// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	batchv1 "k8s.io/client-go/kubernetes/typed/batch/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"
	policyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"
	rbacv1 "k8s.io/client-go/kubernetes/typed/rbac/v1"
	schedulingv1 "k8s.io/client-go/kubernetes/typed/scheduling/v1"
	storagev1 "k8s.io/client-go/kubernetes/typed/storage/v1"
)

// Informers returns a new factory of shared informers (resync off unless given). In process they hold the server's own
// objects: an informer begins by a watch that sends the state first, and that watch comes from the source.
func (c *Client) Informers(resync time.Duration, opts ...informers.SharedInformerOption) informers.SharedInformerFactory {
	var cs = c.Interface
	if c.source != nil {
		cs = sharing{c.Interface, c.source}
	}
	return informers.NewSharedInformerFactoryWithOptions(cs, resync, opts...)
}

// sharing is a clientset whose watches of the kinds that agents follow come from a Source. Everything else, and every
// other kind, goes through the in-memory transport, which is the same in all but cost.
type sharing struct {
	kubernetes.Interface
	source Source
}

// watchFunc is one resource's watch in one namespace.
type watchFunc func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)

// group makes the watches of one group and version.
type group struct {
	source  Source
	version schema.GroupVersion
}

func (g group) watch(resource, namespace string) watchFunc {
	return func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
		return g.source.Watch(ctx, g.version.WithResource(resource), namespace, opts)
	}
}

func (s sharing) group(name string) group {
	return group{s.source, schema.GroupVersion{Group: name, Version: "v1"}}
}

// CoreV1 is the core group.
func (s sharing) CoreV1() corev1.CoreV1Interface {
	return coreGroup{s.Interface.CoreV1(), s.group("")}
}

// AppsV1 is apps.
func (s sharing) AppsV1() appsv1.AppsV1Interface {
	return appsGroup{s.Interface.AppsV1(), s.group("apps")}
}

// BatchV1 is batch.
func (s sharing) BatchV1() batchv1.BatchV1Interface {
	return batchGroup{s.Interface.BatchV1(), s.group("batch")}
}

// CoordinationV1 is coordination.k8s.io.
func (s sharing) CoordinationV1() coordinationv1.CoordinationV1Interface {
	return coordinationGroup{s.Interface.CoordinationV1(), s.group("coordination.k8s.io")}
}

// DiscoveryV1 is discovery.k8s.io.
func (s sharing) DiscoveryV1() discoveryv1.DiscoveryV1Interface {
	return discoveryGroup{s.Interface.DiscoveryV1(), s.group("discovery.k8s.io")}
}

// PolicyV1 is policy.
func (s sharing) PolicyV1() policyv1.PolicyV1Interface {
	return policyGroup{s.Interface.PolicyV1(), s.group("policy")}
}

// RbacV1 is rbac.authorization.k8s.io.
func (s sharing) RbacV1() rbacv1.RbacV1Interface {
	return rbacGroup{s.Interface.RbacV1(), s.group("rbac.authorization.k8s.io")}
}

// SchedulingV1 is scheduling.k8s.io.
func (s sharing) SchedulingV1() schedulingv1.SchedulingV1Interface {
	return schedulingGroup{s.Interface.SchedulingV1(), s.group("scheduling.k8s.io")}
}

// StorageV1 is storage.k8s.io.
func (s sharing) StorageV1() storagev1.StorageV1Interface {
	return storageGroup{s.Interface.StorageV1(), s.group("storage.k8s.io")}
}
