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
func (k *Kubelet) staticPods(ctx context.Context, wg *sync.WaitGroup) (<-chan error, error) {
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
func (k *Kubelet) applyStatic(ctx context.Context, dir *staticpod.Dir, pods []*corev1.Pod) {
	want := map[string]*corev1.Pod{}
	for _, p := range pods {
		want[string(p.UID)] = p
	}
	k.mu.Lock()
	var going []string
	for uid, e := range k.workers {
		if e.static && want[uid] == nil {
			going = append(going, uid)
		}
	}
	k.mu.Unlock()
	for _, uid := range going {
		if w := k.worker(uid); w != nil {
			w.Notify(pod.Gone)
		}
	}
	for _, pod := range pods {
		if k.worker(string(pod.UID)) != nil || k.staticWorker(pod) != nil {
			continue
		}
		k.cfg.Marks.Emit(event.Event{
			Step:      event.StepSeen,
			Component: k.component,
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
		k.updateWorker(ctx, pod)
	}
}

func (k *Kubelet) nodeOwnerReference() []metav1.OwnerReference {
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
