// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"errors"
	"net"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"keelson/kubelet/rootdir"
	"keelson/lib/inroot"
)

const (
	socketDir  = "pod-resources" // within the kubelet's directory
	socket     = "kubelet.sock"
	tempSocket = ".kubelet.sock.new"
	// connectTimeout is the timeout of a client's HTTP/2 handshake.
	connectTimeout = 10 * time.Second
)

// listener removes its socket when it is closed.
type listener struct {
	net.Listener
	dir       *inroot.Dir
	info      inroot.Info
	closeOnce func() error
}

// listen makes the socket, to which only root may connect. It replaces the socket of an earlier process atomically.
func listen(dir rootdir.Dir) (net.Listener, error) {
	root, err := inroot.Open(string(dir))
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // O_PATH
	if err := root.MkdirAll(socketDir, 0o750); err != nil {
		return nil, err
	}
	in, err := root.OpenDir(socketDir)
	if err != nil {
		return nil, err
	}
	l, err := listenInDir(in)
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return l, nil
}

func listenInDir(in *inroot.Dir) (net.Listener, error) {
	if err := in.Remove(tempSocket); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	// its path may be too long for a socket's name
	unixListener, err := net.ListenUnix("unix", &net.UnixAddr{
		Net:  "unix",
		Name: filepath.Join(in.ProcPath(), tempSocket),
	})
	if err != nil {
		return nil, err
	}
	unixListener.SetUnlinkOnClose(false) // it is renamed below
	if err := in.Chmod(tempSocket, 0o600); err != nil {
		return nil, errors.Join(err, unixListener.Close())
	}
	made, err := in.Lstat(tempSocket)
	if err == nil {
		err = in.Rename(tempSocket, socket)
	}
	if err != nil {
		return nil, errors.Join(err, unixListener.Close())
	}
	out := &listener{Listener: netutil.LimitListener(unixListener, maxConnections), dir: in, info: made}
	out.closeOnce = sync.OnceValue(out.closeAndRemove)
	return out, nil
}

// Close ends listening, and removes the socket unless another has its name by now.
func (l *listener) Close() error { return l.closeOnce() }

func (l *listener) closeAndRemove() error {
	err := l.Listener.Close()
	if now, serr := l.dir.Lstat(socket); serr == nil && now.Dev == l.info.Dev && now.Ino == l.info.Ino {
		err = errors.Join(err, l.dir.Remove(socket))
	}
	return errors.Join(err, l.dir.Close())
}
