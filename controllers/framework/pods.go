// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Names of the indexes that EnsureIndex adds to the shared pod informer.
const (
	// ByController indexes pods by their controller's UID, and those without one under OrphanKey.
	ByController = "keelson.controller"
	// ByNode indexes pods by spec.nodeName.
	ByNode = "keelson.node"
)

// OrphanKey is the index key of pods without a controller in a namespace.
func OrphanKey(namespace string) string { return "orphan/" + namespace }

// EnsureIndex adds an index to an informer unless it exists.
func EnsureIndex(inf cache.SharedIndexInformer, name string, f cache.IndexFunc) error {
	if _, ok := inf.GetIndexer().GetIndexers()[name]; ok {
		return nil
	}
	if err := inf.AddIndexers(cache.Indexers{name: f}); err != nil {
		return fmt.Errorf("index %s: %w", name, err)
	}
	return nil
}

// IndexByController is ByController's function.
func IndexByController(obj any) ([]string, error) {
	o, ok := obj.(metav1.Object)
	if !ok {
		return nil, nil
	}
	if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
		return []string{string(ref.UID)}, nil
	}
	return []string{OrphanKey(o.GetNamespace())}, nil
}

// IndexByNode is ByNode's function.
func IndexByNode(obj any) ([]string, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok || p.Spec.NodeName == "" {
		return nil, nil
	}
	return []string{p.Spec.NodeName}, nil
}

// PodsOf returns the pods whose controller has this UID.
func PodsOf(ix cache.Indexer, owner types.UID) ([]*corev1.Pod, error) {
	return byIndex[*corev1.Pod](ix, ByController, string(owner))
}

// PodsOn returns the pods bound to a node.
func PodsOn(ix cache.Indexer, node string) ([]*corev1.Pod, error) {
	return byIndex[*corev1.Pod](ix, ByNode, node)
}

func byIndex[T any](ix cache.Indexer, index, value string) ([]T, error) {
	objs, err := ix.ByIndex(index, value)
	if err != nil {
		return nil, err
	}
	out := make([]T, 0, len(objs))
	for _, obj := range objs {
		if o, ok := obj.(T); ok {
			out = append(out, o)
		}
	}
	return out, nil
}
