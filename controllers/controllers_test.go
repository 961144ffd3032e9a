// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// fake is a controller that is ready or not, and fails or runs until its context is done.
type fake struct {
	ready bool
	err   error
}

func (f fake) Run(ctx context.Context, ready func()) error {
	if f.ready {
		ready()
		ready() // only the first counts
	}
	if f.err != nil {
		return f.err
	}
	<-ctx.Done()
	return nil
}

// TestRunAll: ready is called once all controllers are ready, and nothing waits for one that never is. A goroutine that
// is left behind fails the test, because its bubble cannot end.
func TestRunAll(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		what  string
		all   []named
		ready int
		err   error
	}{
		{"no controllers", nil, 1, nil},
		{"all ready", []named{{fake{ready: true}, "a"}, {fake{ready: true}, "b"}}, 1, nil},
		{"one never ready", []named{{fake{ready: true}, "a"}, {fake{}, "b"}}, 0, nil},
		{"one fails", []named{{fake{}, "a"}, {fake{err: broken}, "b"}}, 0, broken},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			calls := 0
			ended := make(chan error, 1)
			go func() { // ends with ctx
				ended <- runAll(ctx, tt.all, func(<-chan struct{}) {}, func() { calls++ })
			}()
			synctest.Wait()
			if calls != tt.ready {
				t.Errorf("%s: ready called %d times, want %d", tt.what, calls, tt.ready)
			}
			cancel()
			if err := <-ended; !errors.Is(err, tt.err) {
				t.Errorf("%s: got %v, want %v", tt.what, err, tt.err)
			}
		})
	}
}
