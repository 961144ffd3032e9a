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

// MaxWait is for how long a pod can wait for plugins that hold it back in Permit.
const MaxWait = 15 * time.Minute

// WaitingPods are the pods that have a node and wait until plugins permit their binding. The zero value has none.
type WaitingPods struct {
	mu   sync.Mutex
	pods map[types.UID]*WaitingPod
}

// WaitingPod is one of them.
type WaitingPod struct {
	Pod  *state.PodInfo
	Node string

	mu      sync.Mutex
	timers  map[string]*time.Timer // by the plugin that holds the pod back
	verdict chan *Status           // one
}

// Hold has a pod wait for plugins, for each as long as it says. Await must follow.
func (w *WaitingPods) Hold(pod *state.PodInfo, node string, plugins map[string]time.Duration) *WaitingPod {
	p := &WaitingPod{Pod: pod, Node: node, timers: map[string]*time.Timer{}, verdict: make(chan *Status, 1)}
	p.mu.Lock()
	for name, wait := range plugins {
		wait = min(wait, MaxWait)
		p.timers[name] = time.AfterFunc(wait, func() {
			p.end(Refuse(name, Unschedulable, fmt.Sprintf("rejected due to timeout after waiting %v at plugin %v", wait, name)))
		})
	}
	p.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pods == nil {
		w.pods = map[types.UID]*WaitingPod{}
	}
	w.pods[pod.Pod.UID] = p
	return p
}

// Await blocks until the pod is allowed (nil) or refused, or ctx is done, and lets go of it.
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
	case st := <-p.verdict:
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

// All lists the pods that wait, in no order.
func (w *WaitingPods) All() []*WaitingPod {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]*WaitingPod, 0, len(w.pods))
	for _, p := range w.pods {
		out = append(out, p)
	}
	return out
}

// Plugins lists who holds the pod back still.
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

// Allow says that the plugin holds the pod back no more. Once none does the pod goes on.
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

// Reject refuses the pod; what was said first counts.
func (p *WaitingPod) Reject(plugin, reason string) { p.end(Refuse(plugin, Unschedulable, reason)) }

func (p *WaitingPod) end(st *Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.timers {
		t.Stop()
	}
	clear(p.timers)
	select {
	case p.verdict <- st:
	default:
	}
}
