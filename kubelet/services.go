// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// services has the cluster's Services, for the environment of containers.
type services struct{ informer cache.SharedIndexInformer }

func newServices(api kubernetes.Interface) services {
	return services{
		informer: coreinformers.NewServiceInformer(api, metav1.NamespaceAll, 0, cache.Indexers{
			cache.NamespaceIndex: cache.MetaNamespaceIndexFunc,
		}),
	}
}

func (s services) run(ctx context.Context) { s.informer.RunWithContext(ctx) }

func (s services) waitForSync(ctx context.Context) bool {
	return cache.WaitFor(ctx, "", s.informer.HasSyncedChecker())
}

// inNamespace returns the services whose variables a pod of the namespace sees.
func (s services) inNamespace(namespace string) []*corev1.Service {
	l := listers.NewServiceLister(s.informer.GetIndexer())
	out, err := l.Services(namespace).List(labels.Everything())
	if err != nil {
		return nil // an indexer's list does not fail
	}
	if namespace != metav1.NamespaceDefault {
		if api, err := l.Services(metav1.NamespaceDefault).Get("kubernetes"); err == nil {
			out = append(out, api)
		}
	}
	return out
}
