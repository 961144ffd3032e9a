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
	socketDir = "pod-resources" // within the kubelet's directory
	socket    = "kubelet.sock"
	newSocket = ".kubelet.sock.new"
	// connectWithin is how long a client may take to begin to speak.
	connectWithin = 10 * time.Second
)

// listener removes its socket when it is closed.
type listener struct {
	net.Listener
	dir   *inroot.Dir
	made  inroot.Info
	close func() error
}

// listen makes the socket, which root alone may connect to. That of an earlier life is replaced at once.
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
	l, err := listenIn(in)
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return l, nil
}

func listenIn(in *inroot.Dir) (net.Listener, error) {
	if err := in.Remove(newSocket); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(in.ProcPath(), newSocket)}) // its path may be too long for a socket's name
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the name is given up below
	if err := in.Chmod(newSocket, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	made, err := in.Lstat(newSocket)
	if err == nil {
		err = in.Rename(newSocket, socket)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	out := &listener{Listener: netutil.LimitListener(l, maxConnections), dir: in, made: made}
	out.close = sync.OnceValue(out.end)
	return out, nil
}

// Close ends listening, and removes the socket unless another has its name by now.
func (l *listener) Close() error { return l.close() }

func (l *listener) end() error {
	err := l.Listener.Close()
	if now, serr := l.dir.Lstat(socket); serr == nil && now.Dev == l.made.Dev && now.Ino == l.made.Ino {
		err = errors.Join(err, l.dir.Remove(socket))
	}
	return errors.Join(err, l.dir.Close())
}
