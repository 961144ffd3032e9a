// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/network/nft"
)

// TestRepairs: changes of the table by other programs are undone. Tables of other programs are not changed.
func TestRepairs(t *testing.T) {
	world := newWorld(t)
	// Tables like those of Docker and a firewall.
	world.nft(
		`table ip nat { chain DOCKER { iifname "docker0" return; }; chain PREROUTING { type nat hook prerouting priority dstnat; fib daddr type local jump DOCKER; }; }`)
	world.nft(
		`table ip filter { chain FORWARD { type filter hook forward priority filter; policy drop; iifname "docker0" accept; ip daddr { 10.96.0.0/16, 10.244.0.0/16, 192.0.2.0/24 } accept; }; }`)
	foreign := func() string {
		return world.nft("list", "table", "ip", "nat") + world.nft("list", "table", "ip", "filter")
	}
	before := foreign()
	world.serve("s", "10.96.0.1", corev1.ProtocolTCP, nil, podA)
	world.start()
	works := func() string { return world.ask("tcp", vip) }
	world.until("at first", "a", works)
	for _, damage := range [][]string{
		{"delete", "table", "inet", world.cfg.Table},
		{"flush", "chain", "inet", world.cfg.Table, "services"},
		{"flush", "map", "inet", world.cfg.Table, "cluster-endpoints4"},
		{"insert", "rule", "inet", world.cfg.Table, "services", "drop"},
	} {
		world.nft(damage...)
		world.until(strings.Join(damage, " "), "a", works)
		if strings.Contains(world.nft("list", "chain", "inet", world.cfg.Table, "services"), "drop") {
			t.Errorf("%v: the foreign rule is still there", damage)
		}
	}
	// Changes of Services are still applied.
	world.serve("s", "10.96.0.1", corev1.ProtocolTCP, nil, podB)
	world.until("after a change", "b", works)
	if got := foreign(); got != before {
		t.Errorf("foreign tables:\n%s\nwere\n%s", got, before)
	}
	world.stop()
	world.until("without the process", "b", works)
	x, err := nft.Open(nft.Config{Name: world.cfg.Table, NetNS: world.cfg.NetNS})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Delete(); err != nil {
		t.Fatal(err)
	}
	_ = x.Close()
	if got := foreign(); got != before || strings.Contains(world.nft("list", "tables"), world.cfg.Table) {
		t.Errorf("after purge: %s\nforeign tables:\n%s", world.nft("list", "tables"), got)
	}
	// Another program flushes the ruleset.
	world.start()
	world.until("started again", "b", works)
	world.nft("flush", "ruleset")
	world.until("flush ruleset", "b", works)
}

// TestRestart: a restarted proxy takes over the table. Meanwhile connections continue, new ones are served, and clients
// keep their endpoints (session affinity).
func TestRestart(t *testing.T) {
	world := newWorld(t)
	sticky := func(s *corev1.Service) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(600))},
		}
	}
	world.serve("s", "10.96.0.1", corev1.ProtocolTCP, nil, podA)
	world.serve("sticky", "10.96.0.2", corev1.ProtocolTCP, sticky, podA, podB)
	world.start()
	open, err := world.dial("tcp", vip)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	its := world.ask("tcp", "10.96.0.2:80")
	for i := range 6 {
		world.stop()
		if i == 3 { // while the proxy does not run
			world.serve("s", "10.96.0.1", corev1.ProtocolTCP, nil, podB)
		}
		asked := make(chan string, 1)
		leave := make(chan struct{})
		go func() { // ends when the proxy is ready
			for {
				select {
				case <-leave:
					asked <- ""
					return
				default:
				}
				if got := world.ask("tcp", vip); got != "a" && got != "b" {
					asked <- got
					return
				}
			}
		}()
		world.start()
		close(leave)
		if got := <-asked; got != "" {
			t.Errorf("restart %d: a new connection: %s", i, got)
		}
		if got := say(open, "still there?"); got != "a still there?" {
			t.Errorf("restart %d: the open connection answers %q", i, got)
		}
		for range 5 {
			if got := world.ask("tcp", "10.96.0.2:80"); got != its {
				t.Errorf("restart %d: the client was served by %s, now by %s", i, its, got)
			}
		}
	}
	if got := world.ask("tcp", vip); got != "b" {
		t.Errorf("what changed meanwhile: %q", got)
	}
}

// TestStaleFlows: a UDP flow does not expire while it sees packets. So the proxy must delete its conntrack entry when
// its endpoint is removed, and when a Service without endpoints gets its first one.
func TestStaleFlows(t *testing.T) {
	world := newWorld(t)
	nodePort := func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort = 30053
	}
	world.serve("s", "10.96.0.1", corev1.ProtocolUDP, nodePort)
	world.start()
	flows := map[string]net.Conn{}
	for _, to := range []string{vip, "192.0.2.1:30053"} {
		c, err := world.dial("udp4", to)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		flows[to] = c
		say(c, "anyone there?")
	}
	both := func(want string) {
		t.Helper()
		for to, c := range flows {
			world.until(to, want+" ?", func() string { return say(c, "?") })
		}
	}
	world.serve("s", "10.96.0.1", corev1.ProtocolUDP, nodePort, podA)
	both("a")
	world.serve("s", "10.96.0.1", corev1.ProtocolUDP, nodePort, podA, podB)
	both("a") // a second endpoint does not move existing flows
	world.serve("s", "10.96.0.1", corev1.ProtocolUDP, nodePort, podB)
	both("b")
	world.stop()
	world.serve("s", "10.96.0.1", corev1.ProtocolUDP, nodePort, podA) // while the proxy does not run
	world.start()
	both("a")
	// Traffic of the node to the same port of another machine must not match.
	stale := staleNow(world)
	conntrackFlow := &netlink.ConntrackFlow{}
	conntrackFlow.Forward.Protocol = 17
	conntrackFlow.Forward.DstPort = 30053
	conntrackFlow.Reverse.SrcPort = 30053
	conntrackFlow.Forward.DstIP = net.ParseIP("198.51.100.7")
	conntrackFlow.Reverse.SrcIP = net.ParseIP("198.51.100.7")
	if stale.MatchConntrackFlow(conntrackFlow) {
		t.Error("a flow to another machine's port 30053 would be forgotten")
	}
	conntrackFlow.Forward.DstIP = net.ParseIP("192.0.2.1")
	conntrackFlow.Reverse.SrcIP = net.ParseIP("192.0.2.1")
	if !stale.MatchConntrackFlow(conntrackFlow) {
		t.Error("a flow to the node's own port 30053 that leads nowhere stays")
	}
}

func staleNow(w *world) *stale {
	p, err := New(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	h, err := p.netlink()
	if err != nil {
		w.t.Fatal(err)
	}
	defer h.Close()
	own := addressesOf(h)
	s := &stale{ours: func(a netip.Addr) bool { return own[a] }}
	s.ports = map[uint16]map[netip.AddrPort]bool{30053: {}}
	return s
}

// TestMetricsAddress: the mode and the health of the proxy are where kube-proxy has them, without the metrics. A port
// that is taken does not keep the proxy from its work.
func TestMetricsAddress(t *testing.T) {
	world := newWorld(t)
	world.cfg.Options.MetricsBindAddress = fmt.Sprint("127.0.0.1:", freePort(t))
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }() // nothing was sent
	world.cfg.Pages = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "page "+r.URL.Path) // the client may be gone
	})
	world.cfg.Options.HealthzBindAddress = taken.Addr().String()
	world.start()
	get := func(path string) string {
		resp, err := http.Get("http://" + world.cfg.Options.MetricsBindAddress + path)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(resp.StatusCode, " ", string(b))
	}
	world.until("the mode", "200 nftables", func() string { return get("/proxyMode") })
	if got := get("/healthz"); got != "200 ok" {
		t.Errorf("/healthz: got %q, want ok", got)
	}
	for _, page := range []string{"/statusz", "/flagz"} {
		if got := get(page); got != "200 page "+page {
			t.Errorf("%s: got %q", page, got)
		}
	}
	if got := get("/metrics"); !strings.HasPrefix(got, "404 ") {
		t.Errorf("/metrics: got %q, want 404", got)
	}
}

// TestHealthAnswers: health check node ports and /healthz respond like kube-proxy's.
func TestHealthAnswers(t *testing.T) {
	world := newWorld(t)
	port := freePort(t)
	healthz := freePort(t)
	world.cfg.Options.HealthzBindAddress = fmt.Sprint("127.0.0.1:", healthz)
	local := func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.HealthCheckNodePort = int32(port)
	}
	world.serve("web", "10.96.0.1", corev1.ProtocolTCP, local)
	world.start()
	get := func(port int, path string) (string, http.Header) {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
		if err != nil {
			return err.Error(), nil
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return err.Error(), nil
		}
		return fmt.Sprint(resp.StatusCode, " ", string(b)), resp.Header
	}
	want := func(code, n int, healthy bool) string {
		return fmt.Sprintf("%d {\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": "+
			"\"web\"\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}\n", code, n, healthy)
	}
	answer := func() string {
		got, _ := get(port, "/")
		return got
	}
	world.until("no endpoint", want(503, 0, true), answer)
	world.serve("web", "10.96.0.1", corev1.ProtocolTCP, local, podA, podB)
	world.until("two endpoints", want(200, 2, true), answer)
	_, h := get(port, "/")
	if h.Get("Content-Type") != "application/json" || h.Get("X-Load-Balancing-Endpoint-Weight") != "2" ||
		h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("headers: %v", h)
	}
	var keys map[string]any
	got, _ := get(healthz, "/healthz")
	if err := json.Unmarshal([]byte(strings.TrimPrefix(got, "200 ")), &keys); err != nil || keys["healthy"] != true ||
		keys["nodeEligible"] != true || keys["status"] == nil {
		t.Errorf("/healthz: %s", got)
	}
	// The autoscaler is about to remove the node: /healthz fails, so that load balancers stop using it, although the
	// proxy works.
	world.put(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node"},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: toBeDeleted}}},
	})
	world.until("/healthz of a node that goes", "503", func() string {
		got, _ := get(healthz, "/healthz")
		return got[:3]
	})
	if got, _ := get(healthz, "/livez"); !strings.HasPrefix(got, "200 ") || strings.Contains(got, "nodeEligible") {
		t.Errorf("/livez: %s", got)
	}
	// Listening on a port that was in use is retried at the next change.
	other, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	port = other.Addr().(*net.TCPAddr).Port
	world.serve("web", "10.96.0.1", corev1.ProtocolTCP, local, podA)
	world.until("the new port is in the state", "b", func() string {
		world.serve("mark", "10.96.0.9", corev1.ProtocolTCP, nil, podB)
		return world.ask("tcp", "10.96.0.9:80")
	})
	_ = other.Close()
	world.serve("mark", "10.96.0.9", corev1.ProtocolTCP, nil, podA)
	world.until("the port is free", want(200, 1, true), answer)
	world.stop()
	if got := answer(); !strings.Contains(got, "refused") {
		t.Errorf("after the end: %s", got)
	}
}

// TestHealthCheckAddresses: health check node ports listen on the addresses that serve node ports.
func TestHealthCheckAddresses(t *testing.T) {
	h := &healthChecks{
		log: slog.New(slog.DiscardHandler),
		own: func() ([]net.Addr, error) {
			var out []net.Addr
			for _, text := range []string{"127.0.0.1/8", "::1/128", "192.0.2.7/24", "198.51.100.7/24", "fe80::1/64"} {
				ip, n, err := net.ParseCIDR(text)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, &net.IPNet{IP: ip, Mask: n.Mask})
			}
			return out, nil
		},
	}
	for cidrs, want := range map[string]string{
		"":                             "[]",
		"192.0.2.0/24":                 "[192.0.2.7]",
		"192.0.2.0/24 198.51.100.7/32": "[192.0.2.7 198.51.100.7]",
		"127.0.0.0/8 ::1/128":          "[127.0.0.1 ::1]",
		"0.0.0.0/0":                    "[]",
		"203.0.113.0/24":               "[]",
		"fe80::/10":                    "[]",
	} {
		h.cidrs, _ = prefixes("", strings.Fields(cidrs))
		if got := fmt.Sprint(h.addressesLocked()); got != want {
			t.Errorf("--nodeport-addresses %q: listens on %s, want %s", cidrs, got, want)
		}
	}
}

// TestUnhealthy: writes may fail for a short time. If they fail for longer than unhealthyAfter, /healthz fails.
func TestUnhealthy(t *testing.T) {
	ask := func(l *liveness) string {
		r := httptest.NewRecorder()
		l.answer(r, true)
		var out proxyHealth
		if err := json.Unmarshal(r.Body.Bytes(), &out); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(r.Code, out.Healthy)
	}
	l := &liveness{}
	var got []string
	got = append(got, ask(l)) // nothing is written yet
	l.wrote()
	got = append(got, ask(l))
	l.failed()
	got = append(got, ask(l))
	l.failing = l.failing.Add(-2 * unhealthyAfter)
	l.failed() // again: the time of the first failure counts
	got = append(got, ask(l))
	l.wrote()
	got = append(got, ask(l))
	if want := []string{"503 false", "200 true", "200 true", "503 false", "200 true"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// freePort returns a free port below 32768. The kernel does not assign these to other programs by itself.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", 20000+rand.IntN(12000)))
		if err == nil {
			defer l.Close()
			return l.Addr().(*net.TCPAddr).Port
		}
	}
	t.Fatal("no port is free")
	return 0
}
