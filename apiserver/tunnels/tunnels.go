// SPDX-License-Identifier: Apache-2.0

// Package tunnels keeps the connections that nodes hold open to this server, by which it reaches kubelets that it could not connect to:
// behind NAT or a firewall. apiserver mounts it and gives it to apiserver/outbound; it knows no Kubernetes objects, and dials nobody.
//
// Invariants:
//  1. A node has one tunnel at most: that which it opened last. Nothing leads through it but connections to that node's own kubelet, which
//     prove themselves as without a tunnel.
//  2. A tunnel ends with the node, with the certificate that opened it, and with the server.
package tunnels

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"keelson/lib/mux"
)

// Config is what tunnels ask others.
type Config struct {
	// Caller is the node that a request's client certificate is of; an error's text is the answer to who is no node.
	Caller func(*http.Request) (node string, err error)
	// Exists tells whether a node is registered.
	Exists func(ctx context.Context, node string) (bool, error)
	Log    *slog.Logger
}

// Tunnels are those of one server. Its methods may be called from any goroutine.
type Tunnels struct {
	cfg   Config
	gauge prometheus.GaugeFunc
	lives sync.WaitGroup

	mu     sync.Mutex
	closed bool
	byNode map[string]*tunnel
}

type tunnel struct {
	session *mux.Session
	seats   chan struct{}
}

// New returns none yet.
func New(cfg Config) *Tunnels {
	t := &Tunnels{cfg: cfg, byNode: map[string]*tunnel{}}
	t.gauge = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "keelson_apiserver_node_tunnels", Help: "Nodes that keep a connection open, by which the server reaches their kubelets.",
	}, func() float64 {
		t.mu.Lock()
		defer t.mu.Unlock()
		return float64(len(t.byNode))
	})
	return t
}

// Collectors are the metrics.
func (t *Tunnels) Collectors() []prometheus.Collector { return []prometheus.Collector{t.gauge} }

// ServeHTTP turns a node's request into its tunnel. It returns when the tunnel is open; the tunnel lives on.
func (t *Tunnels) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	node, err := t.cfg.Caller(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	if r.Method != http.MethodGet || !strings.EqualFold(r.Header.Get("Upgrade"), mux.Protocol) || r.ProtoMajor != 1 {
		w.Header().Set("Upgrade", mux.Protocol)
		http.Error(w, "this path takes connections of nodes: Upgrade: "+mux.Protocol, http.StatusUpgradeRequired)
		return
	}
	there, err := t.cfg.Exists(r.Context(), node)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	case !there:
		http.Error(w, fmt.Sprintf("node %q is not registered", node), http.StatusConflict)
		return
	}
	ends := time.Time{}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		ends = r.TLS.PeerCertificates[0].NotAfter
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if err := t.open(conn, buffered, node, ends); err != nil {
		_ = conn.Close()
		t.cfg.Log.Warn("a node's tunnel was not opened", "node", node, "err", err)
	}
}

// open answers the node and begins the tunnel.
func (t *Tunnels) open(conn net.Conn, buffered *bufio.ReadWriter, node string, ends time.Time) error {
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return fmt.Errorf("take over the connection: %w", err)
	}
	j := &joined{Conn: conn, r: buffered.Reader, answered: make(chan struct{})}
	session, err := mux.Opener(j)
	if err != nil {
		return fmt.Errorf("open the tunnel: %w", err)
	}
	// The tunnel is the node's before the node reads the answer: whoever deletes or dials the node from then on finds it.
	tn := &tunnel{session: session, seats: make(chan struct{}, mux.Most)}
	kept := t.put(node, tn)
	if kept {
		_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+mux.Protocol+"\r\n\r\n")
	} else {
		err = errors.New("the server stops")
	}
	close(j.answered)
	if err != nil {
		if kept {
			t.remove(node, tn)
		}
		return errors.Join(fmt.Errorf("answer: %w", err), session.Close())
	}
	// The node may have gone while it was asked for: then nobody else ends the tunnel.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if there, err := t.cfg.Exists(ctx, node); err == nil && !there {
		t.End(node)
	}
	t.cfg.Log.Info("a node opened a tunnel to its kubelet", "node", node, "from", conn.RemoteAddr())
	t.lives.Go(func() { t.live(node, tn, ends) })
	t.lives.Go(func() { // a node has nothing to open: what it sends there would lie in this server's memory
		if _, err := session.Accept(); err == nil {
			t.cfg.Log.Warn("a node opened a connection to the server through its tunnel, which ends", "node", node)
			_ = session.Close()
		}
	})
	return nil
}

// live waits for the end of a tunnel: End, a later one, the other side, or its certificate's.
func (t *Tunnels) live(node string, tn *tunnel, ends time.Time) {
	why := "the connection ended"
	if ends.IsZero() {
		<-tn.session.Ended()
	} else {
		timer := time.NewTimer(time.Until(ends))
		defer timer.Stop()
		select {
		case <-tn.session.Ended():
		case <-timer.C:
			why = "the node's certificate ended"
		}
	}
	_ = tn.session.Close() // it has ended, in whatever way
	t.remove(node, tn)
	t.cfg.Log.Info("a node's tunnel ended", "node", node, "why", why)
}

// put makes tn the node's tunnel and ends the one before.
func (t *Tunnels) put(node string, tn *tunnel) bool {
	t.mu.Lock()
	old := t.byNode[node]
	if t.closed {
		t.mu.Unlock()
		return false
	}
	t.byNode[node] = tn
	t.mu.Unlock()
	if old != nil {
		_ = old.session.Close() // it is of no use any more
	}
	return true
}

// remove forgets a tunnel that has ended, unless a later one has taken its place.
func (t *Tunnels) remove(node string, tn *tunnel) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byNode[node] == tn {
		delete(t.byNode, node)
	}
}

// End ends the tunnel of a node that has gone, if it has one.
func (t *Tunnels) End(node string) {
	t.mu.Lock()
	tn := t.byNode[node]
	t.mu.Unlock()
	if tn != nil {
		_ = tn.session.Close() // live sees to the rest
	}
}

// Run keeps tunnels until ctx ends, and ends them.
func (t *Tunnels) Run(ctx context.Context) error {
	<-ctx.Done()
	t.mu.Lock()
	t.closed = true
	all := make([]*tunnel, 0, len(t.byNode))
	for _, tn := range t.byNode {
		all = append(all, tn)
	}
	t.mu.Unlock()
	for _, tn := range all {
		_ = tn.session.Close() // live sees to the rest
	}
	t.lives.Wait()
	return nil
}

// Dial opens a connection to a node's kubelet through its tunnel; nil: it has none.
func (t *Tunnels) Dial(ctx context.Context, node string) (net.Conn, error) {
	t.mu.Lock()
	tn := t.byNode[node]
	t.mu.Unlock()
	if tn == nil {
		return nil, nil //nolint:nilnil // absence is an answer here
	}
	select {
	case tn.seats <- struct{}{}:
	default:
		return nil, fmt.Errorf("node %s: %d connections lead through its tunnel already", node, mux.Most)
	}
	stream, err := tn.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("node %s: its tunnel: %w", node, err)
	}
	return &seated{Conn: stream, leave: sync.OnceFunc(func() { <-tn.seats })}, nil
}

// dial opens a stream for whoever has taken a seat, and gives the seat back where it opens none. A node that acknowledges nothing makes
// Open wait for minutes: then the seat stays taken, so that no more wait than there are seats.
func (tn *tunnel) dial(ctx context.Context) (net.Conn, error) {
	type result struct {
		stream net.Conn
		err    error
	}
	results := make(chan result)
	go func() { // ends when the stream is open or the session ends
		stream, err := tn.session.Open()
		if err != nil {
			<-tn.seats
		}
		select {
		case results <- result{stream, err}:
		case <-ctx.Done():
			if err == nil {
				_ = stream.Close()
				<-tn.seats
			}
		}
	}()
	select {
	case r := <-results:
		return r.stream, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// seated gives its seat back when it is closed.
type seated struct {
	net.Conn
	leave func()
}

func (s *seated) Close() error {
	defer s.leave()
	return s.Conn.Close()
}

// joined reads first what the server's HTTP has read ahead, and writes nothing before the answer to the node's request.
type joined struct {
	net.Conn
	r        io.Reader
	answered chan struct{} // closed after the answer
}

func (j *joined) Read(p []byte) (int, error) { return j.r.Read(p) }

func (j *joined) Write(p []byte) (int, error) {
	<-j.answered
	return j.Conn.Write(p)
}
