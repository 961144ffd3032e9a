// SPDX-License-Identifier: Apache-2.0

package podroutes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"keelson/api/networking/wireguard"
	"keelson/client"
	"keelson/client/clienttest"
	"keelson/network"
	"keelson/network/mesh"
	"keelson/network/nettest"
)

// node is a machine with a pod network and the agent.
type node struct {
	*nettest.Machine
	t    testing.TB
	cl   *fake.Clientset
	cfg  Config
	pods *network.Network
	stop func()
	made int
	// starts is how often it was registered: a node is at each start.
	starts int
}

var ids int

func newNode(
	t testing.TB, cl *fake.Clientset, machine *nettest.Machine, mode mesh.Mode, addr string, ranges ...string,
) *node {
	t.Helper()
	ids++
	var pods []netip.Prefix
	for _, r := range ranges {
		pods = append(pods, netip.MustParsePrefix(r))
	}
	n := &node{Machine: machine, t: t, cl: cl}
	var err error
	n.pods, err = network.New(network.Config{
		ID:       fmt.Sprintf("m%d", ids),
		Dir:      t.TempDir(),
		RunDir:   t.TempDir(),
		PodCIDRs: pods,
	})
	if err != nil {
		t.Fatal(err)
	}
	n.run(func(ctx context.Context, ready func()) error { return n.pods.Run(ctx, ready) })
	n.cfg = Config{
		Client:   &client.Client{Interface: client.Plain(cl)},
		NodeName: machine.Name,
		ID:       fmt.Sprintf("m%d", ids),
		Network:  "test",
		PodCIDRs: pods,
		Mode:     mode,
		Pods:     n.pods,
		Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	if mode == mesh.WireGuard {
		n.newKey()
		n.cfg.Cluster = []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd00:42::/32")}
	}
	n.register(addr, ranges)
	t.Cleanup(func() { // after the agent has ended
		machine.Must(func() error { return Purge(t.Context(), n.cfg.ID) })
		machine.Must(func() error {
			if _, err := netlink.LinkByName(mesh.LinkName(n.cfg.ID)); err == nil {
				return errors.New("the tunnel is left")
			}
			return nil
		})
		if got := n.routes(); len(got) > 0 {
			t.Errorf("%s: routes are left: %v", machine.Name, got)
		}
	})
	n.startAgent()
	return n
}

// run runs f in the machine until the test ends or the result is called.
func (n *node) run(f func(context.Context, func()) error) (stop func()) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan struct{})
	ended := n.Go(func() error { return f(ctx, func() { close(ready) }) })
	select {
	case <-ready:
	case err := <-ended:
		n.t.Fatal(n.Name, err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			n.t.Error(n.Name, err)
		}
	}
	n.t.Cleanup(stop)
	return stop
}

func (n *node) newKey() {
	n.t.Helper()
	var err error
	if n.cfg.Encryption.Private, err = wgtypes.GeneratePrivateKey(); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) startAgent() { n.stop = n.run(New(n.cfg).Run) }

func (n *node) register(addr string, ranges []string) {
	n.t.Helper()
	n.starts++
	says := map[string]string{AnnotationVTEP: mesh.VTEP("test", n.Name).String()}
	if n.cfg.Mode == mesh.WireGuard {
		says = map[string]string{
			wireguard.AnnotationKey:   n.cfg.Encryption.Private.PublicKey().String(),
			wireguard.AnnotationPort:  strconv.Itoa(mesh.WireGuard.DefaultPort()),
			wireguard.AnnotationStart: strconv.Itoa(n.starts),
		}
	}
	obj := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Annotations: says},
		Spec:       corev1.NodeSpec{PodCIDR: ranges[0], PodCIDRs: ranges},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addr}}},
	}
	_, err := n.cl.CoreV1().Nodes().Create(n.t.Context(), obj, metav1.CreateOptions{})
	if err == nil {
		return
	}
	if _, err = n.cl.CoreV1().Nodes().Update(n.t.Context(), obj, metav1.UpdateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// pod makes a pod that answers connections to port 80 with the peer's address, and swallows what it is sent at port 81.
func (n *node) pod() (ns *nettest.Machine, addrs []netip.Addr) {
	n.t.Helper()
	n.made++
	ns = nettest.New(n.t, fmt.Sprintf("%s-pod%d", n.Name, n.made))
	n.Must(func() (err error) {
		addrs, err = n.pods.Attach(context.Background(), ns.Name, ns.Path, nil)
		return err
	})
	l := ns.Listen("tcp", ":80")
	go func() { // ends when the listener is closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprint(c, c.RemoteAddr().(*net.TCPAddr).IP)
			_ = c.Close()
		}
	}()
	sink := ns.Listen("tcp", ":81")
	go func() { // ends when the listener is closed
		for {
			c, err := sink.Accept()
			if err != nil {
				return
			}
			m, _ := io.Copy(io.Discard, c)
			_, _ = fmt.Fprint(c, m)
			_ = c.Close()
		}
	}()
	return ns, addrs
}

func (n *node) routes() (out []string) {
	n.Must(func() error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			all, err := netlink.RouteListFiltered(family, &netlink.Route{Protocol: 75}, netlink.RT_FILTER_PROTOCOL)
			if err != nil {
				return err
			}
			for _, route := range all {
				if route.Type == unix.RTN_UNREACHABLE {
					out = append(out, route.Dst.String()+" closed")
					continue
				}
				link, err := netlink.LinkByIndex(route.LinkIndex)
				if _, gone := errors.AsType[netlink.LinkNotFoundError](err); gone {
					continue // the route went with it meanwhile
				}
				if err != nil {
					return err
				}
				via := ""
				if route.Gw != nil {
					via = " via " + route.Gw.String()
				}
				out = append(out, fmt.Sprintf("%s%s dev %s", route.Dst, via, link.Attrs().Name))
			}
		}
		return nil
	})
	slices.Sort(out)
	return out
}

func ask(from *nettest.Machine, to netip.Addr) (said string, err error) {
	from.Do(func() {
		var c net.Conn
		if c, err = net.DialTimeout("tcp", netip.AddrPortFrom(to, 80).String(), time.Second); err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		var b []byte
		b, err = io.ReadAll(c)
		said = string(b)
	})
	return said, err
}

// wantReach asks until the answer is the one wanted: what other machines do takes its time.
func wantReach(t testing.TB, what string, from *nettest.Machine, to, as netip.Addr) {
	t.Helper()
	var got string
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if got, err = ask(from, to); err == nil && got == as.String() {
			return
		}
	}
	t.Errorf("%s: got %q, %v; want %s", what, got, err, as)
}

func wantRoutes(t testing.TB, n *node, want ...string) {
	t.Helper()
	var got []string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if got = n.routes(); slices.Equal(got, want) {
			return
		}
	}
	t.Errorf("%s has the routes %q, want %q", n.Name, got, want)
}

// threeMachines returns three machines: a and b on one switch, c behind a router.
func threeMachines(t testing.TB, mode mesh.Mode) (cl *fake.Clientset, a, b, c *node, far *nettest.Cable) {
	t.Helper()
	near := nettest.NewSwitch(t, "near")
	beyond := nettest.NewSwitch(t, "beyond")
	router := nettest.New(t, "router")
	near.Join(router, 1500, "10.1.0.1/24")
	beyond.Join(router, 1500, "10.2.0.1/24")
	router.Forward()
	cl = clienttest.New()
	ma := nettest.New(t, "a")
	mb := nettest.New(t, "b")
	mc := nettest.New(t, "c")
	near.Join(ma, 1500, "10.1.0.11/24")
	near.Join(mb, 1500, "10.1.0.12/24")
	far = beyond.Join(mc, 1500, "10.2.0.13/24")
	for m, gw := range map[*nettest.Machine]string{ma: "10.1.0.1", mb: "10.1.0.1", mc: "10.2.0.1"} {
		m.Route(netip.Prefix{}, netip.MustParseAddr(gw))
	}
	a = newNode(t, cl, ma, mode, "10.1.0.11", "10.42.1.0/24", "fd00:42:1::/64")
	b = newNode(t, cl, mb, mode, "10.1.0.12", "10.42.2.0/24", "fd00:42:2::/64")
	c = newNode(t, cl, mc, mode, "10.2.0.13", "10.42.3.0/24", "fd00:42:3::/64")
	return cl, a, b, c, far
}

func TestThreeMachines(t *testing.T) {
	cl, node, b, c, far := threeMachines(t, mesh.Auto)
	foreign := netip.MustParsePrefix("10.77.0.0/16")
	node.Route(foreign, netip.MustParseAddr("10.1.0.1"))
	podA, onA := node.pod()
	podB, onB := b.pod()
	podC, onC := c.pod()
	for i := range 2 { // both families
		wantReach(t, "a to b", podA, onB[i], onA[i])
		wantReach(t, "b to c", podB, onC[i], onB[i])
		wantReach(t, "c to a", podC, onA[i], onC[i])
	}
	wantReach(t, "machine a to a pod of c", node.Machine, onC[0], netip.MustParseAddr("10.42.1.1"))
	tunnel := "dev " + mesh.LinkName(node.cfg.ID)
	throughTunnel := []string{
		"10.42.2.0/24 via 10.42.2.1 " + tunnel, "10.42.3.0/24 via 10.42.3.1 " + tunnel,
		"fd00:42:2::/64 via fd00:42:2::1 " + tunnel, "fd00:42:3::/64 via fd00:42:3::1 " + tunnel,
	}
	wantRoutes(t, node, throughTunnel...) // b has no IPv6 address of its own, so that its pods' IPv6 needs the tunnel

	far.Cut()
	if _, err := ask(podA, onC[0]); err == nil {
		t.Error("c is reached by a cut cable")
	}
	wantReach(t, "a to b while c is away", podA, onB[0], onA[0])
	far.Repair()
	wantReach(t, "a to c again", podA, onC[0], onA[0])

	node.stop()
	wantReach(t, "without the agent", podA, onC[0], onA[0])
	node.startAgent()
	wantReach(t, "with the agent again", podA, onC[0], onA[0])
	wantRoutes(t, node, throughTunnel...)

	far.DelAddr("10.2.0.13/24")
	far.AddAddr("10.2.0.14/24")
	c.Route(netip.Prefix{}, netip.MustParseAddr("10.2.0.1")) // it went with the address
	c.register("10.2.0.14", []string{"10.42.3.0/24", "fd00:42:3::/64"})
	wantReach(t, "a to c at its new address", podA, onC[0], onA[0])
	wantReach(t, "c to b from its new address", podC, onB[0], onC[0])

	if err := cl.CoreV1().Nodes().Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wantRoutes(t, node, throughTunnel[0], throughTunnel[2])
	node.Must(func() error {
		all, err := netlink.RouteList(nil, netlink.FAMILY_V4)
		if err == nil && !slices.ContainsFunc(all, func(r netlink.Route) bool {
			return r.Dst != nil && r.Dst.String() == foreign.String()
		}) {
			err = errors.New("the foreign route is gone")
		}
		return err
	})
}

// TestNeighboursAreRouted: machines of one switch need no tunnel, in either family.
func TestNeighboursAreRouted(t *testing.T) {
	sw := nettest.NewSwitch(t, "sw")
	cl := clienttest.New()
	var nodes []*node
	for i, name := range []string{"a", "b"} {
		m := nettest.New(t, name)
		sw.Join(m, 1500, fmt.Sprintf("10.1.0.1%d/24", i), fmt.Sprintf("fd01::1%d/64", i))
		n := newNode(t, cl, m, mesh.Auto, fmt.Sprintf("10.1.0.1%d", i), fmt.Sprintf("10.42.%d.0/24", i),
			fmt.Sprintf("fd00:42:%d::/64", i))
		obj, err := cl.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		obj.Status.Addresses = append(obj.Status.Addresses, corev1.NodeAddress{
			Type:    corev1.NodeInternalIP,
			Address: fmt.Sprintf("fd01::1%d", i),
		})
		if _, err := cl.CoreV1().Nodes().Update(t.Context(), obj, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	podA, onA := nodes[0].pod()
	_, onB := nodes[1].pod()
	wantRoutes(t, nodes[0], "10.42.1.0/24 via 10.1.0.11 dev eth0", "fd00:42:1::/64 via fd01::11 dev eth0")
	for i := range 2 {
		wantReach(t, "a to b", podA, onB[i], onA[i])
	}
}

// TestLongPackets: pods from before the tunnel send longer packets than it takes, and still get through.
func TestLongPackets(t *testing.T) {
	_, node, _, c, _ := threeMachines(t, mesh.Tunnel)
	podA, onA := node.pod()
	_, onC := c.pod()
	wantReach(t, "a to c", podA, onC[0], onA[0])
	podA.Must(func() error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(onC[0], 81).String(), 20*time.Second)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := conn.Write(make([]byte, 4<<20)); err != nil {
			return err
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			return err
		}
		if got, err := io.ReadAll(conn); err != nil || string(got) != fmt.Sprint(4<<20) {
			return fmt.Errorf("it got %q, %w", got, err)
		}
		return nil
	})
	late, _ := node.pod()
	late.Must(func() error {
		l, err := netlink.LinkByName("eth0")
		if err == nil && l.Attrs().MTU != 1450 {
			err = fmt.Errorf("its packets are of up to %d bytes, want 1450", l.Attrs().MTU)
		}
		return err
	})
	if !strings.Contains(strings.Join(node.routes(), "\n"), "10.42.2.0/24 via 10.42.2.1 dev kx-") {
		t.Errorf("a neighbour is reached by %q, want the tunnel", node.routes())
	}
}
