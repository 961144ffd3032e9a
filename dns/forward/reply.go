// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/miekg/dns"
)

// Reply is an answer as it can be sent to many: packed, without id, without EDNS. It is immutable.
type Reply struct {
	wire   []byte
	ttls   []uint16 // where in wire they are
	name   int      // bytes of the question's name in wire
	stored time.Time
	life   time.Duration
}

const (
	headerSize = 12
	// bits of the header's second and third byte
	bitQR, bitAA, bitTC, bitRD = 1 << 7, 1 << 2, 1 << 1, 1 << 0
	bitRA, bitAD, bitCD        = 1 << 7, 1 << 5, 1 << 4
)

// Rcode is how the question was answered.
func (r *Reply) Rcode() int { return int(r.wire[3] & 0xf) }

// Size is how long Append's result is.
func (r *Reply) Size() int { return len(r.wire) }

// Append writes the reply to the question of the given id and name, which differs from the reply's own in upper and
// lower case only. flags are the question's second and third byte of flags.
func (r *Reply) Append(b []byte, id uint16, name []byte, flags [2]byte, now time.Time) []byte {
	at := len(b)
	b = append(b, r.wire...)
	m := b[at:]
	binary.BigEndian.PutUint16(m, id)
	m[2] = m[2]&^bitRD | flags[0]&bitRD
	m[3] = m[3]&^bitCD | flags[1]&bitCD
	if len(name) == r.name {
		copy(m[headerSize:], name)
	}
	age := uint32(max(now.Sub(r.stored), 0) / time.Second)
	for _, off := range r.ttls {
		ttl := binary.BigEndian.Uint32(m[off:])
		binary.BigEndian.PutUint32(m[off:], ttl-min(ttl, age))
	}
	return b
}

// Msg is the reply, read again.
func (r *Reply) Msg(now time.Time) (*dns.Msg, error) {
	m := new(dns.Msg)
	err := m.Unpack(r.Append(nil, 0, nil, [2]byte{}, now))
	return m, err
}

// keep makes a reply of an upstream's answer, which it changes. How long it may be remembered follows from its records,
// within limits.
func keep(msg *dns.Msg, now time.Time) (*Reply, error) {
	msg.Id = 0
	msg.Response = true
	msg.RecursionAvailable = true
	msg.Authoritative = false
	msg.Truncated = false
	msg.Compress = true
	extra := msg.Extra[:0]
	for _, rr := range msg.Extra {
		if t := rr.Header().Rrtype; t != dns.TypeOPT && t != dns.TypeTSIG && t != dns.TypeSIG {
			extra = append(extra, rr)
		}
	}
	msg.Extra = extra
	msg.Rcode &= 0xf
	life := lifetime(msg)
	for _, section := range [][]dns.RR{msg.Answer, msg.Ns, msg.Extra} {
		for _, rr := range section {
			rr.Header().Ttl = min(rr.Header().Ttl, uint32(longestLife/time.Second))
		}
	}
	wire, err := msg.Pack()
	if err != nil {
		return nil, fmt.Errorf("pack an upstream's answer: %w", err)
	}
	// the library reads some records that it then writes cut short, such as a SOA without data
	if err := new(dns.Msg).Unpack(wire); err != nil {
		return nil, fmt.Errorf("unpack an upstream's answer: %w", err)
	}
	r := &Reply{wire: wire, stored: now, life: life}
	if err := r.index(); err != nil {
		return nil, err
	}
	return r, nil
}

// Limits of how long an answer is remembered.
const (
	longestLife   = 5 * time.Minute
	longestDenial = 30 * time.Second
	failureLife   = time.Second // RFC 9520, section 3.2
)

// lifetime is how long an answer may be remembered: the shortest of its records' lives; of one that denies, as long as
// its SOA says (RFC 2308), and without SOA not at all.
func lifetime(msg *dns.Msg) time.Duration {
	if msg.Rcode != dns.RcodeSuccess && msg.Rcode != dns.RcodeNameError {
		return failureLife
	}
	if msg.Rcode == dns.RcodeSuccess && answered(msg) {
		ttl := uint32(longestLife / time.Second)
		for _, rr := range msg.Answer {
			ttl = min(ttl, rr.Header().Ttl)
		}
		return time.Duration(ttl) * time.Second
	}
	for _, rr := range msg.Ns {
		if soa, ok := rr.(*dns.SOA); ok {
			ttl := min(soa.Hdr.Ttl, soa.Minttl, uint32(longestDenial/time.Second))
			for _, a := range msg.Answer { // a CNAME to what is not there
				ttl = min(ttl, a.Header().Ttl)
			}
			return time.Duration(ttl) * time.Second
		}
	}
	return 0
}

// answered reports whether there is a record of the type that was asked for.
func answered(m *dns.Msg) bool {
	for _, rr := range m.Answer {
		if rr.Header().Rrtype == m.Question[0].Qtype || m.Question[0].Qtype == dns.TypeANY {
			return true
		}
	}
	return false
}

var errWire = errors.New("a packed message is cut short")

// index finds the places that differ from answer to answer.
func (r *Reply) index() error {
	off, err := skipName(r.wire, headerSize)
	if err != nil {
		return err
	}
	r.name = off - headerSize
	off += 4
	n := 0
	for i := 6; i < headerSize; i += 2 {
		n += int(binary.BigEndian.Uint16(r.wire[i:]))
	}
	for range n {
		if off, err = skipName(r.wire, off); err != nil {
			return err
		}
		if off+10 > len(r.wire) {
			return errWire
		}
		r.ttls = append(r.ttls, uint16(off+4)) // a message has 65,535 bytes at most
		off += 10 + int(binary.BigEndian.Uint16(r.wire[off+8:]))
	}
	if off > len(r.wire) {
		return errWire
	}
	return nil
}

func skipName(b []byte, off int) (int, error) {
	for off < len(b) {
		switch n := int(b[off]); {
		case n == 0:
			return off + 1, nil
		case n >= 0xc0:
			return off + 2, nil
		default:
			off += 1 + n
		}
	}
	return 0, errWire
}
