// SPDX-License-Identifier: Apache-2.0

package services

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/apitest"
	"keelson/network/nft"
)

// world is a node with two pods, a pod of another node and a client outside, each a network namespace:
//
//	a 10.244.1.2 --+
//	b 10.244.1.3 --+-- node 192.0.2.1 --- client 192.0.2.9
//	r 10.244.2.2 --+   (r is a pod elsewhere: its traffic is routed through a link)
type world struct {
	t      testing.TB
	spaces map[string]netns.NsHandle
	writer *nft.Writer
	node   Node
	state  *State
}

func newWorld(t testing.TB) *world {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs the program ip to make links")
	}
	w := &world{
		t:      t,
		spaces: map[string]netns.NsHandle{},
		node: Node{
			Name:        "node",
			ExternalIPs: true,
			PodCIDRs:    []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd44:1::/64")},
		},
	}
	for _, name := range []string{"node", "a", "b", "r", "client"} {
		w.space(name)
	}
	for name := range w.spaces { // addresses are good at once, and refusals are not held back after a redirect
		w.sysctl(name, "ipv6/conf/default/accept_dad=0", "ipv6/conf/all/accept_dad=0",
			"ipv4/conf/default/send_redirects=0", "ipv4/conf/all/send_redirects=0")
	}
	w.ip("node", "link set lo up")
	for name, addr := range map[string]string{
		"a": "10.244.1.2 fd44:1::2",
		"b": "10.244.1.3 fd44:1::3",
		"r": "10.244.2.2 fd44:2::2",
	} {
		v4, v6, _ := strings.Cut(addr, " ")
		w.link(name, "10.244.1.1", v4, "fd44:1::1", v6)
	}
	w.link("client", "192.0.2.1", "192.0.2.9", "2001:db8::1", "2001:db8::9")
	// What goes to a cluster IP from the node must have a way: the rules act behind the route.
	w.ip("node", "route add default via 192.0.2.9 src 192.0.2.1",
		"-6 route add default via 2001:db8::9 src 2001:db8::1")
	w.sysctl("node", "ipv4/ip_forward=1", "ipv6/conf/all/forwarding=1", "ipv4/conf/a/route_localnet=1",
		"ipv4/conf/b/route_localnet=1", "ipv4/conf/r/route_localnet=1")
	var err error
	if w.writer, err = nft.Open(nft.Config{Name: "test", NetNS: int(w.spaces["node"])}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.writer.Close() })
	return w
}

func (w *world) space(name string) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	old, err := netns.Get()
	if err != nil {
		w.t.Fatal(err)
	}
	defer old.Close()
	ns, err := netns.New()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := netns.Set(old); err != nil {
		w.t.Fatal(err)
	}
	w.spaces[name] = ns
	w.t.Cleanup(func() { ns.Close() })
}

func (w *world) sysctl(space string, settings ...string) {
	w.in(space, func() {
		for _, s := range settings {
			path, value, _ := strings.Cut(s, "=")
			if err := os.WriteFile("/proc/sys/net/"+path, []byte(value), 0o600); err != nil {
				w.t.Error(err)
			}
		}
	})
}

// ip runs lines of the program ip.
func (w *world) ip(space string, lines ...string) {
	w.t.Helper()
	for _, l := range lines {
		args := append([]string{"--net=" + w.path(space), "ip"}, strings.Fields(l)...)
		if out, err := exec.CommandContext(w.t.Context(), "nsenter", args...).CombinedOutput(); err != nil {
			w.t.Fatalf("ip %s: %v: %s", l, err, out)
		}
	}
}

func (w *world) path(space string) string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(w.spaces[space]))
}

// link joins a space to the node: the node's end has the space's name.
func (w *world) link(name, gw4, ip4, gw6, ip6 string) {
	w.t.Helper()
	w.ip("node", fmt.Sprintf("link add name %s type veth peer name eth0 netns %s", name, w.path(name)))
	w.ip("node", "link set dev "+name+" up", "addr add "+gw4+"/32 dev "+name, "addr add "+gw6+"/128 dev "+name+" nodad")
	w.ip(name, "link set lo up", "link set dev eth0 up", "addr add "+ip4+"/32 dev eth0",
		"addr add "+ip6+"/128 dev eth0 nodad",
		"route add "+gw4+" dev eth0", "route add default via "+gw4, "-6 route add "+gw6+" dev eth0",
		"-6 route add default via "+gw6)
	w.ip("node", "route add "+ip4+" dev "+name, "-6 route add "+ip6+" dev "+name)
}

// in calls f in a namespace.
func (w *world) in(space string, f func()) {
	done := make(chan struct{})
	go func() { // ends with f; its thread ends with it
		defer close(done)
		runtime.LockOSThread()
		if err := netns.Set(w.spaces[space]); err != nil {
			w.t.Error(err)
			return
		}
		f()
	}()
	<-done
}

// serve answers on a port with the server's name and who asked.
func (w *world) serve(space, network string, port int) {
	w.t.Helper()
	w.in(space, func() {
		addr := net.JoinHostPort("", strconv.Itoa(port))
		if strings.HasPrefix(network, "udp") {
			packetConn, err := (&net.ListenConfig{}).ListenPacket(context.Background(), network, addr)
			if err != nil {
				w.t.Error(err)
				return
			}
			w.t.Cleanup(func() { packetConn.Close() })
			go func() { // ends when packetConn is closed
				b := make([]byte, 100)
				for {
					_, from, err := packetConn.ReadFrom(b)
					if err != nil {
						return
					}
					_, _ = packetConn.WriteTo([]byte(space+" "+host(from)), from)
				}
			}()
			return
		}
		l, err := (&net.ListenConfig{}).Listen(context.Background(), network, addr)
		if err != nil {
			w.t.Error(err)
			return
		}
		w.t.Cleanup(func() { l.Close() })
		go func() { // ends when l is closed
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, space+" "+host(c.RemoteAddr()))
				c.Close()
			}
		}()
	})
}

func host(a net.Addr) string {
	h, _, _ := net.SplitHostPort(a.String())
	return strings.TrimPrefix(h, "::ffff:")
}

// How long an answer is waited for: one that must not come, and one that must, on a machine with much else to do.
const (
	silence = 700 * time.Millisecond
	answer  = 20 * time.Second
)

// want asks, and fails the test unless it gets "server client-address", or the kind of error.
func (w *world) want(t testing.TB, space, network, addr, want string) {
	t.Helper()
	wait := answer
	if want == "timeout" {
		wait = silence
	}
	if got := w.ask(space, network, addr, wait); got != want {
		t.Errorf("%s to %s: got %q, want %q", space, addr, got, want)
	}
}

// ask connects and returns "server client-address", or the kind of error; connecting and the answer may take so long
// each.
func (w *world) ask(space, network, addr string, wait time.Duration) string {
	w.t.Helper()
	out := ""
	w.in(space, func() {
		d := net.Dialer{Timeout: wait}
		conn, err := d.DialContext(context.Background(), network, addr)
		if err != nil {
			out = word(err)
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(wait))
		if strings.HasPrefix(network, "udp") {
			if _, err := conn.Write([]byte("?")); err != nil {
				out = word(err)
				return
			}
			b := make([]byte, 100)
			n, err := conn.Read(b)
			if out = string(b[:n]); err != nil {
				out = word(err)
			}
			return
		}
		b, err := io.ReadAll(conn)
		if out = string(b); err != nil {
			out = word(err)
		}
	})
	return out
}

func word(err error) string {
	switch s := err.Error(); {
	case strings.Contains(s, "refused"):
		return "refused"
	case strings.Contains(s, "timeout"):
		return "timeout"
	default:
		return s
	}
}

// askAll asks n times and returns how often each server answered.
func (w *world) askAll(space, network, addr string, n int) map[string]int {
	w.t.Helper()
	out := map[string]int{}
	for range n {
		got := w.ask(space, network, addr, answer)
		name, _, _ := strings.Cut(got, " ")
		out[name]++
	}
	return out
}

// write makes these Services the node's.
func (w *world) write(in ...Input) {
	w.t.Helper()
	all := map[types.NamespacedName]Input{}
	for _, i := range in {
		all[types.NamespacedName{Namespace: i.Service.Namespace, Name: i.Service.Name}] = i
	}
	table, state, _ := Table("test", w.node, all)
	w.state = state
	if err := w.writer.Write(table); err != nil {
		w.t.Fatal(err)
	}
}

// service makes a Service with one port, 80, and its slice; change may alter both.
func service(name, ip string, proto corev1.Protocol, change func(
	*corev1.Service, *discoveryv1.EndpointSlice,
), addrs ...string,
) Input {
	svc := apitest.Service(name, corev1.ServiceSpec{
		Type:       corev1.ServiceTypeClusterIP,
		ClusterIP:  ip,
		ClusterIPs: []string{ip},
		Ports:      []corev1.ServicePort{{Port: 80, Protocol: proto}},
	})
	slice := sliceOf(name, proto, 8080, addrs...)
	if change != nil {
		change(svc, slice)
	}
	return Input{svc, []*discoveryv1.EndpointSlice{slice}}
}

func sliceOf(name string, proto corev1.Protocol, port int32, addrs ...string) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default",
			Name:      name + "-1",
			Labels:    map[string]string{discoveryv1.LabelServiceName: name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: &port, Protocol: &proto}},
	}
	for _, a := range addrs {
		ip := netip.MustParseAddr(a)
		if ip.Is6() {
			slice.AddressType = discoveryv1.AddressTypeIPv6
		}
		node := "other"
		if strings.HasPrefix(a, "10.244.1.") || strings.HasPrefix(a, "fd44:1:") || strings.HasPrefix(a, "192.0.2.") {
			node = "node"
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{a},
			NodeName:   &node,
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		})
	}
	return slice
}

// rules is what nft says of the node.
func (w *world) rules() string {
	out, err := exec.CommandContext(w.t.Context(), "nsenter", "--net="+w.path("node"), "nft", "list", "ruleset").
		CombinedOutput()
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(out))
}

// dialOnce connects and reads the answer, on this thread.
func dialOnce(addr string) error {
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = io.ReadAll(c)
	return err
}
