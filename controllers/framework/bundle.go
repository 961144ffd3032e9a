// SPDX-License-Identifier: Apache-2.0

package framework

import "context"

// Bundle returns the current CA bundle, and a channel that is closed when it changes; nil: it does not change. A nil
// Bundle is empty.
type Bundle func() (pem []byte, changed <-chan struct{})

// FixedBundle is a bundle that does not change.
func FixedBundle(pem []byte) Bundle {
	return func() ([]byte, <-chan struct{}) { return pem, nil }
}

// PEM is the current bundle.
func (b Bundle) PEM() []byte {
	if b == nil {
		return nil
	}
	pem, _ := b()
	return pem
}

// Follow calls do after each change until ctx ends.
func (b Bundle) Follow(ctx context.Context, do func()) {
	if b == nil {
		return
	}
	_, changed := b()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		_, changed = b()
		do()
	}
}
