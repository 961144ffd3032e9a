// SPDX-License-Identifier: Apache-2.0

// Package serve speaks DNS with clients: it reads packets, decides who may ask how much, and answers from the names of
// the cluster, from the configuration, or with what forward learns. dns calls it. It never asks another server itself
// and never answers who is not of the cluster.
//
// Invariants:
//  1. A packet costs no more than a look at its sender until that one may ask.
//  2. Names of the cluster are answered where the packet was read: nothing waits, nothing is left.
//  3. Responses are never answered, so that two servers cannot talk forever.
package serve

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"keelson/dns/forward"
	"keelson/dns/meter"
	"keelson/dns/settings"
	"keelson/dns/zone"
)

// Config is what a Handler answers from.
type Config struct {
	Zone    *zone.Index
	Forward *forward.Forwarder
	// Settings are the configuration as it is now; never nil.
	Settings func() *settings.Settings
	// Allowed reports whether an address is one of the cluster's. nil: all are.
	Allowed func(netip.Addr) bool
	// Meter counts the answers; nil: the counts are not published.
	Meter *meter.Meter
	// TTL of what the configuration says, in seconds.
	TTL uint32
	// Rate is how many requests a second one client has answered, after twice as many at once; 0: DefaultRate.
	Rate int
}

// DefaultRate is Config.Rate's default.
const DefaultRate = 10000

// Handler answers packets. It is safe for concurrent use.
type Handler struct {
	cfg    Config
	limits *limits
}

// New returns a Handler.
func New(cfg Config) *Handler {
	if cfg.Rate == 0 {
		cfg.Rate = DefaultRate
	}
	if cfg.Meter == nil {
		cfg.Meter = meter.New()
	}
	return &Handler{cfg: cfg, limits: newLimits(float64(cfg.Rate))}
}

// ask is a question that is being answered.
type ask struct {
	h     *Handler
	m     *dns.Msg // the request
	q     dns.Question
	from  netip.Addr
	begin time.Time
	flags [2]byte
	// room is how long the answer may be; edns is the answer's own OPT, nil without.
	room  int
	edns  *dns.OPT
	tcp   bool
	reply func([]byte)
}

const (
	headerSize = 12
	plainSize  = 512
	// ednsSize is what a datagram may hold without being cut in pieces on its way (DNS flag day 2020).
	ednsSize = 1232
	tcpSize  = 65535
)

// Serve answers one packet, unless it returns false: then reply, which may not keep its argument, is not called. Else
// it is called once, maybe later and from another goroutine. The packet is the caller's again when Serve returns.
func (h *Handler) Serve(packet []byte, from netip.Addr, tcp bool, reply func([]byte)) bool {
	now := time.Now()
	switch from = from.Unmap(); {
	case h.cfg.Allowed != nil && !h.cfg.Allowed(from):
		h.cfg.Meter.Dropped("source")
		return false
	case !h.limits.allow(from, now):
		h.cfg.Meter.Dropped("rate")
		return false
	case len(packet) < headerSize || packet[2]&0x80 != 0:
		h.cfg.Meter.Dropped("malformed")
		return false
	}
	a := &ask{
		h:     h,
		m:     new(dns.Msg),
		from:  from,
		begin: now,
		tcp:   tcp,
		room:  plainSize,
		reply: reply,
		flags: [2]byte{packet[2], packet[3]},
	}
	if tcp {
		a.room = tcpSize
	}
	if packet[2]>>3&0xf != dns.OpcodeQuery {
		a.bare(packet, dns.RcodeNotImplemented)
		return true
	}
	if err := a.m.Unpack(packet); err != nil || len(a.m.Question) != 1 {
		a.bare(packet, dns.RcodeFormatError)
		return true
	}
	a.q = a.m.Question[0]
	if rcode := a.options(); rcode != dns.RcodeSuccess {
		a.refuse(rcode)
		return true
	}
	if rcode := check(a.q); rcode != dns.RcodeSuccess {
		a.refuse(rcode)
		return true
	}
	a.answer()
	return true
}

// options reads EDNS (RFC 6891).
func (a *ask) options() (rcode int) {
	n := 0
	for _, rr := range a.m.Extra {
		opt, ok := rr.(*dns.OPT)
		if !ok {
			continue
		}
		if n++; n > 1 || opt.Hdr.Name != "." {
			return dns.RcodeFormatError
		}
		a.edns = &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		a.edns.SetUDPSize(ednsSize)
		if opt.Do() {
			a.edns.SetDo()
		}
		if opt.Version() != 0 {
			return dns.RcodeBadVers
		}
		if !a.tcp {
			a.room = min(max(int(opt.UDPSize()), plainSize), ednsSize)
		}
	}
	return dns.RcodeSuccess
}

// check refuses questions that are no questions for records.
func check(q dns.Question) (rcode int) {
	switch {
	case q.Qclass != dns.ClassINET:
		return dns.RcodeRefused // CHAOS and what no one uses
	case q.Qtype == dns.TypeAXFR || q.Qtype == dns.TypeIXFR:
		return dns.RcodeRefused
	case q.Qtype == dns.TypeNone || q.Qtype == dns.TypeOPT || q.Qtype >= dns.TypeTKEY &&
		q.Qtype <= dns.TypeMAILA && q.Qtype != dns.TypeANY:
		return dns.RcodeFormatError
	}
	return dns.RcodeSuccess
}

// answer asks who knows, the nearest first.
func (a *ask) answer() {
	if r, ok := a.h.hosts(a.q); ok {
		a.send(r, meter.Other)
		return
	}
	r := a.h.cfg.Zone.Resolve(a.q)
	switch {
	case r.Mine && r.Chase != "":
		a.chase(r)
	case r.Mine:
		a.send(a.message(r), meter.Cluster)
	case a.q.Qtype == dns.TypeANY: // RFC 8482: no one needs it
		msg := a.message(zone.Answer{})
		msg.Answer = []dns.RR{&dns.HINFO{
			Hdr: dns.RR_Header{
				Name:   a.q.Name,
				Rrtype: dns.TypeHINFO,
				Class:  dns.ClassINET,
				Ttl:    a.h.cfg.TTL,
			},
			Cpu: "RFC8482",
		}}
		msg.Authoritative = false
		a.send(msg, meter.Other)
	default:
		a.forward()
	}
}

// message is a reply with what the cluster says.
func (a *ask) message(r zone.Answer) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(a.m)
	m.Authoritative = true
	m.RecursionAvailable = true
	m.CheckingDisabled = a.m.CheckingDisabled
	m.Rcode = r.Rcode
	m.Answer = r.Answer
	m.Ns = r.Authority
	m.Extra = r.Additional
	return m
}

func (a *ask) question(name string) forward.Question {
	return forward.Question{
		Name:  strings.ToLower(name),
		Type:  a.q.Qtype,
		Class: a.q.Qclass,
		DO:    a.edns != nil && a.edns.Do(),
		CD:    a.m.CheckingDisabled,
	}
}

// forward answers with what others know.
func (a *ask) forward() {
	question := a.question(a.q.Name)
	if question.Type == dns.TypeHINFO && a.h.cfg.Forward.Probe(question.Name) {
		a.refuse(dns.RcodeRefused)
		return
	}
	if !a.m.RecursionDesired {
		a.refuse(dns.RcodeRefused)
		return
	}
	if r := a.h.cfg.Forward.Cached(question); r != nil {
		a.relay(r)
		return
	}
	if !a.h.cfg.Forward.Ask(a.from, question, a.relay) {
		a.h.cfg.Meter.Dropped("busy")
		a.refuse(dns.RcodeServerFailure)
	}
}

// chase completes an answer that ends with a name outside of the cluster.
func (a *ask) chase(answer zone.Answer) {
	msg := a.message(answer)
	if own, ok := a.h.hosts(dns.Question{Name: answer.Chase, Qtype: a.q.Qtype, Qclass: a.q.Qclass}); ok {
		msg.Answer = append(msg.Answer, own.Answer...)
		a.send(msg, meter.Cluster)
		return
	}
	join := func(reply *forward.Reply) {
		next, err := reply.Msg(time.Now())
		if err != nil {
			a.refuse(dns.RcodeServerFailure)
			return
		}
		msg.Answer = append(msg.Answer, next.Answer...)
		msg.Ns = next.Ns
		msg.Rcode = next.Rcode
		a.send(msg, meter.Cluster)
	}
	q := a.question(answer.Chase)
	if reply := a.h.cfg.Forward.Cached(q); reply != nil {
		join(reply)
		return
	}
	if !a.h.cfg.Forward.Ask(a.from, q, join) {
		a.h.cfg.Meter.Dropped("busy")
		a.refuse(dns.RcodeServerFailure)
	}
}

// hosts answers from the configuration.
func (h *Handler) hosts(question dns.Question) (*dns.Msg, bool) {
	s := h.cfg.Settings()
	if len(s.Hosts) == 0 {
		return nil, false
	}
	msg := &dns.Msg{Question: []dns.Question{question}}
	msg.RecursionAvailable = true
	msg.Authoritative = true
	msg.Response = true
	header := dns.RR_Header{
		Name:   question.Name,
		Rrtype: question.Qtype,
		Class:  dns.ClassINET,
		Ttl:    h.cfg.TTL,
	}
	name := strings.ToLower(question.Name)
	if question.Qtype == dns.TypePTR {
		a, ok := zone.Address(name)
		for _, name := range s.Back[a] {
			msg.Answer = append(msg.Answer, &dns.PTR{Hdr: header, Ptr: name})
		}
		return msg, ok && len(msg.Answer) > 0
	}
	addrs, ok := s.Hosts[name]
	if !ok {
		return nil, false
	}
	for _, ip := range addrs {
		switch {
		case question.Qtype == dns.TypeA && ip.Is4():
			msg.Answer = append(msg.Answer, &dns.A{Hdr: header, A: ip.AsSlice()})
		case question.Qtype == dns.TypeAAAA && ip.Is6():
			msg.Answer = append(msg.Answer, &dns.AAAA{Hdr: header, AAAA: ip.AsSlice()})
		}
	}
	return msg, true
}

// refuse answers with a code alone.
func (a *ask) refuse(rcode int) {
	m := a.message(zone.Answer{Rcode: rcode})
	m.Authoritative = false
	a.send(m, meter.Other)
}

// bare answers a packet that could not be read: there is no question to repeat.
func (a *ask) bare(packet []byte, rcode int) {
	var b [headerSize]byte
	copy(b[:2], packet)
	b[2] = 0x80 | packet[2]&0x79
	b[3] = byte(rcode) // below 16
	a.h.cfg.Meter.Served(meter.Other, a.tcp, a.from.Is6(), 0, rcode, a.begin)
	a.reply(b[:])
}

// send packs an answer into the room that there is.
func (a *ask) send(msg *dns.Msg, zone string) {
	msg.Id = a.m.Id
	msg.Opcode = a.m.Opcode
	msg.RecursionDesired = a.m.RecursionDesired
	msg.Compress = true
	rcode := msg.Rcode
	if a.edns != nil {
		msg.Extra = append(msg.Extra, a.edns)
	} else if msg.Rcode > 0xf {
		msg.Rcode = dns.RcodeServerFailure
	}
	if len(msg.Answer)+len(msg.Extra) > 8 || msg.Len() > a.room { // the length is not asked for in vain
		msg.Truncate(a.room)
	}
	buf := buffers.Get().(*[]byte) // nothing else is in the pool
	defer buffers.Put(buf)
	b, err := msg.PackBuffer(*buf)
	if err != nil { // of our own making: a name of an ExternalName or a host that is none
		a.bare([]byte{byte(a.m.Id >> 8), byte(a.m.Id), a.flags[0]}, dns.RcodeServerFailure)
		return
	}
	a.h.cfg.Meter.Served(zone, a.tcp, a.from.Is6(), a.q.Qtype, rcode, a.begin)
	a.reply(b)
}

// relay sends what others have answered.
func (a *ask) relay(reply *forward.Reply) {
	name := a.wireName()
	now := time.Now()
	opt := 0
	if a.edns != nil {
		opt = optSize
	}
	if reply.Size()+opt > a.room {
		a.relayCut(reply, now)
		return
	}
	buf := buffers.Get().(*[]byte) // nothing else is in the pool
	defer buffers.Put(buf)
	b := reply.Append((*buf)[:0], a.m.Id, name, a.flags, now)
	if a.edns != nil {
		b = append(b, 0, 0, byte(dns.TypeOPT), byte(ednsSize>>8), byte(ednsSize&0xff), 0, 0, 0, 0, 0, 0)
		if a.edns.Do() {
			b[len(b)-4] = 0x80
		}
		binary.BigEndian.PutUint16(b[10:], binary.BigEndian.Uint16(b[10:])+1)
	}
	a.h.cfg.Meter.Served(meter.Other, a.tcp, a.from.Is6(), a.q.Qtype, reply.Rcode(), a.begin)
	a.reply(b)
}

const optSize = 11

// relayCut sends of an answer what there is room for.
func (a *ask) relayCut(r *forward.Reply, now time.Time) {
	m, err := r.Msg(now)
	if err != nil {
		a.refuse(dns.RcodeServerFailure)
		return
	}
	m.Question = a.m.Question
	m.CheckingDisabled = a.m.CheckingDisabled
	a.send(m, meter.Other)
}

// wireName is the question's name as the client wrote it.
func (a *ask) wireName() []byte {
	b := make([]byte, 256)
	n, err := dns.PackDomainName(a.q.Name, b, 0, nil, false)
	if err != nil {
		return nil
	}
	return b[:n]
}
