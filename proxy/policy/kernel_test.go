// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"keelson/network/nft"
)

// TestMain runs this package's tests in a network namespace of their own, which is the node: nothing they do reaches
// the machine's network.
func TestMain(m *testing.M) {
	if os.Getuid() != 0 || os.Getenv("KEELSON_TEST_NETNS") != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), "KEELSON_TEST_NETNS=1")
	cmd.Stdin = os.Stdin
	cmd.Stdout = os.Stdout
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is about this thread
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, "no network namespace for the tests:", err)
		os.Exit(1)
	}
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: makes links and namespaces")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// inside runs f with this goroutine's thread in a pod's namespace.
func inside(t testing.TB, path string, f func()) {
	t.Helper()
	done := make(chan error)
	go func() { // ends with f; its thread is not used again
		runtime.LockOSThread()
		ns, err := netns.GetFromPath(path)
		if err == nil {
			err = netns.Set(ns)
			_ = ns.Close()
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	must(t, <-done)
}

// wire gives each pod of the cluster a namespace with a link that is routed, as the pod network does, and returns them
// by namespace/name.
func wire(t testing.TB, c *cluster) map[string]string {
	t.Helper()
	for _, f := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		must(t, os.WriteFile("/proc/sys/net/"+f, []byte("1"), 0o600))
	}
	out := map[string]string{}
	for i, p := range c.pods {
		out[p.Namespace+"/"+p.Name] = wirePod(t, i, p)
	}
	return out
}

func wirePod(t testing.TB, i int, pod *corev1.Pod) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ns")
	must(t, os.WriteFile(path, nil, 0o600))
	made := make(chan error)
	go func() { // ends when the namespace is made; its thread is not used again
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, "")
		}
		made <- err
	}()
	must(t, <-made)
	t.Cleanup(func() { must(t, unix.Unmount(path, unix.MNT_DETACH)) })
	ns, err := netns.GetFromPath(path)
	must(t, err)
	defer func() { _ = ns.Close() }()
	host := netlink.NewLinkAttrs()
	host.Name = fmt.Sprintf("pod%d", i)
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: host, PeerName: "eth0", PeerNamespace: netlink.NsFd(ns)}))
	t.Cleanup(func() {
		if l, err := netlink.LinkByName(host.Name); err == nil {
			must(t, netlink.LinkDel(l))
		}
	})
	gw4 := netip.MustParseAddr("169.254.1.1")
	gw6 := netip.MustParseAddr("fe80::1")
	link, err := netlink.LinkByName(host.Name)
	must(t, err)
	must(t, netlink.LinkSetUp(link))
	address(t, nil, link, gw4, 32)
	address(t, nil, link, gw6, 64)
	in, err := netlink.NewHandleAt(ns)
	must(t, err)
	defer in.Close()
	for _, name := range []string{"lo", "eth0"} {
		l, err := in.LinkByName(name)
		must(t, err)
		must(t, in.LinkSetUp(l))
	}
	eth, err := in.LinkByName("eth0")
	must(t, err)
	for _, ip := range pod.Status.PodIPs {
		a := netip.MustParseAddr(ip.IP)
		address(t, in, eth, a, a.BitLen())
		must(t,
			netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(a), Scope: netlink.SCOPE_LINK}))
	}
	must(t, in.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Dst: ipNet(gw4), Scope: netlink.SCOPE_LINK}))
	must(t, in.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: gw4.AsSlice()}))
	must(t, in.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: gw6.AsSlice()}))
	return path
}

func ipNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

func address(t testing.TB, h *netlink.Handle, l netlink.Link, a netip.Addr, bits int) {
	t.Helper()
	add := netlink.AddrAdd
	if h != nil {
		add = h.AddrAdd
	}
	must(t, add(l, &netlink.Addr{
		IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())},
		Flags: unix.IFA_F_NODAD,
	}))
}

// serve answers on TCP 80 and 81 and UDP 81 of a pod: what it gets it sends back, until the test ends.
func serve(t testing.TB, path string) {
	t.Helper()
	var lc net.ListenConfig
	inside(t, path, func() {
		for _, port := range []string{"80", "81", "8080"} {
			l, err := lc.Listen(t.Context(), "tcp", "[::]:"+port)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { _ = l.Close() })
			go func() { // ends with l
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					go echo(conn) // ends with the connection
				}
			}()
		}
		packetConn, err := lc.ListenPacket(t.Context(), "udp", "[::]:81")
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = packetConn.Close() })
		go func() { // ends with packetConn
			b := make([]byte, 100)
			for {
				n, from, err := packetConn.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = packetConn.WriteTo(b[:n], from)
			}
		}()
	})
}

func echo(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	b := make([]byte, 100)
	for {
		n, err := conn.Read(b)
		if err != nil {
			return
		}
		if _, err := conn.Write(b[:n]); err != nil {
			return
		}
	}
}

// How long an answer is waited for: one that must not come, and one that must, on a machine with much else to do.
const (
	dropped = 400 * time.Millisecond
	allowed = 20 * time.Second
)

func patience(want bool) time.Duration {
	if want {
		return allowed
	}
	return dropped
}

func dial(t testing.TB, path, network, to string, wait time.Duration) (conn net.Conn, err error) {
	t.Helper()
	inside(t, path, func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		conn, err = (&net.Dialer{}).DialContext(ctx, network, to)
	})
	return conn, err
}

// reaches says whether a message comes back in time.
func reaches(t testing.TB, path, network, to string, wait time.Duration) bool {
	t.Helper()
	conn, err := dial(t, path, network, to, wait)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	return answers(conn, wait)
}

var messages atomic.Int64

// answers sends a message of its own: an earlier one may still come back.
func answers(conn net.Conn, wait time.Duration) bool {
	_ = conn.SetDeadline(time.Now().Add(wait))
	message := fmt.Appendf(nil, "<%d>", messages.Add(1))
	if _, err := conn.Write(message); err != nil {
		return false
	}
	var got []byte
	for b := make([]byte, 100); !bytes.Contains(got, message); {
		n, err := conn.Read(b)
		if err != nil {
			return false
		}
		got = append(got, b[:n]...)
	}
	return true
}

func openWriter(t testing.TB, name string) *nft.Writer {
	t.Helper()
	w, err := nft.Open(nft.Config{Name: name})
	must(t, err)
	t.Cleanup(func() {
		if err := errors.Join(w.Delete(), w.Close()); err != nil {
			t.Error(err)
		}
	})
	return w
}

// allHere puts all pods on this node, with both families.
func allHere(c *cluster) {
	for _, p := range c.pods {
		p.Spec.NodeName = node
	}
}

// TestPackets sends packets between nine pods under each of the golden policies, and compares with the plan.
func TestPackets(t *testing.T) {
	needRoot(t)
	cluster := newCluster()
	allHere(cluster)
	pods := wire(t, cluster)
	for _, path := range pods {
		serve(t, path)
	}
	w := openWriter(t, "keelson-test-pol")
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, f := range append([]string{""}, files...) {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".yaml"), func(t *testing.T) {
			if f != "" {
				text, err := os.ReadFile(f)
				must(t, err)
				cluster.policies = parsePolicies(t, string(text))
			}
			p := cluster.state().Plan()
			must(t, w.Write(Table("keelson-test-pol", p)))
			cluster.packets(t, pods, p)
		})
	}
}

// packets tries every pair of pods by TCP 80, and some by others.
func (c *cluster) packets(t *testing.T, pods map[string]string, plan *Plan) {
	t.Helper()
	var wg sync.WaitGroup
	turns := make(chan struct{}, 12)
	for i, client := range c.pods {
		for j, server := range c.pods {
			try := func(family int, network string, proto uint8, port uint16) {
				from := netip.MustParseAddr(client.Status.PodIPs[family].IP)
				to := netip.MustParseAddr(server.Status.PodIPs[family].IP)
				wg.Go(func() {
					turns <- struct{}{}
					defer func() { <-turns }()
					want := plan.allows(from, to, proto, port)
					got := reaches(t, pods[client.Namespace+"/"+client.Name], network,
						netip.AddrPortFrom(to, port).String(), patience(want))
					if got != want {
						t.Errorf("%s to %s %s %d: got %v, want %v", from, to, network, port, got, want)
					}
				})
			}
			try(0, "tcp", tcp, 80)
			switch (i + j) % 3 {
			case 0:
				try(1, "tcp", tcp, 80)
			case 1:
				try(0, "udp", udp, 81)
			case 2:
				try(1, "udp", udp, 81)
				try(0, "tcp", tcp, 8080)
			}
		}
	}
	wg.Wait()
}

// TestEstablished: connections follow changes of policies, in both directions of their packets, and come back.
func TestEstablished(t *testing.T) {
	needRoot(t)
	c := newCluster()
	allHere(c)
	pods := wire(t, c)
	serve(t, pods["y/b"])
	writer := openWriter(t, "keelson-test-pol")
	state := c.state()
	must(t, writer.Write(Table("keelson-test-pol", state.Plan())))
	state.Drain()
	tcpConn, err := dial(t, pods["x/a"], "tcp", "10.0.1.2:80", allowed)
	must(t, err)
	defer func() { _ = tcpConn.Close() }()
	udpConn, err := dial(t, pods["x/a"], "udp", "10.0.1.2:81", allowed)
	must(t, err)
	defer func() { _ = udpConn.Close() }()
	check := func(when string, want bool) {
		t.Helper()
		if got := answers(tcpConn, patience(want)); got != want {
			t.Errorf("%s: the TCP connection answers: %v, want %v", when, got, want)
		}
		if got := answers(udpConn, patience(want)); got != want {
			t.Errorf("%s: the UDP flow answers: %v, want %v", when, got, want)
		}
	}
	check("no policy", true)
	for _, text := range []string{
		"metadata: {namespace: \"y\", name: deny}\nspec: {podSelector: {matchLabels: {pod: b}}}",
		"metadata: {namespace: x, name: deny}\nspec: {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress]}",
	} {
		p := parsePolicies(t, text)[0]
		state.SetPolicy(p)
		must(t, writer.Change(state.Drain()))
		check("denied by "+p.Namespace+"/deny", false)
		state.DeletePolicy(p.Namespace, p.Name)
		must(t, writer.Change(state.Drain()))
		check("allowed again", true)
	}
	// Replies pass even if the client has no ingress and the server no egress.
	for _, text := range []string{
		"metadata: {namespace: x, name: in}\nspec: {podSelector: {}}",
		"metadata: {namespace: \"y\", name: out}\nspec: {podSelector: {}, policyTypes: [Egress]}",
	} {
		state.SetPolicy(parsePolicies(t, text)[0])
	}
	must(t, writer.Change(state.Drain()))
	check("replies", true)
	if reaches(t, pods["y/a"], "tcp", "10.0.0.1:80", dropped) {
		t.Error("an isolated pod was reached")
	}
}

// TestTranslated: rules see who really serves, and a pod reaches itself through a service's address.
func TestTranslated(t *testing.T) {
	needRoot(t)
	cluster := newCluster()
	allHere(cluster)
	pods := wire(t, cluster)
	serve(t, pods["x/a"])
	svc := openWriter(t, "keelson-test-svc")
	services := nft.NewTable("keelson-test-svc")
	vip := netip.MustParseAddr("10.96.0.1")
	services.AddSet(nft.Set{Name: "to", Key: []nft.Type{nft.IPv4, nft.Port}, Data: []nft.Type{nft.IPv4, nft.Port}})
	services.Put("to", nft.Addr(vip)+nft.PortNumber(8000), nft.Addr(netip.MustParseAddr("10.0.0.1"))+nft.PortNumber(80))
	services.AddChain(nft.Chain{
		Name:     "prerouting",
		Type:     nft.NAT,
		Hook:     nft.Prerouting,
		Priority: -100,
		Rules: []nft.Rule{
			{nft.DNAT(nft.Map("to", []nft.Type{nft.IPv4, nft.Port}, nft.IPDaddr, nft.THDport))},
		},
	})
	services.AddChain(nft.Chain{
		Name:     "postrouting",
		Type:     nft.NAT,
		Hook:     nft.Postrouting,
		Priority: 100,
		Rules: []nft.Rule{
			{nft.Within(nft.IPDaddr, netip.MustParsePrefix("10.0.0.1/32")), nft.Masquerade()},
		},
	})
	must(t, svc.Write(services))
	cluster.policies = parsePolicies(t, `
metadata: {namespace: x, name: a}
spec:
  podSelector: {matchLabels: {pod: a}}
  policyTypes: [Ingress, Egress]
  ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}], ports: [{port: 80}]}]
---
metadata: {namespace: "y", name: out}
spec:
  podSelector: {}
  policyTypes: [Egress]
  egress: [{to: [{ipBlock: {cidr: 10.96.0.0/16}}]}]`)
	w := openWriter(t, "keelson-test-pol")
	must(t, w.Write(Table("keelson-test-pol", cluster.state().Plan())))
	for from, want := range map[string]bool{
		"x/a": true,
		"x/b": true,
		"x/c": false,
		"y/a": false,
		"y/b": false,
	} {
		if got := reaches(t, pods[from], "tcp", "10.96.0.1:8000", patience(want)); got != want {
			t.Errorf("%s through the service: got %v, want %v", from, got, want)
		}
	}
}

// TestListed: nft, where there is one, can print the rules; some shapes that the kernel takes make it fail.
func TestListed(t *testing.T) {
	needRoot(t)
	tool, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("no nft here")
	}
	w := openWriter(t, "keelson-test-pol")
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, f := range files {
		text, err := os.ReadFile(f)
		must(t, err)
		c := newCluster()
		c.policies = parsePolicies(t, string(text))
		must(t, w.Write(Table("keelson-test-pol", c.state().Plan())))
		if out, err := exec.CommandContext(t.Context(), tool, "list", "table", "inet", "keelson-test-pol").
			CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", f, err, out)
		} else if strings.Contains(f, "crossed") {
			t.Logf("%s", out)
		}
	}
}
