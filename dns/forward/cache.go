// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"container/list"
	"hash/maphash"
	"sync"
	"time"
)

// Question is what is asked of others. Name is lower case, complete.
type Question struct {
	Name  string
	Type  uint16
	Class uint16
	DO    bool // answers with signatures are wanted
	CD    bool // and shall not be checked
}

// Bounds of the cache; its memory is that of its replies and about 300 bytes for each.
const (
	cacheShards  = 16
	cacheReplies = 10000
	cacheBytes   = 8 << 20
)

// cache remembers replies: the latest used, until their time is over.
type cache struct {
	seed   maphash.Seed
	shards [cacheShards]cacheShard
}

type cacheShard struct {
	mu    sync.Mutex
	m     map[Question]*list.Element
	use   list.List // of *cached, the latest first
	bytes int
}

type cached struct {
	q Question
	r *Reply
}

func newCache() *cache {
	c := &cache{seed: maphash.MakeSeed()}
	for i := range c.shards {
		c.shards[i].m = map[Question]*list.Element{}
	}
	return c
}

func (c *cache) shard(q Question) *cacheShard {
	return &c.shards[maphash.Comparable(c.seed, q)%cacheShards]
}

func (c *cache) get(q Question, now time.Time) *Reply {
	cacheShard := c.shard(q)
	cacheShard.mu.Lock()
	defer cacheShard.mu.Unlock()
	e := cacheShard.m[q]
	if e == nil {
		return nil
	}
	r := e.Value.(*cached).r
	if now.Sub(r.stored) >= r.life {
		cacheShard.drop(e)
		return nil
	}
	cacheShard.use.MoveToFront(e)
	return r
}

func (c *cache) put(question Question, reply *Reply) {
	if reply.life <= 0 {
		return
	}
	s := c.shard(question)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.m[question]; e != nil {
		s.drop(e)
	}
	s.m[question] = s.use.PushFront(&cached{question, reply})
	s.bytes += size(question, reply)
	for s.use.Len() > cacheReplies/cacheShards || s.bytes > cacheBytes/cacheShards {
		s.drop(s.use.Back())
	}
}

func (s *cacheShard) drop(e *list.Element) {
	c := e.Value.(*cached)
	s.use.Remove(e)
	delete(s.m, c.q)
	s.bytes -= size(c.q, c.r)
}

func size(q Question, r *Reply) int { return len(q.Name) + len(r.wire) + 2*len(r.ttls) }
