// SPDX-License-Identifier: Apache-2.0

package cluster

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

// ListenOptions say where the API is served.
type ListenOptions struct {
	// Bind is the address that the API listens on; 0.0.0.0 or :: are all addresses. Empty: 127.0.0.1 and, on a node
	// with the built-in network, the node's address in its pod network.
	Bind string
	// Names are further names and addresses in the API's serving certificate: those of a load balancer.
	Names []string
}

func (o *ListenOptions) rows() []option.Row {
	return []option.Row{
		option.New(&o.Bind, "bind-address", "",
			"serve the API at `IP`, 0.0.0.0 for all addresses of this machine (default 127.0.0.1, and this node's "+
				"pods)"),
		option.New(&o.Names, "tls-san", nil,
			"further `NAME` or address in the API's serving certificate, such as a load balancer's; may be repeated"),
	}
}

func (o ListenOptions) validate() error {
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

// names are the DNS names among Names, addresses the others.
func (o ListenOptions) names() (names []string, addresses []net.IP) {
	for _, text := range o.Names {
		if ip, err := netip.ParseAddr(text); err == nil {
			addresses = append(addresses, ip.AsSlice())
			continue
		}
		names = append(names, text)
	}
	return names, addresses
}

// bind is the first listen address.
func (o ListenOptions) bind() netip.Addr {
	if ip, err := netip.ParseAddr(o.Bind); err == nil {
		return ip
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// Opens is a notice about what a listen address other than loopback exposes; "": nothing.
func (o ListenOptions) Opens() string {
	switch ip := o.bind(); {
	case ip.IsLoopback():
		return ""
	case ip.IsUnspecified():
		return "the API listens on every address of this machine: whoever reaches one can try to log in, and see the " +
			"version without"
	default:
		return fmt.Sprintf("the API listens on %s: whoever reaches that address can try to log in, and see the "+
			"version without", ip)
	}
}

// podGateway is this machine's address in its own pod network. The API listens there too: pods reach it, other machines
// do not.
func (c Config) podGateway() (netip.Addr, bool) {
	if c.Listen.Bind != "" || c.Rootless || c.RuntimeEndpoint != "" || c.NoNode && !c.PodsBeside ||
		len(c.PodCIDRs) == 0 {
		return netip.Addr{}, false
	}
	return c.PodCIDRs[0].Masked().Addr().Next(), true
}

// endpoint is the endpoint address of the Service "kubernetes"; invalid: there is none.
func (c Config) endpoint() netip.Addr {
	if ip, err := netip.ParseAddr(c.Services.Advertise); err == nil {
		return ip
	}
	bind := c.Listen.bind()
	if bind.IsUnspecified() {
		if ips := c.nodeIPs(); len(ips) > 0 {
			return ips[0]
		}
		return netip.Addr{}
	}
	if !bind.IsLoopback() {
		return bind
	}
	gateway, _ := c.podGateway()
	return gateway
}

// openListeners listens on the API's port on all its addresses.
func openListeners(cfg Config) (*listeners, error) {
	first, err := listen(cfg.Listen.bind(), cfg.Port)
	if err != nil {
		return nil, err
	}
	l := &listeners{all: []net.Listener{first}, conns: make(chan accepted), closed: make(chan struct{})}
	gateway, ok := cfg.podGateway()
	if !ok {
		return l, nil
	}
	port := cfg.Port
	if a, isTCP := first.Addr().(*net.TCPAddr); isTCP {
		port = a.Port
	}
	second, err := listen(gateway, port)
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

// localURL is the URL by which a client on this machine reaches the listener at a.
func localURL(a net.Addr) string {
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
