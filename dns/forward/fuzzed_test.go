// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// FuzzRemembered follows what a server sent through the cache to a client that asks later, in letters of its own: the
// answer can be read, has the client's id and question, and nothing in it lives longer than it did.
func FuzzRemembered(f *testing.F) {
	question := Question{Name: "a.example.", Type: dns.TypeA, Class: dns.ClassINET}
	asked, _, err := query(question, true)
	if err != nil {
		f.Fatal(err)
	}
	asked.Id = 1
	for _, rrs := range [][]string{
		{"a.example. 60 IN A 198.51.100.1"},
		{"a.example. 60 IN CNAME b.example.", "b.example. 5 IN A 198.51.100.2"},
		{"a.example. 4294967295 IN A 198.51.100.1"},
	} {
		b, err := reply(asked, rrs...).Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint16(7), uint16(3))
	}
	name := []byte("\x01A\x07eXaMpLe\x00")
	f.Fuzz(func(t *testing.T, b []byte, id, later uint16) {
		m, err := accept(asked, b)
		if err != nil {
			return
		}
		start := time.Unix(1_700_000_000, 0)
		r, err := keep(m, start)
		if err != nil {
			return
		}
		c := newCache()
		c.put(question, r)
		now := start.Add(time.Duration(later) * time.Second / 8)
		got := c.get(question, now)
		if (got != nil) != (r.life > 0 && now.Sub(start) < r.life) {
			t.Fatalf("%x, kept for %s: after %s the cache has %v", b, r.life, now.Sub(start), got)
		}
		if got == nil {
			return
		}
		before := bytes.Clone(r.wire)
		wire := got.Append([]byte("head"), id, name, [2]byte{bitRD, bitCD}, now)
		if !bytes.Equal(before, r.wire) || !bytes.HasPrefix(wire, []byte("head")) || len(wire) != 4+got.Size() {
			t.Fatalf("%x: what is shared was changed, or the answer is not where it should be", b)
		}
		out := new(dns.Msg)
		was := new(dns.Msg)
		if err := out.Unpack(wire[4:]); err != nil {
			t.Fatalf("%x: answered with %x, which cannot be read: %v", b, wire[4:], err)
		}
		if err := was.Unpack(r.wire); err != nil {
			t.Fatal(err)
		}
		if out.Id != id || !out.Response || !out.RecursionDesired || !out.CheckingDisabled || len(out.Question) != 1 ||
			out.Question[0].Name != "A.eXaMpLe." {
			t.Fatalf("%x: answered with %v", b, out)
		}
		age := uint32(now.Sub(start) / time.Second)
		for i, section := range [][]dns.RR{out.Answer, out.Ns, out.Extra} {
			for j, rr := range section {
				ttl := [][]dns.RR{was.Answer, was.Ns, was.Extra}[i][j].Header().Ttl
				if rr.Header().Ttl != ttl-min(ttl, age) {
					t.Fatalf("%x: after %d s a TTL of %d is %d", b, age, ttl, rr.Header().Ttl)
				}
			}
		}
	})
}

// FuzzCache: whatever is put in and asked for in whatever order, the cache stays within its bounds, counts what it has,
// and answers nothing that is over or that was asked otherwise.
func FuzzCache(f *testing.F) {
	f.Add([]byte{0, 1, 200, 1, 1, 0, 2, 9, 9, 0, 1, 255})
	f.Add(bytes.Repeat([]byte{0, 7, 255, 0, 8, 255}, 40))
	f.Fuzz(func(t *testing.T, steps []byte) {
		cache := newCache()
		now := time.Unix(1_700_000_000, 0)
		want := map[Question]*Reply{}
		for ; len(steps) >= 3; steps = steps[3:] {
			question := Question{
				Name:  fmt.Sprint(steps[1]%32, ".example."),
				Type:  uint16(steps[1] >> 5),
				Class: dns.ClassINET,
				DO:    steps[0]&4 != 0,
				CD:    steps[0]&8 != 0,
			}
			switch steps[0] & 3 {
			case 0, 1:
				r := &Reply{
					wire:   make([]byte, headerSize+int(steps[2])<<8),
					stored: now,
					life: time.Duration(
						int(steps[2])-8) * time.Second,
				}
				if cache.put(question, r); r.life > 0 {
					want[question] = r
				}
			case 2:
				if r := cache.get(question, now); r != nil && (r != want[question] || now.Sub(r.stored) >= r.life) {
					t.Fatalf("%v: got %v, put %v", question, r, want[question])
				}
			case 3:
				now = now.Add(time.Duration(steps[2]) * time.Second)
			}
		}
		for i := range cache.shards {
			cacheShard := &cache.shards[i]
			sum := 0
			for e := cacheShard.use.Front(); e != nil; e = e.Next() {
				has := e.Value.(*cached)
				sum += size(has.q, has.r)
				if cacheShard.m[has.q] != e {
					t.Fatalf("%v is in the list and not in the map", has.q)
				}
			}
			if sum != cacheShard.bytes || cacheShard.bytes > cacheBytes/cacheShards ||
				cacheShard.use.Len() != len(cacheShard.m) ||
				cacheShard.use.Len() > cacheReplies/cacheShards {
				t.Fatalf("shard %d: %d bytes of %d counted, %d in the list, %d in the map", i, sum, cacheShard.bytes,
					cacheShard.use.Len(), len(cacheShard.m))
			}
		}
	})
}
