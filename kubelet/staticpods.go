// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/event"
	"keelson/kubelet/pod"
	"keelson/kubelet/staticpod"
)

// staticPods starts the static pods and watches their files. The channel gets an error when the watch fails.
func (k *podSync) staticPods(ctx context.Context, wg *sync.WaitGroup) (<-chan error, error) {
	failed := make(chan error, 1)
	if k.cfg.StaticPodDir == "" {
		return failed, nil
	}
	dir, err := staticpod.Open(k.cfg.StaticPodDir, k.cfg.NodeName, k.cfg.Log)
	if err != nil {
		return nil, err
	}
	k.applyStatic(ctx, dir, dir.Read())
	wg.Go(func() {
		if err := dir.Watch(ctx, k.staticGone.C(), func(pods []*corev1.Pod) {
			k.applyStatic(ctx, dir, pods)
		}); err != nil && ctx.Err() == nil {
			failed <- err
		}
	})
	return failed, nil
}

// applyStatic makes the static pods those given. A pod whose file changed is another pod: the old one ends first, and
// so does one whose file was away for a moment. It is called again when a static pod is gone.
func (k *podSync) applyStatic(ctx context.Context, dir *staticpod.Dir, pods []*corev1.Pod) {
	want := map[string]bool{}
	for _, p := range pods {
		want[string(p.UID)] = true
	}
	for _, w := range k.workers.staticBut(want) {
		w.Notify(pod.Gone)
	}
	for _, pod := range pods {
		if k.workers.find(string(pod.UID)) != nil || k.workers.findStatic(pod) != nil {
			continue
		}
		k.cfg.Marks.Emit(event.Event{
			Step:      event.StepSeen,
			Component: k.cfg.component(),
			At:        time.Now(),
			Subject: event.Subject{
				Resource:  "pods",
				Namespace: pod.Namespace,
				Name:      pod.Name,
				UID:       string(pod.UID),
			},
			Detail: &event.Seen{Source: "file", File: dir.File(pod.UID)},
		})
		pod = pod.DeepCopy()
		pod.OwnerReferences = k.nodeOwnerReference()
		k.update(ctx, pod)
	}
}

func (k *podSync) nodeOwnerReference() []metav1.OwnerReference {
	n := k.node.Node()
	if n == nil {
		return nil
	}
	yes := true
	return []metav1.OwnerReference{{
		APIVersion: "v1",
		Kind:       "Node",
		Name:       n.Name,
		UID:        n.UID,
		Controller: &yes,
	}}
}
