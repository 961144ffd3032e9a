// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"sync"
)

// flight is a pull in progress, which several callers may share. It is canceled when the last caller leaves.
type flight struct {
	waiters int // guarded by flights.mu
	cancel  context.CancelFunc
	meter   *meter
	done    chan struct{}
	img     Image
	err     error
}

// flights are the pulls in progress. Callers that ask for the same image share one.
type flights struct {
	mu      sync.Mutex
	byKey   map[string]*flight
	running map[*flight]struct{} // also those that have no waiters any more
}

// join joins the flight with this key, or starts one.
func (fs *flights) join(ctx context.Context, key string, progress Progress, do func(
	context.Context, *meter,
) (Image, error),
) *flight {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f, ok := fs.byKey[key]; ok {
		f.waiters++
		f.meter.addCallback(progress)
		return f
	}
	fctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &flight{
		waiters: 1,
		cancel:  cancel,
		meter:   &meter{},
		done:    make(chan struct{}),
	}
	f.meter.addCallback(progress)
	fs.byKey[key] = f
	fs.running[f] = struct{}{}
	go func() { // ends with the transfer, which is canceled when the last waiter leaves
		defer cancel()
		f.img, f.err = do(fctx, f.meter)
		fs.mu.Lock()
		if fs.byKey[key] == f {
			delete(fs.byKey, key)
		}
		delete(fs.running, f)
		fs.mu.Unlock()
		close(f.done)
	}()
	return f
}

// leave removes one waiter. The last one cancels the flight, so that no other call can join it.
func (fs *flights) leave(key string, f *flight) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.waiters--
	if f.waiters > 0 {
		return
	}
	if fs.byKey[key] == f {
		delete(fs.byKey, key)
	}
	f.cancel()
}

// stop cancels all flights and returns when they have ended.
func (fs *flights) stop() {
	for {
		var last *flight
		fs.mu.Lock()
		for f := range fs.running {
			f.cancel()
			last = f
		}
		fs.mu.Unlock()
		if last == nil {
			return
		}
		<-last.done
	}
}
