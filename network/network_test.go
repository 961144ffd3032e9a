// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// TestMain runs this package's tests in a network namespace of their own: nothing they do reaches the machine's
// network.
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

// bringUp sets lo of the tests' namespace up.
func bringUp(t testing.TB) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
}

// newNetns makes a named namespace for a pod and returns its path.
func newNetns(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { // ends when the namespace is made; its thread is not used again
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, "")
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return path
}

// inside runs f with this goroutine's thread in the namespace.
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
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func ranges(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

var nextID int

func newConfig(t testing.TB) Config {
	t.Helper()
	nextID++
	return Config{
		ID:       fmt.Sprintf("t%d", nextID),
		Dir:      t.TempDir(),
		RunDir:   t.TempDir(),
		PodCIDRs: ranges(fmt.Sprintf("10.99.%d.0/24", nextID)),
	}
}

// start runs a network until stop or the test's end.
func start(t testing.TB, cfg Config) (network *Network, stop func()) {
	t.Helper()
	network, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- network.Run(ctx, func() { close(ready) }) }() // ends when stop cancels ctx
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		stop()
		if err := network.Purge(context.Background()); err != nil {
			t.Error(err)
		}
		assertClean(t, network)
	})
	return network, stop
}

// assertClean fails when anything of network is left in the kernel or on disk.
func assertClean(t testing.TB, network *Network) {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if name := l.Attrs().Name; name == network.names.bridge || strings.HasPrefix(name, "kv") {
			t.Errorf("link %s is left", name)
		}
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, tab := range tables {
		if tab.Name == network.names.table || tab.Name == "keelson-probe" {
			t.Errorf("table %s is left", tab.Name)
		}
	}
	if left, err := os.ReadDir(network.leases.records.dir); err != nil || len(left) > 0 {
		t.Errorf("leases left: %v, %v", left, err)
	}
}

func attach(t testing.TB, n *Network, id, ns string, ports ...PortMapping) netip.Addr {
	t.Helper()
	addrs, err := n.Attach(t.Context(), id, ns, ports)
	if err != nil {
		t.Fatal(err)
	}
	if len(addrs) != len(n.families) || !n.families[0].pods.Contains(addrs[0]) {
		t.Fatalf("Attach: got %v, want one address of %s", addrs, n.families[0].pods)
	}
	return addrs[0]
}

// serveIn answers every connection in the namespace with the peer's address.
func serveIn(t testing.TB, ns, addr string) {
	t.Helper()
	var l net.Listener
	var err error
	inside(t, ns, func() { l, err = net.Listen("tcp", addr) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends when the listener is closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, c.RemoteAddr().(*net.TCPAddr).IP)
			_ = c.Close()
		}
	}()
}

// ask dials addr in the namespace (the tests' own when empty) and returns what the server says.
func ask(t testing.TB, ns, addr string) (said string, err error) {
	t.Helper()
	return askFor(t, ns, addr, 10*time.Second)
}

func askFor(t testing.TB, ns, addr string, timeout time.Duration) (said string, err error) {
	t.Helper()
	dial := func() {
		var c net.Conn
		d := net.Dialer{Timeout: timeout}
		if c, err = d.DialContext(t.Context(), "tcp", addr); err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		b := make([]byte, 64)
		var m int
		m, err = c.Read(b)
		said = string(b[:m])
	}
	if ns == "" {
		dial()
	} else {
		inside(t, ns, dial)
	}
	return said, err
}

func wantAnswer(t testing.TB, what, ns, addr, want string) {
	t.Helper()
	if got, err := ask(t, ns, addr); err != nil || got != want {
		t.Errorf("%s: got %q, %v; want %q", what, got, err, want)
	}
}

func TestPodsReachEachOtherAndTheNode(t *testing.T) {
	needRoot(t)
	bringUp(t)
	network, _ := start(t, newConfig(t))
	nsA := newNetns(t)
	nsB := newNetns(t)
	addr := attach(t, network, "a", nsA)
	b := attach(t, network, "b", nsB)
	serveIn(t, nsB, ":80")
	wantAnswer(t, "pod to pod", nsA, b.String()+":80", addr.String())
	wantAnswer(t, "node to pod", "", b.String()+":80", network.families[0].gateway.String())
	wantAnswer(t, "pod to its own lo", nsB, "127.0.0.1:80", "127.0.0.1")
	listener, err := net.Listen("tcp4", network.families[0].gateway.String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	go func() { // ends with its one connection, or the listener
		if c, err := listener.Accept(); err == nil {
			fmt.Fprint(c, c.RemoteAddr().(*net.TCPAddr).IP)
			_ = c.Close()
		}
	}()
	wantAnswer(t, "pod to node", nsA, listener.Addr().String(), addr.String())
	if again := attach(t, network, "a", nsA); again != addr {
		t.Errorf("attached again: got %s, want %s", again, addr)
	}
}

func TestHostPorts(t *testing.T) {
	needRoot(t)
	bringUp(t)
	network, _ := start(t, newConfig(t))
	outside, uplink := newOutside(t)
	nsA := newNetns(t)
	nsB := newNetns(t)
	other := netip.MustParseAddr("127.0.0.3")
	addr := attach(t, network, "a", nsA,
		PortMapping{Protocol: "TCP", HostPort: 8080, ContainerPort: 80},
		PortMapping{
			Protocol:      "TCP",
			HostPort:      8081,
			ContainerPort: 80,
			HostIP:        other,
		})
	b := attach(t, network, "b", nsB)
	serveIn(t, nsA, ":80")
	serveIn(t, outside, ":90")
	wantAnswer(t, "node through localhost", "", "127.0.0.1:8080", network.families[0].gateway.String())
	wantAnswer(t, "node through its address", "", uplink+":8080", uplink)
	wantAnswer(t, "through a host IP", "", "127.0.0.3:8081", network.families[0].gateway.String())
	wantAnswer(t, "other pod, which is known as itself", nsB, network.families[0].gateway.String()+":8080", b.String())
	wantAnswer(t, "the pod itself", nsA, network.families[0].gateway.String()+":8080", network.families[0].gateway.String())
	wantAnswer(t, "from outside", outside, uplink+":8080", "192.0.2.2")
	wantAnswer(t, "pod to outside is masqueraded", nsB, "192.0.2.2:90", uplink)
	if got, err := ask(t, "", "127.0.0.1:8081"); err == nil {
		t.Errorf("a port of 127.0.0.3 answered %q on 127.0.0.1", got)
	}
	_, err := network.Attach(t.Context(), "c", newNetns(t), []PortMapping{
		{Protocol: "TCP", HostPort: 8080, ContainerPort: 1},
	})
	if err == nil || !strings.Contains(err.Error(), "host port 8080/TCP is taken by sandbox a") {
		t.Errorf("taken port: got %v", err)
	}
	if err := network.Detach(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(t, "", "127.0.0.1:8080"); err == nil {
		t.Errorf("after Detach the port answered %q", got)
	}
	if addr == b {
		t.Errorf("both pods have %s", addr)
	}
}

// newOutside makes a machine beyond the node, 192.0.2.2, linked to the node's 192.0.2.1.
func newOutside(t *testing.T) (ns, nodeAddr string) {
	t.Helper()
	ns = newNetns(t)
	fd, err := netns.GetFromPath(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = fd.Close() }()
	up := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: "up0"},
		PeerName:      "eth0",
		PeerNamespace: netlink.NsFd(int(fd)),
	}
	if err := netlink.LinkAdd(up); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(up) })
	set := func(name, addr string) error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(addr)
		if err != nil {
			return err
		}
		return errors.Join(netlink.AddrAdd(l, a), netlink.LinkSetUp(l))
	}
	if err := set("up0", "192.0.2.1/24"); err != nil {
		t.Fatal(err)
	}
	inside(t, ns, func() { err = set("eth0", "192.0.2.2/24") })
	if err != nil {
		t.Fatal(err)
	}
	// The uplink came after the network: what the next start would do.
	if err := setSysctl(ipv4Conf+"up0/forwarding", "1"); err != nil {
		t.Fatal(err)
	}
	return ns, "192.0.2.1"
}

func TestPodsCannotReachTheNodesLoopback(t *testing.T) {
	needRoot(t)
	bringUp(t)
	network, _ := start(t, newConfig(t))
	ns := newNetns(t)
	attach(t, network, "a", ns)
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	var rerr error
	inside(t, ns, func() { // a pod that may do everything routes the node's 127.0.0.1 to its gateway
		rerr = os.WriteFile(ipv4Conf+podLink+"/route_localnet", []byte("1"), 0o644)
		lo, _ := netlink.LinkByName("lo")
		all, _ := netlink.AddrList(lo, netlink.FAMILY_V4)
		for _, a := range all {
			rerr = errors.Join(rerr, netlink.AddrDel(lo, &a))
		}
		eth, _ := netlink.LinkByName(podLink)
		rerr = errors.Join(rerr, netlink.RouteAdd(&netlink.Route{
			LinkIndex: eth.Attrs().Index,
			Gw:        network.families[0].gateway.AsSlice(),
			Dst:       ipNet(loopNet),
			Flags:     int(netlink.FLAG_ONLINK),
		}))
	})
	if rerr != nil {
		t.Fatal(rerr)
	}
	if _, err := askFor(t, ns, listener.Addr().String(), time.Second); err == nil {
		t.Error("a pod reached 127.0.0.1 of the node")
	}
}

func TestRestartKeepsAddressesAndPorts(t *testing.T) {
	needRoot(t)
	bringUp(t)
	cfg := newConfig(t)
	network, stop := start(t, cfg)
	nsA := newNetns(t)
	nsB := newNetns(t)
	addr := attach(t, network, "a", nsA, PortMapping{HostPort: 8090, ContainerPort: 80})
	serveIn(t, nsA, ":80")
	stray := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "kv-stray", MasterIndex: indexOf(t, network.names.bridge)},
		PeerName:  "kv-stray2",
	}
	if err := netlink.LinkAdd(stray); err != nil {
		t.Fatal(err)
	}
	stop()
	wantAnswer(t, "while stopped", "", "127.0.0.1:8090", network.families[0].gateway.String())
	n2, stop2 := start(t, cfg)
	if got := n2.Attached(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("Attached after restart: got %q", got)
	}
	wantAnswer(t, "after restart", "", "127.0.0.1:8090", network.families[0].gateway.String())
	if again := attach(t, n2, "a", nsA, PortMapping{HostPort: 8090, ContainerPort: 80}); again != addr {
		t.Errorf("address after restart: got %s, want %s", again, addr)
	}
	if b := attach(t, n2, "b", nsB); b == addr {
		t.Errorf("b has a's address %s", b)
	}
	stop2()
	if _, err := netlink.LinkByName("kv-stray"); err == nil {
		t.Error("a link that no lease has is still there")
	}
}

func TestDetachIsIdempotentAndFreesTheAddress(t *testing.T) {
	needRoot(t)
	bringUp(t)
	cfg := newConfig(t)
	cfg.PodCIDRs = ranges("10.98.0.0/29") // five addresses
	network, _ := start(t, cfg)
	var seen []netip.Addr
	for i := range 12 {
		id := fmt.Sprintf("p%d", i)
		seen = append(seen, attach(t, network, id, newNetns(t)))
		for range 2 {
			if err := network.Detach(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := 1; i < len(seen); i++ {
		if seen[i] == seen[i-1] {
			t.Errorf("address %s was given out twice in a row", seen[i])
		}
	}
	if err := network.Detach(t.Context(), "never"); err != nil {
		t.Errorf("Detach of an unknown id: %v", err)
	}
	for i := range 5 {
		attach(t, network, fmt.Sprintf("q%d", i), newNetns(t))
	}
	if _, err := network.Attach(t.Context(), "q5", newNetns(t), nil); err == nil ||
		!strings.Contains(err.Error(), "no free address in 10.98.0.0/29") {
		t.Errorf("full: got %v", err)
	}
}

func TestAttachFailureLeavesNothing(t *testing.T) {
	needRoot(t)
	n, stop := start(t, newConfig(t))
	if _, err := n.Attach(t.Context(), "a", "/nonexistent", nil); err == nil {
		t.Error("Attach to no namespace: got no error")
	}
	if got := n.Attached(); len(got) > 0 {
		t.Errorf("Attached: got %q", got)
	}
	stop()
	if _, err := n.Attach(t.Context(), "a", "/nonexistent", nil); !errors.Is(err, errNotRunning) {
		t.Errorf("after stop: got %v", err)
	}
}

func TestDroppingFirewallIsOpened(t *testing.T) {
	needRoot(t)
	bringUp(t)
	conn, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	drop := nftables.ChainPolicyDrop
	filter := conn.AddTable(&nftables.Table{Name: "filter", Family: nftables.TableFamilyIPv4})
	fw := conn.AddChain(&nftables.Chain{
		Name:     "FORWARD",
		Table:    filter,
		Type:     nftables.ChainTypeFilter,
		Hooknum:  nftables.ChainHookForward,
		Priority: nftables.ChainPriorityFilter,
		Policy:   &drop,
	})
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.DelTable(filter)
		if err := conn.Flush(); err != nil {
			t.Error(err)
		}
	})
	network, stop := start(t, newConfig(t))
	outside, uplink := newOutside(t)
	ns := newNetns(t)
	attach(t, network, "a", ns)
	serveIn(t, outside, ":91")
	wantAnswer(t, "pod to outside", ns, "192.0.2.2:91", uplink)
	wantFirewall(t, network, "chain FORWARD of table ip filter drops by policy; it is opened for pods")
	conn.FlushChain(fw) // as a firewall does when it is reloaded
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	wantFirewall(t, network, "restart Keelson")
	stop()
	if err := network.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if rules, err := conn.GetRules(filter, fw); err != nil || len(rules) > 0 {
		t.Errorf("after Purge the firewall has %d rules, %v", len(rules), err)
	}
}

// wantFirewall wants one firewall, and this text in what is said about it.
func wantFirewall(t *testing.T, n *Network, want string) {
	t.Helper()
	got, err := Firewalls(n.names.id)
	if err != nil || len(got) != 1 || !strings.Contains(got[0].String(), want) {
		t.Errorf("firewalls: got %v, %v; want one: %s", got, err, want)
	}
}

func TestPurgeOfNothing(t *testing.T) {
	needRoot(t)
	n, err := New(newConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := n.Purge(t.Context()); err != nil {
			t.Errorf("Purge: %v", err)
		}
	}
	assertClean(t, n)
}

func TestOverlapIsRefused(t *testing.T) {
	needRoot(t)
	newOutside(t)
	cfg := newConfig(t)
	cfg.PodCIDRs = ranges("192.0.2.0/25")
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	err = n.Run(t.Context(), func() { t.Error("ready") })
	if err == nil || !strings.Contains(err.Error(), "pod CIDR 192.0.2.0/25 overlaps with 192.0.2.1/24") {
		t.Errorf("got %v", err)
	}
	assertClean(t, n)
}

func TestKernelHasAllFeatures(t *testing.T) {
	needRoot(t)
	k, err := openKernel()
	if err != nil {
		t.Fatal(err)
	}
	defer k.close()
	if got := missingFeature(k.nft); got != "" {
		t.Errorf("this kernel lacks %s", got)
	}
}

// BenchmarkAttach is what each pod's start waits for.
func BenchmarkAttach(b *testing.B) {
	needRoot(b)
	cfg := newConfig(b)
	cfg.PodCIDRs = ranges("10.97.0.0/16")
	network, _ := start(b, cfg)
	ns := newNetns(b)
	var detach time.Duration
	for i := 0; b.Loop(); i++ {
		id := fmt.Sprintf("p%d", i)
		if _, err := network.Attach(b.Context(), id, ns,
			[]PortMapping{{HostPort: 8080, ContainerPort: 80}}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		begin := time.Now()
		if err := network.Detach(b.Context(), id); err != nil {
			b.Fatal(err)
		}
		detach += time.Since(begin)
		network.running.Load().reaper.finish(network.names.link(id)) // the namespace is used again
		b.StartTimer()
	}
	b.ReportMetric(float64(detach.Microseconds())/float64(b.N), "µs/detach")
}
