// SPDX-License-Identifier: Apache-2.0

// Package tunnels keeps the connections that nodes open to this server. Through them the server reaches kubelets behind
// NAT or a firewall. apiserver mounts it and passes it to apiserver/outbound. It knows no Kubernetes objects and never
// dials.
//
// Invariants:
//  1. A node has a few tunnels at most: one for each address by which it knows this server. Connections go through the
//     one that it opened last. They lead only to that node's own kubelet, which presents the same certificate as
//     without a tunnel.
//  2. A tunnel ends with the node, with the certificate that opened it, and with the server.
//  3. Owners share the requests that go through a node's tunnels, so that no tenant takes a node's logs and exec away
//     from the others.
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
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"keelson/lib/connlimit"
	"keelson/lib/mux"
)

// Config holds the callbacks of Tunnels.
type Config struct {
	// Caller is the node in a request's client certificate; an error's text is the response for other callers.
	Caller func(*http.Request) (node string, err error)
	// Exists reports whether a node is registered.
	Exists func(ctx context.Context, node string) (bool, error)
	Log    *slog.Logger
}

// Tunnels are the tunnels of one server. It is safe for concurrent use.
type Tunnels struct {
	cfg   Config
	gauge prometheus.GaugeFunc
	wg    sync.WaitGroup

	mu     sync.Mutex
	closed bool
	byNode map[string][]*tunnel         // of each node those it has, the newest last
	places map[string]*connlimit.Places // of each node with requests through a tunnel
}

// Requests is the number of requests of users that may go through a node's tunnels at a time. The other connections of
// a tunnel are idle ones (outbound keeps 16 a node) and those for the server's own requests.
const Requests = mux.Most - 24

// mostOfNode is the maximum number of a node's tunnels. The oldest ends when there are more.
const mostOfNode = 4

type tunnel struct {
	session *mux.Session
	slots   chan struct{}
}

// New returns an empty Tunnels.
func New(cfg Config) *Tunnels {
	t := &Tunnels{cfg: cfg, byNode: map[string][]*tunnel{}, places: map[string]*connlimit.Places{}}
	t.gauge = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "keelson_apiserver_node_tunnels",
		Help: "Nodes that keep a connection open, by which the server reaches their kubelets.",
	}, func() float64 {
		t.mu.Lock()
		defer t.mu.Unlock()
		return float64(len(t.byNode))
	})
	return t
}

// Collectors are the metrics.
func (t *Tunnels) Collectors() []prometheus.Collector { return []prometheus.Collector{t.gauge} }

// ServeHTTP converts a node's request into its tunnel. It returns when the tunnel is open.
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
		t.cfg.Log.Warn("open tunnel of node", "node", node, "err", err)
	}
}

// open responds to the node and starts the tunnel.
func (t *Tunnels) open(conn net.Conn, buffered *bufio.ReadWriter, node string, ends time.Time) error {
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return fmt.Errorf("take over the connection: %w", err)
	}
	j := &hijackedConn{Conn: conn, r: buffered.Reader, responded: make(chan struct{})}
	session, err := mux.Opener(j)
	if err != nil {
		return fmt.Errorf("open the tunnel: %w", err)
	}
	// Register the tunnel before the node reads the response, so that a deletion of the node or a dial finds it.
	tn := &tunnel{session: session, slots: make(chan struct{}, mux.Most)}
	kept := t.register(node, tn)
	if kept {
		_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+
			mux.Protocol+"\r\n\r\n")
	} else {
		err = errors.New("the server stops")
	}
	close(j.responded)
	if err != nil {
		if kept {
			t.remove(node, tn)
		}
		return errors.Join(fmt.Errorf("answer: %w", err), session.Close())
	}
	// The node may have been deleted meanwhile; then nothing else would end the tunnel.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if there, err := t.cfg.Exists(ctx, node); err == nil && !there {
		t.CloseNode(node)
	}
	t.cfg.Log.Info("tunnel to kubelet opened", "node", node, "from", conn.RemoteAddr())
	t.wg.Go(func() { t.serve(node, tn, ends) })
	t.wg.Go(func() { // nodes must not open streams: their data would fill this server's memory
		if _, err := session.Accept(); err == nil {
			t.cfg.Log.Warn("node opened a stream in its tunnel, close the tunnel", "node", node)
			_ = session.Close()
		}
	})
	return nil
}

// serve waits for the end of a tunnel: by CloseNode, newer tunnels, the peer, or the expiration of its certificate.
func (t *Tunnels) serve(node string, tn *tunnel, ends time.Time) {
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
	_ = tn.session.Close() // it has ended already
	t.remove(node, tn)
	t.cfg.Log.Info("tunnel to kubelet closed", "node", node, "why", why)
}

// register registers tn as the node's newest tunnel, and ends the oldest one if there are too many.
func (t *Tunnels) register(node string, tn *tunnel) bool {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return false
	}
	has := append(slices.Clone(t.byNode[node]), tn)
	more := max(0, len(has)-mostOfNode)
	t.byNode[node] = has[more:]
	t.mu.Unlock()
	for _, old := range has[:more] {
		_ = old.session.Close() // an error does not matter
	}
	return true
}

// remove removes an ended tunnel.
func (t *Tunnels) remove(node string, tn *tunnel) {
	t.mu.Lock()
	defer t.mu.Unlock()
	left := slices.DeleteFunc(slices.Clone(t.byNode[node]), func(one *tunnel) bool { return one == tn })
	t.byNode[node] = left
	if len(left) == 0 {
		delete(t.byNode, node)
	}
}

// CloseNode closes the tunnels of a deleted node, if it has any.
func (t *Tunnels) CloseNode(node string) {
	t.mu.Lock()
	all := t.byNode[node]
	t.mu.Unlock()
	for _, tn := range all {
		_ = tn.session.Close() // serve does the rest
	}
}

// Run keeps tunnels until ctx ends, then closes them.
func (t *Tunnels) Run(ctx context.Context) error {
	<-ctx.Done()
	t.mu.Lock()
	t.closed = true
	var all []*tunnel
	for _, has := range t.byNode {
		all = append(all, has...)
	}
	t.mu.Unlock()
	for _, tn := range all {
		_ = tn.session.Close() // serve does the rest
	}
	t.wg.Wait()
	return nil
}

// Enter takes a place for a request to a node's kubelet; false: the owner has its share, or all places are taken. leave
// gives the place back. A node without a tunnel has no places to share.
//
// Requests are counted, not connections: a connection that one owner's request opened is kept and serves the next one.
func (t *Tunnels) Enter(node string, owner connlimit.Owner) (leave func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.byNode[node]) == 0 {
		return func() {}, true
	}
	places := t.places[node]
	if places == nil {
		places = connlimit.NewPlaces(Requests)
	}
	if !places.Enter(owner) {
		return nil, false
	}
	t.places[node] = places
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if places.Leave(owner); places.Taken() == 0 {
			delete(t.places, node)
		}
	}), true
}

// Dial opens a connection to a node's kubelet through its newest tunnel; nil: it has none.
func (t *Tunnels) Dial(ctx context.Context, node string) (net.Conn, error) {
	t.mu.Lock()
	has := t.byNode[node]
	t.mu.Unlock()
	if len(has) == 0 {
		return nil, nil // nil: there is no tunnel
	}
	tn := has[len(has)-1]
	select {
	case tn.slots <- struct{}{}:
	default:
		return nil, fmt.Errorf("node %s: %d connections lead through its tunnel already", node, mux.Most)
	}
	stream, err := tn.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("node %s: its tunnel: %w", node, err)
	}
	return &countedConn{Conn: stream, release: sync.OnceFunc(func() { <-tn.slots })}, nil
}

// dial opens a stream for a caller that holds a seat, and releases the seat on an error. If a node does not respond,
// Open blocks for minutes; the seat then stays taken, which limits the number of blocked calls.
func (tn *tunnel) dial(ctx context.Context) (net.Conn, error) {
	type result struct {
		stream net.Conn
		err    error
	}
	results := make(chan result)
	go func() { // ends when the stream is open or the session ends
		stream, err := tn.session.Open()
		if err != nil {
			<-tn.slots
		}
		select {
		case results <- result{stream, err}:
		case <-ctx.Done():
			if err == nil {
				_ = stream.Close()
				<-tn.slots
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

// countedConn releases its seat when it is closed.
type countedConn struct {
	net.Conn
	release func()
}

func (s *countedConn) Close() error {
	defer s.release()
	return s.Conn.Close()
}

// hijackedConn first reads the bytes that the HTTP server has buffered, and delays writes until the response to the
// node's request is sent.
type hijackedConn struct {
	net.Conn
	r         io.Reader
	responded chan struct{} // closed after the response
}

func (j *hijackedConn) Read(p []byte) (int, error) { return j.r.Read(p) }

func (j *hijackedConn) Write(p []byte) (int, error) {
	<-j.responded
	return j.Conn.Write(p)
}
