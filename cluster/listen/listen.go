// SPDX-License-Identifier: Apache-2.0

// Package listen is where the API is served: the options that say it, one listener for several addresses, also for
// those that the machine gets later, and the URL by which the machine itself reaches it. It accepts connections and
// reads none.
package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/validation"

	"keelson/lib/option"
)

// Options say where the API is served.
type Options struct {
	// Bind is the address that the API listens on; 0.0.0.0 or :: are all addresses. Empty: 127.0.0.1 and, on a node
	// with the built-in network, the node's address in its pod network.
	Bind string
	// Names are further names and addresses in the API's serving certificate: those of a load balancer.
	Names []string
}

// Rows are the options.
func (o *Options) Rows() []option.Row {
	return []option.Row{
		option.New(&o.Bind, "bind-address", "",
			"serve the API at `IP`, 0.0.0.0 for all addresses of this machine (default 127.0.0.1, and this node's "+
				"pods)"),
		option.New(&o.Names, "tls-san", nil,
			"further `NAME` or address in the API's serving certificate, such as a load balancer's; may be repeated"),
	}
}

// Validate returns one sentence for each error.
func (o Options) Validate() error {
	var errs []error
	if ip, err := netip.ParseAddr(o.Bind); o.Bind != "" && (err != nil || ip.IsMulticast()) {
		errs = append(errs, fmt.Errorf("--bind-address %q is not an IP address", o.Bind))
	}
	for _, name := range o.Names {
		ip, err := netip.ParseAddr(name)
		isName := len(validation.IsDNS1123Subdomain(name)) == 0 || len(validation.IsWildcardDNS1123Subdomain(name)) == 0
		if err == nil && ip.Zone() == "" || err != nil && isName {
			continue
		}
		errs = append(errs, fmt.Errorf("--tls-san %q is neither an IP address nor a DNS name in lower case", name))
	}
	return errors.Join(errs...)
}

// Certified returns the DNS names among Names, and the addresses.
func (o Options) Certified() (names []string, addresses []net.IP) {
	for _, text := range o.Names {
		if ip, err := netip.ParseAddr(text); err == nil {
			addresses = append(addresses, ip.AsSlice())
			continue
		}
		names = append(names, text)
	}
	return names, addresses
}

// Address is the first listen address.
func (o Options) Address() netip.Addr {
	if ip, err := netip.ParseAddr(o.Bind); err == nil {
		return ip
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// Opens is a notice about what a listen address other than loopback exposes; "": nothing.
func (o Options) Opens() string {
	switch ip := o.Address(); {
	case ip.IsLoopback():
		return ""
	case ip.IsUnspecified():
		return "the API listens on every address of this machine: clients that reach one can try to log in, and see " +
			"the version without"
	default:
		return fmt.Sprintf("the API listens on %s: clients that reach that address can try to log in, and see the "+
			"version without", ip)
	}
}

// Open listens on a port of an address, and on the same port of a further one if that is valid. Port 0 is a free one.
func Open(address netip.Addr, port int, further netip.Addr) (net.Listener, error) {
	first, err := listen(address, port)
	if err != nil {
		return nil, err
	}
	l := &listeners{all: []net.Listener{first}, conns: make(chan accepted), closed: make(chan struct{})}
	if !further.IsValid() {
		return l, nil
	}
	if a, isTCP := first.Addr().(*net.TCPAddr); isTCP {
		port = a.Port
	}
	second, err := listen(further, port)
	if err != nil {
		return nil, errors.Join(err, first.Close())
	}
	l.all = append(l.all, second)
	return l, nil
}

// listen listens on an address that this machine may not have yet.
func listen(ip netip.Addr, port int) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if ctl := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
		}); ctl != nil {
			return ctl
		}
		return err
	}}
	if ip.IsLoopback() || ip.IsUnspecified() || ip.Is6() {
		lc.Control = nil
	}
	listener, err := lc.Listen(context.Background(), "tcp", net.JoinHostPort(ip.String(), strconv.Itoa(port)))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("port %d on %s is used by another program: stop it or choose another with --port", port,
			ip)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("this machine has no address %s: give --bind-address one that `ip address` shows, or "+
			"0.0.0.0", ip)
	case err != nil:
		return nil, fmt.Errorf("listen on port %d of %s: %w", port, ip, err)
	}
	return listener, nil
}

// listeners combines several listeners into one. Its address is that of the first.
type listeners struct {
	all    []net.Listener
	begin  sync.Once
	conns  chan accepted
	end    sync.Once
	closed chan struct{}
}

type accepted struct {
	conn net.Conn
	err  error
}

// Accept returns the next connection of any of them.
func (l *listeners) Accept() (net.Conn, error) {
	l.begin.Do(func() {
		for _, one := range l.all {
			go l.accept(one) // ends when Close has closed it
		}
	})
	select {
	case a := <-l.conns:
		return a.conn, a.err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listeners) accept(one net.Listener) {
	for {
		conn, err := one.Accept()
		select {
		case l.conns <- accepted{conn, err}:
		case <-l.closed:
			if conn != nil {
				_ = conn.Close()
			}
			return
		}
	}
}

// Close closes all of them. It may be called twice.
func (l *listeners) Close() error {
	var errs []error
	l.end.Do(func() {
		close(l.closed)
		for _, one := range l.all {
			errs = append(errs, one.Close())
		}
	})
	return errors.Join(errs...)
}

// Addr is the first listener's address.
func (l *listeners) Addr() net.Addr { return l.all[0].Addr() }

// LocalURL is the URL by which a client on this machine reaches the listener at a.
func LocalURL(a net.Addr) string {
	at, ok := a.(*net.TCPAddr)
	if !ok || !at.IP.IsUnspecified() {
		return "https://" + a.String()
	}
	host := "127.0.0.1"
	if at.IP.To4() == nil {
		host = "::1"
	}
	return "https://" + net.JoinHostPort(host, strconv.Itoa(at.Port))
}
