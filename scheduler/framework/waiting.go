// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"keelson/scheduler/state"
)

// MaxWait is the maximum time that a pod waits for a Permit plugin.
const MaxWait = 15 * time.Minute

// WaitingPods holds the pods that have a node and wait until their Permit plugins allow the binding. The zero value is
// empty.
type WaitingPods struct {
	mu   sync.Mutex
	pods map[types.UID]*WaitingPod
}

// WaitingPod is a pod in WaitingPods.
type WaitingPod struct {
	Pod  *state.PodInfo
	Node string

	mu     sync.Mutex
	timers map[string]*time.Timer // by the plugin that the pod waits for
	result chan *Status           // capacity 1: only the first result is used
}

// Hold adds a pod that waits for the plugins, for each at most the given time. The caller must then call Await.
func (w *WaitingPods) Hold(pod *state.PodInfo, node string, plugins map[string]time.Duration) *WaitingPod {
	waitingPod := &WaitingPod{
		Pod:    pod,
		Node:   node,
		timers: map[string]*time.Timer{},
		result: make(chan *Status, 1),
	}
	waitingPod.mu.Lock()
	for name, wait := range plugins {
		wait = min(wait, MaxWait)
		waitingPod.timers[name] = time.AfterFunc(wait, func() {
			waitingPod.end(
				NewStatus(name, Unschedulable, fmt.Sprintf("rejected due to timeout after waiting %v at plugin %v",
					wait, name)))
		})
	}
	waitingPod.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pods == nil {
		w.pods = map[types.UID]*WaitingPod{}
	}
	w.pods[pod.Pod.UID] = waitingPod
	return waitingPod
}

// Await blocks until the pod is allowed (nil) or refused, or ctx is done. Then it removes the pod from w.
func (w *WaitingPods) Await(ctx context.Context, p *WaitingPod) (*Status, error) {
	defer func() {
		p.end(nil)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.pods[p.Pod.Pod.UID] == p {
			delete(w.pods, p.Pod.Pod.UID)
		}
	}()
	select {
	case st := <-p.result:
		return st, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Get returns the waiting pod with that UID, or nil.
func (w *WaitingPods) Get(uid types.UID) *WaitingPod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods[uid]
}

// All returns the waiting pods, in no particular order.
func (w *WaitingPods) All() []*WaitingPod {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]*WaitingPod, 0, len(w.pods))
	for _, p := range w.pods {
		out = append(out, p)
	}
	return out
}

// Plugins returns the names of the plugins that the pod still waits for.
func (p *WaitingPod) Plugins() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := make([]string, 0, len(p.timers))
	for name := range p.timers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Allow ends the wait for one plugin. When the pod waits for no plugin any more, it is allowed.
func (p *WaitingPod) Allow(plugin string) {
	p.mu.Lock()
	t, ok := p.timers[plugin]
	if ok {
		t.Stop()
		delete(p.timers, plugin)
	}
	last := ok && len(p.timers) == 0
	p.mu.Unlock()
	if last {
		p.end(nil)
	}
}

// Reject refuses the pod. It has no effect if the pod is already allowed or refused.
func (p *WaitingPod) Reject(plugin, reason string) { p.end(NewStatus(plugin, Unschedulable, reason)) }

func (p *WaitingPod) end(st *Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.timers {
		t.Stop()
	}
	clear(p.timers)
	select {
	case p.result <- st:
	default:
	}
}
