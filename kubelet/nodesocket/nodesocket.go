// SPDX-License-Identifier: Apache-2.0

// Package nodesocket makes the sockets at which the kubelet answers programs on its node, each in a directory of its
// own below the kubelet's. podresources and podsapi listen on them. Only root can connect.
package nodesocket

import (
	"errors"
	"net"
	"path/filepath"
	"sync"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"keelson/kubelet/rootdir"
	"keelson/lib/inroot"
)

const (
	tempSocket = ".kubelet.sock.new"
	// maxConnections limits the connections that clients keep open.
	maxConnections = 256
)

// listener removes its socket when it is closed.
type listener struct {
	net.Listener
	dir       *inroot.Dir
	name      string
	info      inroot.Info
	closeOnce func() error
}

// Listen makes the socket name in a directory within the kubelet's. It replaces the socket of an earlier process
// atomically.
func Listen(dir rootdir.Dir, within, name string) (net.Listener, error) {
	root, err := inroot.Open(string(dir))
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // O_PATH
	if err := root.MkdirAll(within, 0o750); err != nil {
		return nil, err
	}
	in, err := root.OpenDir(within)
	if err != nil {
		return nil, err
	}
	l, err := listenInDir(in, name)
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return l, nil
}

func listenInDir(in *inroot.Dir, name string) (net.Listener, error) {
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
		err = in.Rename(tempSocket, name)
	}
	if err != nil {
		return nil, errors.Join(err, unixListener.Close())
	}
	out := &listener{
		Listener: netutil.LimitListener(unixListener, maxConnections),
		dir:      in,
		name:     name,
		info:     made,
	}
	out.closeOnce = sync.OnceValue(out.closeAndRemove)
	return out, nil
}

// Close ends listening, and removes the socket unless another has its name by now.
func (l *listener) Close() error { return l.closeOnce() }

func (l *listener) closeAndRemove() error {
	err := l.Listener.Close()
	if now, serr := l.dir.Lstat(l.name); serr == nil && now.Dev == l.info.Dev && now.Ino == l.info.Ino {
		err = errors.Join(err, l.dir.Remove(l.name))
	}
	return errors.Join(err, l.dir.Close())
}
