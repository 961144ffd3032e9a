// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/podinfo"
	"keelson/lib/signal"
)

// News says what has changed around a pod. Several can be combined.
type News uint8

// The news. Without any of them, Nothing, the worker decides again from what it knows.
const (
	Nothing News = 0
	// RuntimeChanged: the pod's sandboxes or containers have changed in the runtime.
	RuntimeChanged News = 1 << iota
	// NodeChanged: something of the runtime that concerns no single pod has changed. A failed sandbox is retried at
	// once.
	NodeChanged
	// RefsChanged: a config map or secret of the pod has changed, or the wall clock, by which its tokens expire.
	RefsChanged
	// Gone: neither the API nor a file has the pod any more. This stays so.
	Gone
)

// inbox is what other goroutines pass to a worker: informers, the runtime's events, and the worker's own actions. The
// worker takes it at the beginning of each round. Nothing waits for the worker here.
type inbox struct {
	wake signal.Signal

	mu     sync.Mutex
	pod    *corev1.Pod // as wanted, in its newest version; immutable
	mirror *corev1.Pod // the mirror pod of a static pod; nil: the API has none
	news   News        // since the last round; Gone stays
	ended  []result    // actions that ended since the last round
}

// result is an action that ended. apply runs on the worker's goroutine.
type result struct {
	key   string
	apply func()
}

// view is a consistent snapshot of a pod's objects.
type view struct {
	pod    *corev1.Pod // with the API's status: for a static pod that of its mirror pod
	mirror *corev1.Pod
	gone   bool
}

// notify adds news and wakes up the worker.
func (i *inbox) notify(n News) {
	i.keep(n)
	i.wake.Notify()
}

// keep adds news that the worker looks at in its next round, whenever that is.
func (i *inbox) keep(n News) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.news |= n
}

// update takes a version of the pod, or of its mirror pod, unless it has a newer one.
func (i *inbox) update(p *corev1.Pod) {
	i.mu.Lock()
	current := &i.pod
	if podinfo.Mirror(p) {
		current = &i.mirror
	}
	if newer(p, *current) {
		*current = p
	}
	i.mu.Unlock()
	i.wake.Notify()
}

// deleted takes the last version of a pod, or of its mirror pod, that the API no longer has.
func (i *inbox) deleted(p *corev1.Pod) {
	if !podinfo.Mirror(p) {
		i.update(p) // its last version may say how long it may take to stop
		i.notify(Gone)
		return
	}
	i.mu.Lock()
	if i.mirror != nil && i.mirror.UID == p.UID {
		i.mirror = nil
	}
	i.mu.Unlock()
	i.wake.Notify()
}

// answered takes the API's answer to a write of the status. A mirror pod that was deleted in the meantime stays so.
func (i *inbox) answered(p *corev1.Pod) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, current := range []**corev1.Pod{&i.pod, &i.mirror} {
		if *current != nil && (*current).UID == p.UID && newer(p, *current) {
			*current = p
		}
	}
}

// finish takes the result of an action. Its effects are read from the runtime.
func (i *inbox) finish(r result) {
	i.mu.Lock()
	i.ended = append(i.ended, r)
	i.mu.Unlock()
	i.notify(RuntimeChanged)
}

// take returns and removes the news and the results since the last round.
func (i *inbox) take() (News, []result) {
	i.mu.Lock()
	defer i.mu.Unlock()
	news := i.news
	ended := i.ended
	i.news &= Gone
	i.ended = nil
	return news, ended
}

// view returns the objects as they are now.
func (i *inbox) view() view {
	i.mu.Lock()
	defer i.mu.Unlock()
	p := i.pod
	if i.mirror != nil {
		withStatus := *p
		withStatus.Status = i.mirror.Status
		p = &withStatus
	}
	return view{pod: p, mirror: i.mirror, gone: i.news&Gone != 0}
}

// newer reports whether a is not an older version of the same pod than b.
func newer(a, b *corev1.Pod) bool {
	if b == nil || a.UID != b.UID {
		return true
	}
	x, errX := strconv.ParseUint(a.ResourceVersion, 10, 64)
	y, errY := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return errX != nil || errY != nil || x >= y
}
