// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
)

// oneListener is an informer whose handlers that are added before it runs are called by one listener, one after the
// other, in the order in which they came. client-go's informer has a listener of each: two goroutines, two hand-overs
// of each event, and a buffer. What a handler does must be quick, as it is with events that many follow: the next one
// waits for it. Who comes later, or with options, gets a listener of its own.
type oneListener struct {
	cache.SharedIndexInformer

	mu       sync.Mutex
	started  bool
	listener cache.ResourceEventHandlerRegistration // of all members; nil: there is none
	members  []*member
}

// member is a handler and its registration.
type member struct {
	cache.ResourceEventHandlerRegistration
	handler cache.ResourceEventHandler
}

// AddEventHandler is SharedInformer's.
func (l *oneListener) AddEventHandler(
	handler cache.ResourceEventHandler,
) (cache.ResourceEventHandlerRegistration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.started {
		return l.SharedIndexInformer.AddEventHandler(handler)
	}
	if l.listener == nil {
		reg, err := l.SharedIndexInformer.AddEventHandler((*all)(l))
		if err != nil {
			return nil, err
		}
		l.listener = reg
	}
	m := &member{l.listener, handler}
	l.members = append(l.members, m)
	return m, nil
}

// RemoveEventHandler is SharedInformer's.
func (l *oneListener) RemoveEventHandler(reg cache.ResourceEventHandlerRegistration) error {
	m, ok := reg.(*member)
	if !ok {
		return l.SharedIndexInformer.RemoveEventHandler(reg)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// A delivery under way continues with the previous members.
	l.members = slices.DeleteFunc(slices.Clone(l.members), func(o *member) bool { return o == m })
	return nil
}

// Run is SharedInformer's.
func (l *oneListener) Run(stop <-chan struct{}) { l.RunWithContext(wait.ContextForChannel(stop)) }

// RunWithContext is SharedInformer's.
func (l *oneListener) RunWithContext(ctx context.Context) {
	l.mu.Lock()
	l.started = true
	l.mu.Unlock()
	l.SharedIndexInformer.RunWithContext(ctx)
}

func (l *oneListener) current() []*member {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.members
}

// all calls every member.
type all oneListener

// OnAdd is ResourceEventHandler's.
func (a *all) OnAdd(obj any, initial bool) {
	for _, m := range (*oneListener)(a).current() {
		m.handler.OnAdd(obj, initial)
	}
}

// OnUpdate is ResourceEventHandler's.
func (a *all) OnUpdate(old, cur any) {
	for _, m := range (*oneListener)(a).current() {
		m.handler.OnUpdate(old, cur)
	}
}

// OnDelete is ResourceEventHandler's.
func (a *all) OnDelete(obj any) {
	for _, m := range (*oneListener)(a).current() {
		m.handler.OnDelete(obj)
	}
}
