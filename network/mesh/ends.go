// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// kernelEnd is a WireGuard link of the kernel.
type kernelEnd struct{ name string }

func (e kernelEnd) configure(c wgtypes.Config) error {
	return e.do(func(w *wgctrl.Client) error { return w.ConfigureDevice(e.name, c) })
}

func (e kernelEnd) peers() (map[Key]*net.UDPAddr, error) {
	out := map[Key]*net.UDPAddr{}
	return out, e.do(func(w *wgctrl.Client) error {
		d, err := w.Device(e.name)
		if err != nil {
			return err
		}
		for i := range d.Peers {
			out[d.Peers[i].PublicKey] = d.Peers[i].Endpoint
		}
		return nil
	})
}

// do opens a connection to the kernel for one request: there are few.
func (kernelEnd) do(f func(*wgctrl.Client) error) error {
	w, err := wgctrl.New()
	if err != nil {
		return fmt.Errorf("open the kernel's WireGuard: %w", err)
	}
	return errors.Join(f(w), w.Close())
}

func (kernelEnd) serves(int, int) bool { return true } // its MTU can be changed

func (kernelEnd) close() {} // the kernel's link stays

// userEnd is WireGuard in this process, on a TUN link, which is deleted with it.
type userEnd struct {
	dev        *device.Device
	gate       *gate
	index, mtu int
	asks       sync.WaitGroup
	closed     chan struct{}
}

const tunPath = "/dev/net/tun"

// openUserEnd makes the link, in the calling thread's network namespace.
func openUserEnd(name string, mtu int, private Key, port int) (*userEnd, error) {
	link, err := openTUN(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("this kernel has neither WireGuard (CONFIG_WIREGUARD) nor TUN (CONFIG_TUN, %s), of "+
			"which --tunnel=wireguard needs one", tunPath)
	}
	if err != nil {
		return nil, fmt.Errorf("create tunnel %s: %w", name, err)
	}
	// The library logs a line for each packet that it cannot send, which is too much.
	quiet := &device.Logger{Verbosef: device.DiscardLogf, Errorf: device.DiscardLogf}
	g := newGate()
	e := &userEnd{
		dev:    device.NewDevice(gatedLink{link, g, mtu}, gatedSocket{conn.NewDefaultBind(), g}, quiet),
		gate:   g,
		mtu:    mtu,
		closed: make(chan struct{}),
	}
	e.asks.Go(e.answer)
	if err = e.configure(wgtypes.Config{PrivateKey: &private, ListenPort: &port}); err == nil {
		err = e.dev.Up()
	}
	if err != nil {
		e.close()
		return nil, fmt.Errorf("start WireGuard: %w", err)
	}
	return e, nil
}

// answer updates the gate with the handshakes of peers. The reader of packets must not do that: the library holds its
// locks at Close until reading has ended.
func (e *userEnd) answer() {
	for {
		select {
		case <-e.closed:
			return
		case <-e.gate.ask.C():
			if state, err := e.dev.IpcGet(); err == nil {
				e.gate.learn(state, time.Now())
			}
		}
	}
}

// openTUN makes a link without the library's listeners, one of which polls every second.
func openTUN(name string) (tun.Device, error) {
	fd, err := unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", tunPath, err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	d, _, err := tun.CreateUnmonitoredTUNFromFD(fd)
	return d, err
}

func (e *userEnd) configure(c wgtypes.Config) error {
	if c.ListenPort != nil && e.index != 0 {
		c.PrivateKey = nil
		c.ListenPort = nil // they are set already; setting them again drops packets in transit
	}
	e.gate.set(c.Peers)
	return e.dev.IpcSet(uapi(c))
}

func (e *userEnd) peers() (map[Key]*net.UDPAddr, error) {
	state, err := e.dev.IpcGet()
	if err != nil {
		return nil, fmt.Errorf("read the peers of WireGuard: %w", err)
	}
	return peersOf(state), nil
}

// peersOf reads the peers from a state in the configuration protocol.
func peersOf(state string) map[Key]*net.UDPAddr {
	out := map[Key]*net.UDPAddr{}
	var peer Key
	for line := range strings.Lines(state) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		switch name {
		case "public_key":
			b, err := hex.DecodeString(value)
			if err != nil || len(b) != wgtypes.KeyLen {
				return out // cannot happen
			}
			peer = Key(b)
			out[peer] = nil
		case "endpoint":
			if at, err := netip.ParseAddrPort(value); err == nil {
				out[peer] = net.UDPAddrFromAddrPort(at)
			}
		}
	}
	return out
}

func (e *userEnd) serves(index, mtu int) bool {
	select {
	case <-e.dev.Wait(): // the link was deleted
		return false
	default:
		return e.index == index && (e.mtu == mtu || mtu == 0)
	}
}

func (e *userEnd) close() {
	e.dev.Close()
	close(e.closed)
	e.asks.Wait()
}

// uapi formats a configuration for https://www.wireguard.com/xplatform/#configuration-protocol.
func uapi(c wgtypes.Config) string {
	var out strings.Builder
	if c.PrivateKey != nil {
		fmt.Fprintf(&out, "private_key=%s\n", hex.EncodeToString(c.PrivateKey[:]))
	}
	if c.ListenPort != nil {
		fmt.Fprintf(&out, "listen_port=%d\n", *c.ListenPort)
	}
	for _, peerConfig := range c.Peers {
		fmt.Fprintf(&out, "public_key=%s\n", hex.EncodeToString(peerConfig.PublicKey[:]))
		if peerConfig.Remove {
			out.WriteString("remove=true\n")
			continue
		}
		if peerConfig.UpdateOnly {
			out.WriteString("update_only=true\n")
		}
		if peerConfig.PersistentKeepaliveInterval != nil {
			fmt.Fprintf(&out, "persistent_keepalive_interval=%d\n",
				int(peerConfig.PersistentKeepaliveInterval.Seconds()))
		}
		if peerConfig.ReplaceAllowedIPs {
			out.WriteString("replace_allowed_ips=true\n")
		}
		if peerConfig.Endpoint != nil {
			fmt.Fprintf(&out, "endpoint=%s\n", peerConfig.Endpoint.AddrPort())
		}
		for _, r := range peerConfig.AllowedIPs {
			fmt.Fprintf(&out, "allowed_ip=%s\n", r.String())
		}
	}
	return out.String()
}
