// SPDX-License-Identifier: Apache-2.0

package controllertest

import "sync"

// Bundle is a framework.Bundle (Get) that a test changes.
type Bundle struct {
	mu      sync.Mutex
	pem     string
	changed chan struct{}
}

// NewBundle returns a bundle with this content.
func NewBundle(pem string) *Bundle { return &Bundle{pem: pem, changed: make(chan struct{})} }

// Get is a framework.Bundle.
func (b *Bundle) Get() ([]byte, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return []byte(b.pem), b.changed
}

// Set changes the content.
func (b *Bundle) Set(pem string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pem = pem
	close(b.changed)
	b.changed = make(chan struct{})
}
