// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// answerUDP answers every datagram to port 53 of the namespace with name and the question until the test's end.
func answerUDP(t *testing.T, ns, name string) {
	t.Helper()
	var packetConn net.PacketConn
	inside(t, ns, func() {
		var err error
		if packetConn, err = net.ListenPacket("udp4", ":53"); err != nil {
			t.Error(err)
		}
	})
	if packetConn == nil {
		t.FailNow()
	}
	t.Cleanup(func() { _ = packetConn.Close() })
	go func() { // ends when packetConn is closed
		buf := make([]byte, 64)
		for {
			n, from, err := packetConn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = packetConn.WriteTo([]byte(name+string(buf[:n])), from) // asked again when lost
		}
	}()
}

// askUDP sends the question from one and the same socket until an answer to it comes. Each call asks another question:
// what was asked twice by an earlier one may still be answered.
func askUDP(t *testing.T, conn net.Conn, question string) string {
	t.Helper()
	buf := make([]byte, 64)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		_, err := conn.Write([]byte(question)) // refused while there is no listener
		if err == nil {
			err = conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		}
		for err == nil {
			var n int
			if n, err = conn.Read(buf); err == nil {
				if name, ok := strings.CutSuffix(string(buf[:n]), question); ok {
					return name
				}
			}
		}
	}
	t.Fatalf("no answer from %s", conn.RemoteAddr())
	return ""
}

// TestUDPHostPort: datagrams reach the pod that has the port, and from an old sender too when another pod has it: the
// kernel would go on sending them to the first.
func TestUDPHostPort(t *testing.T) {
	needRoot(t)
	bringUp(t)
	network, _ := start(t, newConfig(t))
	port := PortMapping{Protocol: "UDP", HostPort: 5353, ContainerPort: 53}
	nsA := newNetns(t)
	nsB := newNetns(t)
	attach(t, network, "a", nsA, port)
	answerUDP(t, nsA, "a")
	var senders []net.Conn
	for _, to := range []string{"127.0.0.1:5353", network.families[0].gateway.String() + ":5353"} {
		c, err := net.Dial("udp4", to)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if got := askUDP(t, c, " first"); got != "a" {
			t.Errorf("%s: got %q, want a", to, got)
		}
		senders = append(senders, c)
	}
	// TCP's port of the same number is another one.
	attach(t, network, "tcp", newNetns(t), PortMapping{Protocol: "TCP", HostPort: 5353, ContainerPort: 1})
	if err := network.Detach(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	attach(t, network, "b", nsB, port)
	answerUDP(t, nsB, "b")
	for _, c := range senders {
		if got := askUDP(t, c, " then"); got != "b" {
			t.Errorf("%s after the port moved: got %q, want b", c.RemoteAddr(), got)
		}
	}
}

// TestSCTPHostPort connects by SCTP where the kernel has it.
func TestSCTPHostPort(t *testing.T) {
	needRoot(t)
	sctp := func() (int, error) {
		return unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	}
	fd, err := sctp()
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ESOCKTNOSUPPORT) {
		t.Skip("this kernel has no SCTP")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	bringUp(t)
	network, _ := start(t, newConfig(t))
	ns := newNetns(t)
	attach(t, network, "a", ns, PortMapping{Protocol: "SCTP", HostPort: 9999, ContainerPort: 99})
	server := -1
	inside(t, ns, func() {
		if server, err = sctp(); err == nil {
			err = errors.Join(unix.Bind(server, &unix.SockaddrInet4{Port: 99}), unix.Listen(server, 1))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(server) }()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 9999, Addr: network.families[0].gateway.As4()}); err != nil {
		t.Errorf("connect to the host port: %v", err)
	}
}
