// SPDX-License-Identifier: Apache-2.0

package framework

import "sync"

// CycleState holds what plugins write down during one scheduling attempt: written at one extension point, read at a later one,
// until the pod is bound or given back. Safe for several goroutines; what is read is shared with all readers. Keys give its values types.
type CycleState struct {
	mu     sync.RWMutex
	values map[any]any
}

// Key is under which a plugin keeps a T. Two keys of the same name are different.
type Key[T any] struct{ name string }

// NewKey makes a key, usually for a variable of the plugin's package. The name is for people who debug.
func NewKey[T any](name string) *Key[T] { return &Key[T]{name} }

// String is the key's name.
func (k *Key[T]) String() string { return k.name }

// Write keeps v in c, in place of what was there.
func (k *Key[T]) Write(c *CycleState, v T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.values == nil {
		c.values = map[any]any{}
	}
	c.values[k] = v
}

// Read returns what was written last; false: nothing.
func (k *Key[T]) Read(c *CycleState) (T, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	v, ok := c.values[k].(T)
	return v, ok
}
