// SPDX-License-Identifier: Apache-2.0

// Package claims is the index of pods by the PersistentVolumeClaims of their volumes, shared by the controllers of
// claims. It writes nothing.
package claims

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/api/core/pod"
)

// ByClaim indexes pods by "namespace/claim".
const ByClaim = "keelson.claim"

// IndexByClaim is ByClaim's function.
func IndexByClaim(obj any) ([]string, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, nil
	}
	names := pod.Claims(p)
	for i := range names {
		names[i] = p.Namespace + "/" + names[i]
	}
	return names, nil
}

// Pods returns the cached pods that use a claim.
func Pods(ix cache.Indexer, namespace, claim string) ([]*corev1.Pod, error) {
	objs, err := ix.ByIndex(ByClaim, namespace+"/"+claim)
	if err != nil {
		return nil, err
	}
	var out []*corev1.Pod
	for _, o := range objs {
		if p, ok := o.(*corev1.Pod); ok {
			out = append(out, p)
		}
	}
	return out, nil
}
