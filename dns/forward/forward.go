// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"keelson/dns/meter"
)

// Bounds of what is under way.
const (
	maxFlights   = 1024
	maxWaiters   = 8192
	maxPerClient = 64
	askLimit     = 5 * time.Second         // one question, whatever it takes; a resolver library waits as long
	tryLimit     = 1500 * time.Millisecond // one server's time to answer
	shunned      = 10 * time.Second        // for so long a server that did not answer is asked last
)

// Config is what a forwarder works with.
type Config struct {
	// Dial opens the way to a server; nil: the network's.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Looped is called with a server whose questions come back here; nil: it is logged only.
	Looped func(server netip.AddrPort)
	// Meter counts the questions; nil: the counts are not published.
	Meter *meter.Meter
	Log   *slog.Logger
}

// Route says who knows the names of a domain.
type Route struct {
	Domain  string // lower case, complete; "." is everything
	Servers []netip.AddrPort
}

// Forwarder asks other servers. Its methods are safe for concurrent use.
type Forwarder struct {
	cfg   Config
	plan  atomic.Pointer[plan]
	tasks sync.WaitGroup

	mu      sync.Mutex
	ctx     context.Context //nolint:containedctx // of Run: what is under way ends with it
	flights map[flightKey]*flight
	waiting int
	clients map[netip.Addr]int
}

// plan is a set of routes with what was learned under it.
type plan struct {
	routes []route // the longest domain first
	cache  *cache
	probes sync.Map // name -> *server
}

type route struct {
	domain  string
	servers []*server
}

type server struct {
	addr   string
	ap     netip.AddrPort
	looped atomic.Bool
	shun   atomic.Int64 // until, in Unix nanoseconds
}

type flightKey struct {
	plan *plan
	q    Question
}

type flight struct{ waiters []waiter }

type waiter struct {
	client netip.Addr
	done   func(*Reply)
}

// New returns a forwarder that knows no one yet. It starts nothing.
func New(cfg Config) *Forwarder {
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{}).DialContext
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Meter == nil {
		cfg.Meter = meter.New()
	}
	f := &Forwarder{cfg: cfg, flights: map[flightKey]*flight{}, clients: map[netip.Addr]int{}}
	f.plan.Store(&plan{cache: newCache()})
	return f
}

// Run answers until ctx ends, and then waits for what is under way.
func (f *Forwarder) Run(ctx context.Context) {
	f.mu.Lock()
	f.ctx = ctx
	f.mu.Unlock()
	f.probe(f.plan.Load())
	<-ctx.Done()
	f.mu.Lock()
	f.ctx = nil
	f.mu.Unlock()
	f.tasks.Wait()
}

// Use replaces the routes. What was remembered is forgotten, and each server is probed once for a loop.
func (f *Forwarder) Use(routes []Route) {
	p := &plan{cache: newCache()}
	for _, r := range routes {
		to := route{domain: strings.ToLower(dns.Fqdn(r.Domain))}
		for _, a := range r.Servers {
			to.servers = append(to.servers, &server{addr: a.String(), ap: a})
		}
		p.routes = append(p.routes, to)
	}
	slices.SortStableFunc(p.routes, func(a, b route) int { return dns.CountLabel(b.domain) - dns.CountLabel(a.domain) })
	f.plan.Store(p)
	f.probe(p)
}

// servers are those that know name.
func (p *plan) servers(name string) []*server {
	for _, r := range p.routes {
		if r.domain == "." || name == r.domain || strings.HasSuffix(name, "."+r.domain) {
			return r.servers
		}
	}
	return nil
}

// Cached is the remembered reply to q; nil: there is none.
func (f *Forwarder) Cached(q Question) *Reply {
	r := f.plan.Load().cache.get(q, time.Now())
	if r == nil {
		f.cfg.Meter.Miss()
		return nil
	}
	f.cfg.Meter.Hit(r.Rcode())
	return r
}

// Ask asks for q in client's name. done is called once, from another goroutine, with a reply; one that says SERVFAIL
// where no one answered. false: too much is under way, and done will not be called.
func (f *Forwarder) Ask(client netip.Addr, q Question, done func(*Reply)) bool {
	plan := f.plan.Load()
	key := flightKey{plan, q}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx == nil || f.clients[client] >= maxPerClient || f.waiting >= maxWaiters {
		return false
	}
	fl := f.flights[key]
	if fl == nil {
		if len(f.flights) >= maxFlights {
			return false
		}
		fl = &flight{}
		f.flights[key] = fl
		ctx := f.ctx
		f.tasks.Go(func() { f.fly(ctx, plan, key) })
	}
	fl.waiters = append(fl.waiters, waiter{client, done})
	f.clients[client]++
	f.waiting++
	return true
}

// fly asks the upstreams, caches the answer and answers everyone who waits for it.
func (f *Forwarder) fly(ctx context.Context, p *plan, key flightKey) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	reply := f.exchange(ctx, p.servers(key.q.Name), key.q)
	cancel()
	p.cache.put(key.q, reply)
	f.mu.Lock()
	fl := f.flights[key]
	delete(f.flights, key)
	f.waiting -= len(fl.waiters)
	for _, w := range fl.waiters {
		if f.clients[w.client]--; f.clients[w.client] <= 0 {
			delete(f.clients, w.client)
		}
	}
	f.mu.Unlock()
	for _, w := range fl.waiters {
		w.done(reply)
	}
}

// order puts servers that answer before those that did not lately, and leaves out those that lead back here.
func order(all []*server, now time.Time) []*server {
	out := make([]*server, 0, len(all))
	var last []*server
	for _, s := range all {
		switch {
		case s.looped.Load():
		case s.shun.Load() > now.UnixNano():
			last = append(last, s)
		default:
			out = append(out, s)
		}
	}
	return append(out, last...)
}

// exchange asks one server after the other, twice each; the reply may be a server's refusal or, where there is none,
// our SERVFAIL.
func (f *Forwarder) exchange(ctx context.Context, all []*server, question Question) *Reply {
	var refusal *dns.Msg
	servers := order(all, time.Now())
	for range 2 {
		for _, s := range servers {
			if ctx.Err() != nil {
				break
			}
			msg, err := f.try(ctx, s, question)
			f.cfg.Meter.Forwarded(s.addr, err == nil)
			if err != nil {
				if ctx.Err() == nil || errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
					s.shun.Store(time.Now().Add(shunned).UnixNano())
				}
				f.cfg.Log.Debug("a name server did not answer", "server", s.addr, "name", question.Name, "err", err)
				continue
			}
			s.shun.Store(0)
			if msg.Rcode != dns.RcodeSuccess && msg.Rcode != dns.RcodeNameError {
				refusal = msg
				continue
			}
			if r, err := keep(msg, time.Now()); err == nil {
				return r
			}
		}
		if refusal != nil {
			break
		}
	}
	if refusal != nil {
		refusal.Answer = nil
		refusal.Ns = nil
		refusal.Extra = nil
		if r, err := keep(refusal, time.Now()); err == nil {
			return r
		}
	}
	return failure(question, time.Now())
}

// failure says that no one answered.
func failure(q Question, now time.Time) *Reply {
	m := &dns.Msg{Question: []dns.Question{{Name: q.Name, Qtype: q.Type, Qclass: q.Class}}}
	m.Rcode = dns.RcodeServerFailure
	m.RecursionDesired = true
	r, err := keep(m, now)
	if err != nil { // the name was read from a message
		return &Reply{
			wire:   []byte{0, 0, bitQR, bitRA | dns.RcodeServerFailure, 0, 0, 0, 0, 0, 0, 0, 0},
			stored: now,
			name:   -1,
		}
	}
	return r
}
