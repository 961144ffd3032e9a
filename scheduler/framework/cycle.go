// SPDX-License-Identifier: Apache-2.0

package framework

import "sync"

// CycleState holds the data of plugins during one scheduling attempt: a plugin writes it at one extension point and
// reads it at a later one, until the pod is bound or returns to the queue. It is safe for concurrent use. Values are
// shared: readers must not modify them. A Key determines the type of its value.
type CycleState struct {
	mu     sync.RWMutex
	values map[any]any
}

// Key identifies a value of type T in a CycleState. Two keys with the same name are different.
type Key[T any] struct{ name string }

// NewKey returns a new key, usually for a package variable of the plugin. The name is for debugging only.
func NewKey[T any](name string) *Key[T] { return &Key[T]{name} }

// String returns the key's name.
func (k *Key[T]) String() string { return k.name }

// Write stores v in c and replaces a previous value.
func (k *Key[T]) Write(c *CycleState, v T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.values == nil {
		c.values = map[any]any{}
	}
	c.values[k] = v
}

// Read returns the value written last; false: there is none.
func (k *Key[T]) Read(c *CycleState) (T, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	v, ok := c.values[k].(T)
	return v, ok
}
