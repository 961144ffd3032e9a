// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// udpSize is what an upstream may send in one datagram: it is never cut in pieces on its way.
const udpSize = 1232

// try asks one server, by TCP where UDP has not enough room.
func (f *Forwarder) try(ctx context.Context, s *server, q Question) (*dns.Msg, error) {
	m, err := f.once(ctx, "udp", s, q, true)
	if err == nil && m.Rcode == dns.RcodeFormatError { // it may be too old for EDNS
		m, err = f.once(ctx, "udp", s, q, false)
	}
	if err == nil && m.Truncated {
		m, err = f.once(ctx, "tcp", s, q, true)
	}
	return m, err
}

// query is the question as it is sent, with an id of its own.
func query(q Question, edns bool) (*dns.Msg, []byte, error) {
	var id [2]byte
	_, _ = rand.Read(id[:]) // never fails
	m := &dns.Msg{Question: []dns.Question{{Name: q.Name, Qtype: q.Type, Qclass: q.Class}}}
	m.Id = binary.BigEndian.Uint16(id[:])
	m.RecursionDesired = true
	m.CheckingDisabled = q.CD
	if edns {
		m.SetEdns0(udpSize, q.DO)
	}
	b, err := m.Pack()
	return m, b, err
}

func (f *Forwarder) once(ctx context.Context, network string, s *server, q Question, edns bool) (*dns.Msg, error) {
	asked, wire, err := query(q, edns)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	conn, err := f.cfg.Dial(ctx, network, s.addr)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if network == "tcp" {
		return overTCP(conn, asked, wire)
	}
	if _, err := conn.Write(wire); err != nil {
		return nil, err
	}
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return nil, err
		}
		if m, err := accept(asked, buf[:n]); err == nil {
			return m, nil // what does not fit was not sent by the server we asked, or is late: the wait goes on
		}
	}
}

func overTCP(conn net.Conn, asked *dns.Msg, wire []byte) (*dns.Msg, error) {
	framed := binary.BigEndian.AppendUint16(nil, uint16(len(wire))) // a question is short
	if _, err := conn.Write(append(framed, wire...)); err != nil {
		return nil, err
	}
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil, err
	}
	buf := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(conn, buf); err != nil {
		return nil, err
	}
	return accept(asked, buf)
}

var errForeign = errors.New("not an answer to the question")

// accept reads an answer to asked.
func accept(asked *dns.Msg, b []byte) (*dns.Msg, error) {
	if len(b) < headerSize || binary.BigEndian.Uint16(b) != asked.Id || b[2]&bitQR == 0 {
		return nil, errForeign
	}
	msg := new(dns.Msg)
	if err := msg.Unpack(b); err != nil {
		if b[2]&bitTC == 0 {
			return nil, fmt.Errorf("read an answer: %w", err)
		}
		msg = &dns.Msg{Question: asked.Question} // cut in the middle of a record
		msg.Truncated = true
		return msg, nil
	}
	if msg.Opcode != dns.OpcodeQuery {
		return nil, errForeign
	}
	if len(msg.Question) == 0 && msg.Rcode == dns.RcodeFormatError {
		msg.Question = asked.Question
	}
	if len(msg.Question) != 1 {
		return nil, errForeign
	}
	got := msg.Question[0]
	want := asked.Question[0]
	if !strings.EqualFold(got.Name, want.Name) || got.Qtype != want.Qtype || got.Qclass != want.Qclass {
		return nil, errForeign
	}
	msg.Question = asked.Question
	return msg, nil
}

// probe asks each server of steps for a name that no one else knows of: if the question arrives here, it leads in a
// circle.
func (f *Forwarder) probe(steps *plan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx == nil || f.plan.Load() != steps {
		return
	}
	ctx := f.ctx
	for _, r := range steps.routes {
		domain := r.domain
		if domain == "." {
			domain = "keelson-loop."
		}
		for _, s := range r.servers {
			name := nonce() + "." + domain
			if _, asked := steps.probes.LoadOrStore(name, s); asked {
				continue
			}
			f.tasks.Go(func() {
				// whether it comes back here is all that counts
				_, _ = f.once(ctx, "udp", s, Question{Name: name, Type: dns.TypeHINFO, Class: dns.ClassINET}, true)
				steps.probes.Delete(name)
			})
		}
	}
}

func nonce() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Probe reports whether a question that has come here is one of this forwarder's own: its server is not asked any more.
func (f *Forwarder) Probe(name string) bool {
	v, ok := f.plan.Load().probes.LoadAndDelete(strings.ToLower(name))
	if !ok {
		return false
	}
	s := v.(*server) // nothing else is stored
	if !s.looped.Swap(true) {
		f.cfg.Log.Error("a name server leads back to this one and is not asked any more; name another in the node's "+
			"resolv.conf or in the configuration of names", "server", s.addr)
		if f.cfg.Looped != nil {
			f.cfg.Looped(s.ap)
		}
	}
	return true
}
