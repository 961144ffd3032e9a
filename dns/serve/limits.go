// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"time"
)

const (
	limitShards = 16
	limitEach   = 512 // clients that a shard remembers
)

var buffers = sync.Pool{New: func() any {
	b := make([]byte, 4096)
	return &b
}}

// limits are a bucket of tokens for each client, so that a client that asks too much is ignored while others are
// answered.
type limits struct {
	rate   float64 // tokens a second; a bucket holds two seconds'
	seed   maphash.Seed
	shards [limitShards]limitShard
}

type limitShard struct {
	mu sync.Mutex
	m  map[netip.Addr]*bucket
}

type bucket struct {
	tokens float64
	at     time.Time
}

func newLimits(rate float64) *limits {
	l := &limits{rate: rate, seed: maphash.MakeSeed()}
	for i := range l.shards {
		l.shards[i].m = map[netip.Addr]*bucket{}
	}
	return l
}

// allow takes a token of the client's.
func (l *limits) allow(a netip.Addr, now time.Time) bool {
	s := &l.shards[maphash.Comparable(l.seed, a)%limitShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.m[a]
	if b == nil {
		if len(s.m) >= limitEach {
			s.forget(l.rate, now)
		}
		b = &bucket{tokens: 2 * l.rate, at: now}
		s.m[a] = b
	}
	b.tokens = min(b.tokens+now.Sub(b.at).Seconds()*l.rate, 2*l.rate)
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// forget makes room: clients whose buckets are full again, and if there are none, any.
func (s *limitShard) forget(rate float64, now time.Time) {
	for a, b := range s.m {
		if b.tokens+now.Sub(b.at).Seconds()*rate >= 2*rate {
			delete(s.m, a)
		}
	}
	for a := range s.m {
		if len(s.m) < limitEach {
			return
		}
		delete(s.m, a)
	}
}
