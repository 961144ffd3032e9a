// SPDX-License-Identifier: Apache-2.0

package connlimit

import (
	"context"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// talker answers every Read at once.
type talker struct{ net.Conn }

func (talker) Read(b []byte) (int, error)  { return len(b), nil }
func (talker) Write(b []byte) (int, error) { return len(b), nil }
func (talker) Close() error                { return nil }
func (talker) RemoteAddr() net.Addr        { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// TestHandshakesTakeTurns: of a thousand connections that got a part of a handshake at once no more compute than there
// are processors, one with a request waits for none of them, and every way to go on gives the turn back.
func TestHandshakesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(nil, 2000)
		known := l.admit(talker{})
		known.identify(Owner{})
		var computing, most, done atomic.Int64
		const many = 1000
		for i := range many {
			conn := l.admit(talker{})
			go func() { // ends by itself
				for range 3 {
					if _, err := conn.Read(make([]byte, 1)); err != nil {
						t.Error(err)
					}
					n := computing.Add(1)
					for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
						runtime.Gosched()
					}
					time.Sleep(time.Millisecond) // the processor's time
					computing.Add(-1)
				}
				switch i % 3 {
				case 0:
					_ = conn.Close()
				case 1:
					_, _ = conn.Write(nil)
				case 2:
					Request(Context(context.Background(), conn))
				}
				done.Add(1)
			}()
		}
		time.Sleep(100 * time.Microsecond)
		began := time.Now()
		for range 100 {
			_, _ = known.Read(make([]byte, 1))
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("a connection with requests waited %v", took)
		}
		time.Sleep(time.Hour)
		if n := int64(runtime.GOMAXPROCS(0)); most.Load() > n || done.Load() != many {
			t.Errorf("%d computed at once on %d processors, %d of %d came through", most.Load(), n, done.Load(), many)
		}
	})
}
