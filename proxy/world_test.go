// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"keelson/api/apitest"
	"keelson/client"
	"keelson/client/clienttest"
	"keelson/lib/waittest"
	"keelson/network/nettest"
)

// world is a node with two pods and an external client, each in its own network namespace:
//
//	a 10.244.1.2 --+-- 10.244.1.1 node 192.0.2.1 --- client 192.0.2.9
//	b 10.244.1.3 --+
type world struct {
	t                  *testing.T
	node, a, b, client *nettest.Machine
	api                *fake.Clientset
	cfg                Config
	stop               func()
}

const (
	vip  = "10.96.0.1:80"
	podA = "10.244.1.2"
	podB = "10.244.1.3"
)

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		t:      t,
		api:    clienttest.New(),
		node:   nettest.New(t, "node"),
		a:      nettest.New(t, "a"),
		b:      nettest.New(t, "b"),
		client: nettest.New(t, "client"),
	}
	pods := nettest.NewSwitch(t, "pods")
	outside := nettest.NewSwitch(t, "outside")
	pods.Join(w.node, 1500, "10.244.1.1/24")
	for m, addr := range map[*nettest.Machine]string{w.a: podA + "/24", w.b: podB + "/24"} {
		pods.Join(m, 1500, addr)
		m.Route(netip.Prefix{}, netip.MustParseAddr("10.244.1.1"))
	}
	outside.Join(w.node, 1500, "192.0.2.1/24")
	outside.Join(w.client, 1500, "192.0.2.9/24")
	w.client.Route(netip.Prefix{}, netip.MustParseAddr("192.0.2.1"))
	w.node.Forward()
	ns, err := netns.GetFromPath(w.node.Path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	w.cfg = Config{
		Client:   &client.Client{Interface: client.Plain(w.api)},
		NodeName: "node",
		Table:    "keelson-test-svc",
		NetNS:    int(ns),
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	w.put(apitest.Node("node"))
	for name, m := range map[string]*nettest.Machine{"a": w.a, "b": w.b} {
		w.echo(m, name)
		w.echoUDP(m, name)
	}
	return w
}

// start runs the proxy until the test ends or w.stop is called.
func (w *world) start() {
	w.t.Helper()
	p, err := New(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, func() { close(ready) }) }() // ends with ctx
	select {
	case <-ready:
	case err := <-ended:
		w.t.Fatal(err)
	}
	done := false
	w.stop = func() {
		if done {
			return
		}
		done = true
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	}
	w.t.Cleanup(w.stop)
}

// echo runs a server on port 8080 that responds to each line with the pod's name and the line.
func (w *world) echo(m *nettest.Machine, name string) {
	l := m.Listen("tcp", ":8080")
	go func() { // ends when the listener is closed
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // ends when the other side closes
				defer conn.Close()
				buf := make([]byte, 100)
				for {
					n, err := conn.Read(buf)
					if err != nil {
						return
					}
					_, _ = io.WriteString(conn, name+" "+string(buf[:n]))
				}
			}()
		}
	}()
}

func (w *world) echoUDP(m *nettest.Machine, name string) {
	var packetConn net.PacketConn
	m.Must(func() (err error) {
		packetConn, err = (&net.ListenConfig{}).ListenPacket(context.Background(), "udp4", ":8080")
		return err
	})
	w.t.Cleanup(func() { _ = packetConn.Close() })
	go func() { // ends when packetConn is closed
		buf := make([]byte, 100)
		for {
			n, from, err := packetConn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = packetConn.WriteTo([]byte(name+" "+string(buf[:n])), from)
		}
	}()
}

// dial connects from the client.
func (w *world) dial(network, addr string) (c net.Conn, err error) {
	w.client.Do(func() {
		c, err = (&net.Dialer{Timeout: 10 * time.Second}).DialContext(context.Background(), network, addr)
	})
	return c, err
}

// say sends a line and returns the response; "": there is none. Over UDP, which may lose packets, it waits only a short
// time.
func say(c net.Conn, line string) string {
	wait := 20 * time.Second
	if _, ok := c.(*net.UDPConn); ok {
		wait = 200 * time.Millisecond
	}
	_ = c.SetDeadline(time.Now().Add(wait))
	if _, err := io.WriteString(c, line); err != nil {
		return ""
	}
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// ask connects, sends a line and returns the name of the pod that responded, or the error.
func (w *world) ask(network, addr string) string {
	c, err := w.dial(network, addr)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	who, _, _ := strings.Cut(say(c, "?"), " ")
	return who
}

// until calls got until it returns want.
func (w *world) until(what, want string, got func() string) {
	w.t.Helper()
	waittest.Right(w.t, what, func() string {
		if last := got(); last != want {
			return fmt.Sprintf("got %q, want %q", last, want)
		}
		return ""
	})
}

// serve makes a Service with its endpoints; change may alter it.
func (w *world) serve(name, ip string, proto corev1.Protocol, change func(*corev1.Service), pods ...string) {
	w.t.Helper()
	svc := apitest.Service(name, corev1.ServiceSpec{
		Type:       corev1.ServiceTypeClusterIP,
		ClusterIP:  ip,
		ClusterIPs: []string{ip},
		Ports:      []corev1.ServicePort{{Port: 80, Protocol: proto}},
	})
	if change != nil {
		change(svc)
	}
	w.put(svc)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default",
			Name:      name + "-1",
			Labels:    map[string]string{discoveryv1.LabelServiceName: name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080)), Protocol: &proto}},
	}
	for _, p := range pods {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{p}, NodeName: new("node")})
	}
	w.put(slice)
}

// put creates or updates an object.
func (w *world) put(obj any) {
	w.t.Helper()
	ctx := context.Background()
	var err error
	switch o := obj.(type) {
	case *corev1.Node:
		if _, err = w.api.CoreV1().Nodes().Create(ctx, o, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			_, err = w.api.CoreV1().Nodes().Update(ctx, o, metav1.UpdateOptions{})
		}
	case *corev1.Service:
		if _, err = w.api.CoreV1().Services(o.Namespace).Create(ctx, o,
			metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			_, err = w.api.CoreV1().Services(o.Namespace).Update(ctx, o, metav1.UpdateOptions{})
		}
	case *discoveryv1.EndpointSlice:
		if _, err = w.api.DiscoveryV1().EndpointSlices(o.Namespace).Create(ctx, o,
			metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			_, err = w.api.DiscoveryV1().EndpointSlices(o.Namespace).Update(ctx, o, metav1.UpdateOptions{})
		}
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// nft runs the program nft on the node.
func (w *world) nft(args ...string) string {
	w.t.Helper()
	path, err := exec.LookPath("nft")
	if err != nil {
		w.t.Skip("needs the program nft, to do what others do")
	}
	out, err := exec.CommandContext(w.t.Context(), "nsenter",
		append([]string{"--net=" + w.node.Path, path}, args...)...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("nft %q: %v: %s", args, err, out)
	}
	return string(out)
}
