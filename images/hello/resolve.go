// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// resolver asks name servers, as resolv.conf(5) says. The lookups of package net hide what nslookup prints: server,
// record types and codes.
type resolver struct {
	servers []string // HOST:PORT
	search  []string
	ndots   int
	timeout time.Duration
}

// The limits of the C library.
const (
	maxServers = 3
	maxSearch  = 32
	maxNdots   = 15
)

// readResolver reads a resolv.conf. What it does not say is as if the file was missing: a server on this machine, no
// search.
func readResolver(path string) (resolver, error) {
	r := resolver{ndots: 1, timeout: 5 * time.Second}
	f, err := os.Open(path)
	if err == nil {
		defer func() { _ = f.Close() }()
		err = r.read(f)
	}
	if len(r.servers) == 0 {
		r.servers = []string{"127.0.0.1:53"}
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return r, err
}

func (r *resolver) read(from io.Reader) error {
	lines := bufio.NewScanner(io.LimitReader(from, 1<<20))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			if len(r.servers) < maxServers {
				r.servers = append(r.servers, net.JoinHostPort(f[1], "53"))
			}
		case "domain", "search":
			r.search = f[1:min(len(f), maxSearch+1)]
		case "options":
			for _, o := range f[1:] {
				if n, ok := strings.CutPrefix(o, "ndots:"); ok {
					r.ndots = min(max(atoi(n, 1), 0), maxNdots)
				}
			}
		}
	}
	return lines.Err()
}

// candidates are the names that a name can mean, in the order in which they are tried.
func (r *resolver) candidates(name string) []string {
	if strings.HasSuffix(name, ".") {
		return []string{name}
	}
	var searched []string
	for _, domain := range r.search {
		if domain = strings.Trim(domain, "."); domain != "" {
			searched = append(searched, name+"."+domain+".")
		}
	}
	if strings.Count(name, ".") >= r.ndots {
		return append([]string{name + "."}, searched...)
	}
	return append(searched, name+".")
}

// errUnreached: no server has answered.
var errUnreached = errors.New(";; connection timed out; no servers could be reached")

// ask asks one server after the other until one answers, and returns its address.
func (r *resolver) ask(name string, kind dnsmessage.Type) (message dnsmessage.Message, server string, err error) {
	query, err := newQuery(name, kind)
	if err != nil {
		return message, "", fmt.Errorf("%s is not a name: %w", name, err)
	}
	packed, err := query.Pack()
	if err != nil {
		return message, "", fmt.Errorf("%s is not a name: %w", name, err)
	}
	for range 2 {
		for _, server := range r.servers {
			m, err := r.exchange("udp", server, query, packed)
			if err == nil && m.Truncated {
				m, err = r.exchange("tcp", server, query, packed)
			}
			if err == nil {
				return m, server, nil
			}
		}
	}
	return message, "", errUnreached
}

func newQuery(name string, kind dnsmessage.Type) (dnsmessage.Message, error) {
	n, err := dnsmessage.NewName(name)
	return dnsmessage.Message{
		// a guess is a lie to a tool that prints
		Header:    dnsmessage.Header{ID: uint16(rand.Uint32()), RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: n, Type: kind, Class: dnsmessage.ClassINET}},
	}, err
}

// exchange sends a query and waits for its answer. Anything else that comes is ignored.
func (r *resolver) exchange(
	network, server string, query dnsmessage.Message, packed []byte,
) (dnsmessage.Message, error) {
	conn, err := net.DialTimeout(network, server, r.timeout) //nolint:noctx // a program of its own: there is no context
	if err != nil {
		return dnsmessage.Message{}, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(r.timeout)); err != nil {
		return dnsmessage.Message{}, err
	}
	if network == "tcp" {
		// a name has 255 bytes at most
		packed = append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...)
	}
	if _, err := conn.Write(packed); err != nil {
		return dnsmessage.Message{}, err
	}
	buf := make([]byte, 1<<16)
	for {
		n, err := readMessage(conn, network, buf)
		if err != nil {
			return dnsmessage.Message{}, err
		}
		var m dnsmessage.Message
		if err := m.Unpack(buf[:n]); err != nil || m.ID != query.ID || !m.Response || !sameQuestion(m, query) {
			if network == "tcp" {
				return m, errors.New("the answer is not to this question")
			}
			continue
		}
		return m, nil
	}
}

func sameQuestion(m, query dnsmessage.Message) bool {
	return len(m.Questions) == 1 && m.Questions[0].Type == query.Questions[0].Type &&
		strings.EqualFold(m.Questions[0].Name.String(), query.Questions[0].Name.String())
}

func readMessage(c net.Conn, network string, buf []byte) (int, error) {
	if network == "udp" {
		return c.Read(buf)
	}
	if _, err := io.ReadFull(c, buf[:2]); err != nil {
		return 0, err
	}
	return io.ReadFull(c, buf[:binary.BigEndian.Uint16(buf)])
}
