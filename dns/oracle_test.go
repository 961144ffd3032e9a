// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mdns "github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"keelson/client"
	"keelson/cluster/clustertest"
	"keelson/dns"
	"keelson/dns/serve"
)

var update = flag.Bool("update", false, "write what CoreDNS answers (it needs bin/tools/coredns: make tools)")

// TestCoreDNS asks this server and CoreDNS the same questions about the same cluster. What CoreDNS answers is in
// testdata/coredns.txt, so that no one needs it; where `make tools` has built it, it is asked too, and must still say
// so. Where this server says something else, one of the reasons in oracle_differences_test.go holds.
func TestCoreDNS(t *testing.T) {
	town := build(t)
	up := upstream(t)
	theirs := recorded(t)
	if exe := filepath.Join("..", "bin", "tools", "coredns"); *update || exists(exe) {
		now := interview(t, coreDNS(t, exe, town.kubeconfig, up), town.questions)
		if *update {
			if err := os.WriteFile(goldenFile, []byte(golden(town.questions, now)), 0o644); err != nil {
				t.Fatal(err)
			}
			theirs = now
		}
		if diff := cmp.Diff(golden(town.questions, theirs), golden(town.questions, now)); diff != "" {
			t.Errorf("CoreDNS does not answer as %s has it (-update writes it; - recorded, + now):\n%s", goldenFile,
				diff)
		}
	} else {
		t.Logf("CoreDNS is not asked, only what it once answered is compared: `make tools` builds it")
	}
	ours := interview(t, keelsonDNS(t, town.c.Client, up), town.questions)
	judge(t, town.questions, theirs, ours)
	t.Logf("%d questions", len(town.questions))
}

const goldenFile = "testdata/coredns.txt"

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// town is a cluster with services of every shape, and what is asked about it.
type town struct {
	c          *clustertest.Cluster
	kubeconfig string
	questions  []question
}

func build(t *testing.T) *town {
	t.Helper()
	cfg := clustertest.Config{HTTPS: true}
	cfg.Services.ClusterIPRange = "10.96.0.0/16,fd00:96::/108"
	c := clustertest.Start(t, cfg)
	objects := decode(t, filepath.Join("testdata", "cluster.yaml"))
	objects = append(objects, wide())
	for _, o := range objects {
		if err := create(t.Context(), c.Client, o); err != nil {
			t.Fatalf("create %T: %v", o, err)
		}
	}
	return &town{c: c, kubeconfig: c.Kubeconfig(t), questions: questions(objects)}
}

func decode(t *testing.T, file string) []runtime.Object {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []runtime.Object
	for doc := range bytes.SplitSeq(raw, []byte("\n---\n")) {
		o, _, err := scheme.Codecs.UniversalDeserializer().Decode(doc, nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		out = append(out, o)
	}
	return out
}

// wide is more than a datagram has room for.
func wide() *discoveryv1.EndpointSlice {
	name := "http"
	port := int32(80)
	tcp := corev1.ProtocolTCP
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop",
			Name:      "wide-1",
			Labels:    map[string]string{discoveryv1.LabelServiceName: "wide"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &tcp}},
	}
	for i := range 90 {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.1.9.%d", i+1)},
		})
	}
	return slice
}

func create(ctx context.Context, c *client.Client, o runtime.Object) (err error) {
	switch o := o.(type) {
	case *corev1.Namespace:
		_, err = c.CoreV1().Namespaces().Create(ctx, o, metav1.CreateOptions{})
	case *corev1.Service:
		_, err = c.CoreV1().Services(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
	case *discoveryv1.EndpointSlice:
		_, err = c.DiscoveryV1().EndpointSlices(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
	default:
		err = fmt.Errorf("what is a %T", o)
	}
	return err
}

// keelsonDNS starts this server, of no node.
func keelsonDNS(t *testing.T, c *client.Client, up string) (addr string) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("upstreams: ["+up+"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := make(chan netip.AddrPort, 1)
	server, err := dns.New(dns.Config{
		Client:    c,
		Listen:    netip.MustParseAddrPort("127.0.0.1:0"),
		File:      config,
		ServiceIP: netip.MustParseAddr("10.96.0.10"),
		Listening: func(a netip.AddrPort) { at <- a },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	ready := make(chan struct{})
	go func() { done <- server.Run(ctx, func() { close(ready) }) }() // ends with the test, which waits for it
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatalf("the server did not start: %v", err)
	}
	addr = (<-at).String()
	await(t, addr, "www.example.com.")
	return addr
}

// coreDNS starts CoreDNS as kubeadm configures it, as far as answers go, with CoreDNS' own time to live.
func coreDNS(t *testing.T, exe, kubeconfig, up string) (addr string) {
	t.Helper()
	port := reservedPort(t)
	addr = fmt.Sprintf("127.0.0.1:%d", port)
	file := filepath.Join(t.TempDir(), "Corefile")
	text := fmt.Sprintf(`.:%d {
	errors
	kubernetes cluster.local in-addr.arpa ip6.arpa {
		kubeconfig %s
		pods insecure
		fallthrough in-addr.arpa ip6.arpa
	}
	forward . %s
}
`, port, kubeconfig, up)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, exe, "-conf", file)
	var out bytes.Buffer
	cmd.Stdout = &out
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatalf("start CoreDNS, which `make tools` builds: %v", err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("CoreDNS said:\n%s", out.String())
		}
	})
	await(t, addr, "four.shop.svc.cluster.local.")
	return addr
}

// reservedPort is free for TCP and UDP, and below those that the kernel gives to connections, so that none takes it
// before CoreDNS does.
func reservedPort(t *testing.T) int {
	t.Helper()
	for range 50 {
		port := 20000 + rand.IntN(10000)
		l, err := serve.Listen(t.Context(), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port)))
		if err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port from 20000 to 29999 is free")
	return 0
}

// await asks for a name until there is an answer.
func await(t *testing.T, addr, name string) {
	t.Helper()
	clustertest.Eventually(t, addr+" answers", time.Minute, func() (bool, error) {
		m, _, err := (&mdns.Client{Timeout: time.Second}).Exchange(new(mdns.Msg).SetQuestion(name, mdns.TypeA), addr)
		return err == nil && m.Rcode == mdns.RcodeSuccess && len(m.Answer) > 0, err
	})
}

// upstream is the rest of the world: one name, which no one may remember.
func upstream(t *testing.T) (addr string) {
	t.Helper()
	answer := mdns.HandlerFunc(func(responseWriter mdns.ResponseWriter, msg *mdns.Msg) {
		m := new(mdns.Msg).SetReply(msg)
		m.RecursionAvailable = true
		q := msg.Question[0]
		records := map[string]string{
			"www.example.com. A":    "0 IN A 192.0.2.80",
			"www.example.com. AAAA": "0 IN AAAA 2001:db8::80",
			"www.example.com. TXT":  `0 IN TXT "hello"`,
		}
		switch name := strings.ToLower(q.Name); name {
		case "www.example.com.":
			if text := records[name+" "+mdns.TypeToString[q.Qtype]]; text != "" {
				rr, _ := mdns.NewRR(q.Name + " " + text)
				m.Answer = []mdns.RR{rr}
				break
			}
			m.Ns = []mdns.RR{soa()}
		default:
			m.Rcode = mdns.RcodeNameError
			m.Ns = []mdns.RR{soa()}
		}
		if o := msg.IsEdns0(); o != nil {
			m.SetEdns0(1232, o.Do())
		}
		_ = responseWriter.WriteMsg(m) // who asked is gone
	})
	listeners, err := serve.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*mdns.Server{
		{PacketConn: listeners.UDP, Handler: answer},
		{Listener: listeners.TCP, Handler: answer},
	} {
		started := make(chan struct{})
		done := make(chan error, 1)
		s.NotifyStartedFunc = func() { close(started) }
		go func() { done <- s.ActivateAndServe() }() // ends with Shutdown
		<-started
		t.Cleanup(func() {
			_ = s.Shutdown()
			<-done
		})
	}
	return listeners.Addr().String()
}

func soa() mdns.RR {
	rr, _ := mdns.NewRR("com. 0 IN SOA a.example. b.example. 7 2 3 4 0")
	return rr
}
