// SPDX-License-Identifier: Apache-2.0

package podsapi

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// event is what a watcher gets. pod is nil at the end of the first pods.
type event struct {
	kind podsv1alpha1.EventType
	pod  *corev1.Pod
}

// compare returns what has changed since a watcher was sent the pods in before, and the current pods by UID. The event
// of a deleted pod has its names only, as in Kubernetes.
func compare(before map[types.UID]*corev1.Pod, pods []*corev1.Pod) (changes []event, now map[types.UID]*corev1.Pod) {
	now = make(map[types.UID]*corev1.Pod, len(pods))
	for _, p := range pods {
		now[p.UID] = p
		old, known := before[p.UID]
		switch {
		case !known:
			changes = append(changes, event{podsv1alpha1.EventType_ADDED, p})
		case old != p && !equality.Semantic.DeepEqual(old, p):
			changes = append(changes, event{podsv1alpha1.EventType_MODIFIED, p})
		}
	}
	for uid, p := range before {
		if now[uid] == nil {
			gone := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: p.Namespace,
				Name:      p.Name,
				UID:       p.UID,
			}}
			changes = append(changes, event{podsv1alpha1.EventType_DELETED, gone})
		}
	}
	return changes, now
}
