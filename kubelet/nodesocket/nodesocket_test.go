// SPDX-License-Identifier: Apache-2.0

package nodesocket

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"keelson/kubelet/rootdir"
)

// TestSocket: a socket of an earlier life is replaced, root alone may connect, and at the end the socket is removed
// unless another server has its name.
func TestSocket(t *testing.T) {
	const within, name = "pod-resources", "kubelet.sock"
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.MkdirAll(filepath.Join(dir, within), 0o750); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(dir, within)) // the path is too long for a socket's name
	for _, old := range []string{name, tempSocket} {
		stale, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: old})
		if err != nil {
			t.Fatal(err)
		}
		stale.SetUnlinkOnClose(false)
		if err := stale.Close(); err != nil {
			t.Fatal(err)
		}
	}
	first, err := Listen(rootdir.Dir(dir), within, name)
	if err != nil {
		t.Fatal(err)
	}
	i, err := os.Stat(name)
	if err != nil || i.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("the socket: %v, %v", i, err)
	}
	second, err := Listen(rootdir.Dir(dir), within, name)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	client, err := (&net.Dialer{}).DialContext(t.Context(), "unix", name)
	if err != nil {
		t.Errorf("the end of the first listener removed the second's socket: %v", err)
	} else {
		_ = client.Close()
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(".")
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := os.Mkdir(name, 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(rootdir.Dir(dir), within, name); err == nil || !strings.Contains(err.Error(), "rename") {
		t.Errorf("a directory in its place: %v", err)
	}
}
