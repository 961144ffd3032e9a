// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	podkind "keelson/api/core/pod"
	"keelson/kubelet/pod"
	"keelson/kubelet/podinfo"
)

// workers is the table of the node's pod workers. It is made before the parts of the kubelet that notify workers or
// look at their pods, and podSync fills it.
type workers struct {
	mu       sync.Mutex
	byUID    map[string]*pod.Worker
	static   map[string]string // static pods: namespace/name -> uid
	stopping bool
	complete bool          // the API and the files have been read once
	changed  chan struct{} // closed when a pod comes, goes or has a new version
	running  sync.WaitGroup
}

func newWorkers() *workers {
	return &workers{
		byUID:   map[string]*pod.Worker{},
		static:  map[string]string{},
		changed: make(chan struct{}),
	}
}

// touch wakes those that follow the pods.
func (t *workers) touch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.touchLocked()
}

func (t *workers) touchLocked() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// setComplete records that all pods of the API and of files have a worker.
func (t *workers) setComplete() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.complete = true
}

// find returns the worker of a pod; nil: there is none.
func (t *workers) find(uid string) *pod.Worker {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byUID[uid]
}

// findStatic returns the worker of the static pod of this name; nil: there is none.
func (t *workers) findStatic(p *corev1.Pod) *pod.Worker {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byUID[t.static[p.Namespace+"/"+p.Name]]
}

// of returns the worker of an object of the API, for a mirror pod that of its static pod; nil: there is
// none.
func (t *workers) of(p *corev1.Pod) *pod.Worker {
	if podinfo.Mirror(p) {
		return t.findStatic(p)
	}
	return t.find(string(p.UID))
}

// all returns the workers.
func (t *workers) all() []*pod.Worker {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*pod.Worker, 0, len(t.byUID))
	for _, w := range t.byUID {
		out = append(out, w)
	}
	return out
}

// notify passes news to the worker of a pod, if there is one.
func (t *workers) notify(uid string, n pod.News) {
	if w := t.find(uid); w != nil {
		w.Notify(n)
	}
}

// notifyAll passes news to all workers.
func (t *workers) notifyAll(n pod.News) {
	for _, w := range t.all() {
		w.Notify(n)
	}
}

// notifyRefs is called when a config map, secret or claim of a pod has changed.
func (t *workers) notifyRefs(uid string) { t.notify(uid, pod.RefsChanged) }

// update passes a pod to its worker, and begins a new worker for a new pod. gone is called when nothing is left of that
// pod. The worker of a kubelet that stops is not begun.
func (t *workers) update(ctx context.Context, env *pod.Env, p *corev1.Pod, gone func()) (begun bool) {
	uid := string(p.UID)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopping {
		return false
	}
	defer t.touchLocked()
	if w := t.byUID[uid]; w != nil {
		w.Update(p)
		return false
	}
	w := pod.New(env, p, time.Now())
	t.byUID[uid] = w
	if podinfo.Static(p) {
		t.static[p.Namespace+"/"+p.Name] = uid
	}
	t.running.Go(func() { // ends with ctx, or when nothing is left of the pod
		if w.Run(ctx) {
			t.remove(uid, p)
			gone()
		}
	})
	return true
}

func (t *workers) remove(uid string, p *corev1.Pod) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.touchLocked()
	delete(t.byUID, uid)
	if name := p.Namespace + "/" + p.Name; t.static[name] == uid {
		delete(t.static, name)
	}
}

// staticBut returns the workers of the static pods whose uids are not among those given.
func (t *workers) staticBut(keep map[string]bool) []*pod.Worker {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*pod.Worker
	for _, uid := range t.static {
		if !keep[uid] {
			out = append(out, t.byUID[uid])
		}
	}
	return out
}

// stop ends all workers by cancel, and waits for them. No more are begun. Containers keep running.
func (t *workers) stop(cancel context.CancelFunc) {
	t.mu.Lock()
	t.stopping = true
	t.mu.Unlock()
	cancel()
	t.running.Wait()
}

// Find returns the pod of this name, the living one when a name is taken twice. A static pod is found by its mirror's
// uid too.
func (t *workers) Find(namespace, name, uid string) *corev1.Pod {
	var found *corev1.Pod
	for _, p := range t.All() {
		if p.Namespace != namespace || p.Name != name || uid != "" && string(p.UID) != uid && !podinfo.Static(p) {
			continue
		}
		if found == nil || p.DeletionTimestamp == nil {
			found = p
		}
	}
	return found
}

// All returns the node's pods.
func (t *workers) All() []*corev1.Pod {
	var out []*corev1.Pod
	for _, w := range t.all() {
		out = append(out, w.Pod())
	}
	return out
}

// nodePods are the workers' pods for the Pods API, without orphaned pods.
type nodePods struct{ workers *workers }

// Ready reports whether the pods of all sources are known.
func (t nodePods) Ready() bool {
	t.workers.mu.Lock()
	defer t.workers.mu.Unlock()
	return t.workers.complete
}

// All are the node's pods.
func (t nodePods) All() []*corev1.Pod { return podResourcesPods(t).All() }

// Changed returns a channel that is closed at the next change of a pod.
func (t nodePods) Changed() <-chan struct{} {
	t.workers.mu.Lock()
	defer t.workers.mu.Unlock()
	return t.workers.changed
}

// podResourcesPods are the workers' pods for the PodResources API, without orphaned pods.
type podResourcesPods struct{ workers *workers }

func (t podResourcesPods) pods(which func(*pod.Worker, *corev1.Pod) bool) []*corev1.Pod {
	var out []*corev1.Pod
	for _, w := range t.workers.all() {
		if p := w.Pod(); len(p.Spec.Containers) > 0 && which(w, p) {
			out = append(out, p)
		}
	}
	return out
}

// Active are the pods of which a container runs or may still run: a pod has a terminal phase only when none does.
func (t podResourcesPods) Active() []*corev1.Pod {
	return t.pods(func(w *pod.Worker, p *corev1.Pod) bool {
		return !w.Left() && !podkind.TerminalPhase(p.Status.Phase)
	})
}

// All are the node's pods.
func (t podResourcesPods) All() []*corev1.Pod {
	return t.pods(func(*pod.Worker, *corev1.Pod) bool { return true })
}
