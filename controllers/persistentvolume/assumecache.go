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

// assumeCache keeps written objects until the informer shows them. Otherwise a pass right after a write would see the
// old state, and its writes would conflict.
type assumeCache[T metav1.Object] struct {
	cached func(key string) (o any, known bool, err error)

	mu  sync.Mutex
	all map[string]T
}

// newAssumeCache uses cached to read the informer's cache.
func newAssumeCache[T metav1.Object](cached func(key string) (any, bool, error)) *assumeCache[T] {
	return &assumeCache[T]{cached: cached, all: map[string]T{}}
}

// assume stores the server's response to a write. The informer may have observed it before.
func (n *assumeCache[T]) assume(key string, o T) {
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
func (n *assumeCache[T]) observed(key string, o T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if own, ok := n.all[key]; ok && !newer(own, o) {
		delete(n.all, key)
	}
}

func (n *assumeCache[T]) remove(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.all, key)
}

// latest is the newer of the cached and the written object.
func (n *assumeCache[T]) latest(key string, cached T) T {
	n.mu.Lock()
	defer n.mu.Unlock()
	if own, ok := n.all[key]; ok && newer(own, cached) {
		return own
	}
	return cached
}

// keys are the keys of written objects that are not observed yet.
func (n *assumeCache[T]) keys() []string {
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
