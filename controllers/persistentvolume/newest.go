// SPDX-License-Identifier: Apache-2.0

package persistentvolume

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// newest remembers objects that were written until the informer has them. Without it, a pass that follows a write at once would see
// what was before it, and its writes would all conflict.
type newest[T metav1.Object] struct {
	mu  sync.Mutex
	all map[string]T
}

func newNewest[T metav1.Object]() *newest[T] { return &newest[T]{all: map[string]T{}} }

// wrote notes what the server answered.
func (n *newest[T]) wrote(key string, o T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all[key] = o
}

// observed drops what was written if the informer has it.
func (n *newest[T]) observed(key string, o T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if own, ok := n.all[key]; ok && !newer(own, o) {
		delete(n.all, key)
	}
}

func (n *newest[T]) forget(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.all, key)
}

// of is the newer of what the cache has and what was written.
func (n *newest[T]) of(key string, cached T) T {
	n.mu.Lock()
	defer n.mu.Unlock()
	if own, ok := n.all[key]; ok && newer(own, cached) {
		return own
	}
	return cached
}

// newer tells whether a is the same object as b, later.
func newer(a, b metav1.Object) bool {
	if a.GetUID() != b.GetUID() && a.GetUID() != types.UID("") {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}
