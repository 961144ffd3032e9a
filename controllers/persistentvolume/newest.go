// SPDX-License-Identifier: Apache-2.0

package persistentvolume

import (
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// newest keeps written objects until the informer shows them. Otherwise a pass right after a write would see the old state, and its writes
// would conflict.
type newest[T metav1.Object] struct {
	cached func(key string) (o any, known bool, err error)

	mu  sync.Mutex
	all map[string]T
}

// newNewest uses cached to read the informer's cache.
func newNewest[T metav1.Object](cached func(key string) (any, bool, error)) *newest[T] {
	return &newest[T]{cached: cached, all: map[string]T{}}
}

// wrote stores the server's response to a write. The informer may have observed it before.
func (n *newest[T]) wrote(key string, o T) {
	n.mu.Lock()
	n.all[key] = o
	n.mu.Unlock()
	if have, known, err := n.cached(key); err == nil && known {
		if have, ok := have.(T); ok {
			n.observed(key, have)
		}
	}
}

// observed removes the stored object if the informer shows it.
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

// of is the newer of the cached and the written object.
func (n *newest[T]) of(key string, cached T) T {
	n.mu.Lock()
	defer n.mu.Unlock()
	if own, ok := n.all[key]; ok && newer(own, cached) {
		return own
	}
	return cached
}

// keys are the keys of written objects that are not observed yet.
func (n *newest[T]) keys() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Keys(n.all))
}

// newer reports whether a is a later version of the object b.
func newer(a, b metav1.Object) bool {
	if a.GetUID() != b.GetUID() && a.GetUID() != types.UID("") {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}
