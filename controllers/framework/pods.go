// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Names of the indices that EnsureIndex adds to the shared pod informer.
const (
	// ByController finds pods by their controller's UID, and those without one under OrphanKey.
	ByController = "keelson.controller"
	// ByNode finds pods by spec.nodeName.
	ByNode = "keelson.node"
)

// OrphanKey is where ByController files the pods of a namespace that have no controller.
func OrphanKey(namespace string) string { return "orphan/" + namespace }

// EnsureIndex adds an index to an informer unless another controller has done so already.
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
	return podsAt(ix, ByController, string(owner))
}

// Orphans returns the pods of a namespace that have no controller.
func Orphans(ix cache.Indexer, namespace string) ([]*corev1.Pod, error) {
	return podsAt(ix, ByController, OrphanKey(namespace))
}

// PodsOn returns the pods bound to a node.
func PodsOn(ix cache.Indexer, node string) ([]*corev1.Pod, error) { return podsAt(ix, ByNode, node) }

func podsAt(ix cache.Indexer, index, value string) ([]*corev1.Pod, error) {
	objs, err := ix.ByIndex(index, value)
	if err != nil {
		return nil, err
	}
	pods := make([]*corev1.Pod, 0, len(objs))
	for _, o := range objs {
		if p, ok := o.(*corev1.Pod); ok {
			pods = append(pods, p)
		}
	}
	return pods, nil
}

// Terminal reports whether the pod's containers have all ended for good.
func Terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// Active pods are neither terminal nor being deleted.
func Active(p *corev1.Pod) bool { return !Terminal(p) && p.DeletionTimestamp == nil }

// Condition returns the pod's condition of a type, or nil. It is part of p: do not modify it.
func Condition(p *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// Ready reports the Ready condition.
func Ready(p *corev1.Pod) bool {
	c := Condition(p, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// Available reports whether p has been ready for minReady; if it is ready but not yet available, wait says how long it still takes.
func Available(p *corev1.Pod, minReady time.Duration, now time.Time) (ok bool, wait time.Duration) {
	if !Ready(p) {
		return false, 0
	}
	if minReady == 0 {
		return true, 0
	}
	since := Condition(p, corev1.PodReady).LastTransitionTime
	if since.IsZero() {
		return false, 0
	}
	if left := since.Add(minReady).Sub(now); left > 0 {
		return false, left
	}
	return true, 0
}
