// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"sync"
)

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

// While returns what run returns, and calls changed after each change of the bundle meanwhile.
func (b Bundle) While(ctx context.Context, changed func(), run func() error) error {
	if b == nil {
		return run()
	}
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	following.Go(func() { b.follow(ctx, changed) })
	return run()
}

func (b Bundle) follow(ctx context.Context, changed func()) {
	_, next := b()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next:
		}
		_, next = b()
		changed()
	}
}
