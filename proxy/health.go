// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/proxy/services"
)

// healthChecks serves the health check node ports of Services, which report whether this node has local endpoints.
type healthChecks struct {
	log  *slog.Logger
	live *liveness
	own  func() ([]net.Addr, error) // the addresses of this machine

	mu      sync.Mutex
	running bool           // run has begun and not ended
	cidrs   []netip.Prefix // of the addresses that serve node ports; none: all
	wait    sync.WaitGroup
	servers map[uint16]*healthCheck
}

type healthCheck struct {
	name   types.NamespacedName
	local  int
	server *http.Server // nil: not listening
}

const (
	headerTimeout = 5 * time.Second
	closeTimeout  = time.Second
)

func (h *healthChecks) run(ctx context.Context, ready func()) error {
	h.mu.Lock()
	h.running = true
	for port, c := range h.servers {
		h.listenLocked(port, c)
	}
	h.mu.Unlock()
	ready()
	<-ctx.Done()
	h.mu.Lock()
	h.running = false
	for _, c := range h.servers {
		c.close()
	}
	h.servers = nil
	h.mu.Unlock()
	h.wait.Wait()
	return nil
}

func (c *healthCheck) close() {
	if c.server != nil {
		_ = c.server.Close() // its listener and connections
	}
}

// set starts and stops servers so that they match the Services, on the addresses that serve node ports.
func (h *healthChecks) set(state *services.State, cidrs []netip.Prefix) {
	want := map[uint16]*healthCheck{}
	for n, p := range state.All {
		if p.Health != nil {
			want[p.Health.Port] = &healthCheck{name: n, local: p.Health.Local}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.cidrs, cidrs) {
		h.cidrs = cidrs
		for _, c := range h.servers {
			c.close()
			c.server = nil
		}
	}
	for port, c := range h.servers {
		if want[port] == nil {
			c.close()
			delete(h.servers, port)
		}
	}
	for port, c := range want {
		if have := h.servers[port]; have != nil {
			have.name = c.name
			have.local = c.local
			h.listenLocked(port, have) // a port that was in use may be free by now
			continue
		}
		if h.servers == nil {
			h.servers = map[uint16]*healthCheck{}
		}
		h.servers[port] = c
		h.listenLocked(port, c)
	}
}

// has reports whether the port is a health check node port that is served.
func (h *healthChecks) has(port uint16) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.servers[port]
	return c != nil && c.server != nil
}

func (h *healthChecks) listenLocked(port uint16, c *healthCheck) {
	if !h.running || c.server != nil {
		return
	}
	var listeners []net.Listener
	for _, ip := range h.addressesLocked() {
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp",
			net.JoinHostPort(ip, strconv.Itoa(int(port))))
		if err != nil {
			h.log.Warn("health check node port", "service", c.name, "addr", ip, "port", port, "err", err)
			for _, open := range listeners {
				_ = open.Close()
			}
			return // on all addresses or on none, as in kube-proxy
		}
		listeners = append(listeners, l)
	}
	c.server = &http.Server{
		ReadHeaderTimeout: headerTimeout,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			h.mu.Lock()
			name := c.name
			local := c.local
			h.mu.Unlock()
			healthy := h.live.healthy()
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(local))
			if local == 0 || !healthy {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			writeJSON(w, localHealth{serviceName{name.Namespace, name.Name}, local, healthy})
		}),
	}
	server := c.server
	for _, l := range listeners {
		h.wait.Go(func() { _ = server.Serve(l) }) // ends when it is closed
	}
}

// addressesLocked returns the addresses to listen on; "" means all. As in kube-proxy, it is also "" if the machine has
// no address that serves node ports.
func (h *healthChecks) addressesLocked() []string {
	if len(h.cidrs) == 0 || slices.ContainsFunc(h.cidrs, func(c netip.Prefix) bool { return c.Bits() == 0 }) {
		return []string{""}
	}
	all, err := h.own()
	var out []string
	for _, a := range all {
		p, bad := netip.ParsePrefix(a.String())
		if bad == nil && !p.Addr().IsLinkLocalUnicast() && slices.ContainsFunc(h.cidrs, func(c netip.Prefix) bool {
			return c.Contains(p.Addr())
		}) {
			out = append(out, p.Addr().String())
		}
	}
	if len(out) == 0 {
		h.log.Warn("no address of this machine serves node ports: health check node ports listen on all",
			"nodeport-addresses", h.cidrs, "err", err)
		return []string{""}
	}
	return out
}

// localHealth is the response of a health check node port, in kube-proxy's format.
type localHealth struct {
	Service        serviceName `json:"service"`
	LocalEndpoints int         `json:"localEndpoints"`
	Healthy        bool        `json:"serviceProxyHealthy"`
}

type serviceName struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// proxyHealth is the response of /healthz and /livez, in kube-proxy's format.
type proxyHealth struct {
	LastUpdated  time.Time                        `json:"lastUpdated"`
	CurrentTime  time.Time                        `json:"currentTime"`
	NodeEligible *bool                            `json:"nodeEligible,omitempty"`
	Healthy      bool                             `json:"healthy"`
	Status       map[corev1.IPFamily]familyHealth `json:"status,omitempty"`
}

type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

func writeJSON(w http.ResponseWriter, v any) {
	b, err := json.MarshalIndent(v, "", "\t")
	if err == nil {
		_, _ = w.Write(append(b, '\n')) // the client has disconnected
	}
}

// liveness records whether rules are written successfully.
type liveness struct {
	mu      sync.Mutex
	last    time.Time // of the last write
	failing time.Time // since when writes fail; zero: they do not
	leaving bool      // the node is about to be removed
}

// unhealthyAfter is how long writes may fail before the proxy reports itself unhealthy: twice kube-proxy's sync period.
const unhealthyAfter = time.Minute

func (l *liveness) wrote() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = time.Now()
	l.failing = time.Time{}
}

func (l *liveness) failed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failing.IsZero() {
		l.failing = time.Now()
	}
}

func (l *liveness) healthy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.last.IsZero() && (l.failing.IsZero() || time.Since(l.failing) < unhealthyAfter)
}

// toBeDeleted is the taint of nodes that the cluster autoscaler is about to remove.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

func (l *liveness) eligible(node *corev1.Node) {
	leaving := node.DeletionTimestamp != nil
	for _, t := range node.Spec.Taints {
		leaving = leaving || t.Key == toBeDeleted
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaving = leaving
}

// serveHealthz serves /healthz and /livez as kube-proxy does.
func (p *Proxy) serveHealthz(ctx context.Context, ready func()) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { p.live.answer(w, true) })
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { p.live.answer(w, false) })
	return p.serve(ctx, ready, p.cfg.Options.HealthzBindAddress, mux)
}

// serveMode serves /proxyMode, /healthz and the pages of the component at kube-proxy's address for metrics, where
// tools ask for the mode. It serves no metrics: any pod of the host network could read them. The API server has those
// of the proxy in its process.
func (p *Proxy) serveMode(ctx context.Context, ready func()) error {
	mux := http.NewServeMux()
	text := func(path, answer string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			_, _ = io.WriteString(w, answer) // the client may be gone
		})
	}
	text("/healthz", "ok")
	text("/proxyMode", "nftables")
	if p.cfg.Pages != nil {
		mux.Handle("/statusz", p.cfg.Pages)
		mux.Handle("/flagz", p.cfg.Pages)
	}
	return p.serve(ctx, ready, p.cfg.Options.MetricsBindAddress, mux)
}

// serve serves a mux until ctx is done; with an empty address it waits. If the port is in use, the proxy works without.
func (p *Proxy) serve(ctx context.Context, ready func(), addr string, mux *http.ServeMux) error {
	ready()
	if addr == "" {
		<-ctx.Done()
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		p.log.Warn("the service proxy does not answer at an address", "addr", addr, "err", err)
		<-ctx.Done()
		return nil
	}
	s := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", addr, err)
	}
	return nil
}

func (l *liveness) answer(w http.ResponseWriter, asNode bool) {
	healthy := l.healthy()
	l.mu.Lock()
	last := l.last
	leaving := l.leaving
	l.mu.Unlock()
	now := time.Now()
	out := proxyHealth{
		LastUpdated: last,
		CurrentTime: now,
		Healthy:     healthy,
		Status:      map[corev1.IPFamily]familyHealth{},
	}
	if !last.IsZero() { // one table has both families
		out.Status[corev1.IPv4Protocol] = familyHealth{last, healthy}
		out.Status[corev1.IPv6Protocol] = familyHealth{last, healthy}
	}
	if asNode {
		out.NodeEligible = new(!leaving)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !healthy || asNode && leaving {
		w.WriteHeader(http.StatusServiceUnavailable)
	} else {
		out.LastUpdated = now // the kernel has all changes
	}
	writeJSON(w, out)
}

// since returns the time since which writes fail; zero: they do not.
func (l *liveness) since() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failing
}
